"""Wrote format1.moon and format1.json, once: later versions of the runtime must read the file and answer the same.

The answers are those of NumPy. Do not run it again; a new format gets a new pair of files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

folder = Path(__file__).parent
sys.path.insert(0, str(folder.parent))

import detectors  # noqa: E402
import reference  # noqa: E402
from files import encode, pack  # noqa: E402

rng = np.random.default_rng(21)


def weight(*shape: int, density: float = 0.4) -> np.ndarray:
    scale = (density * np.prod(shape[1:])) ** -0.5
    return (scale * rng.standard_normal(shape) * (rng.random(shape) < density)).astype("f")


def rounded(name: str, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The non-zeros as they are in the file, to compute with."""
    kept = tensors[f"{name}.values"].astype("f")
    scale = np.repeat(tensors[f"{name}.scale"], tensors[f"{name}.counts"]) if f"{name}.scale" in tensors else 1
    result = dense[name].copy()
    result[result != 0] = kept * scale
    return {name: result}


graph: list[dict[str, Any]] = [
    {"op": "conv2d", "in": [0], "out": 1, "weight": "stem", "bias": "stem.bias", "shape": [8, 3, 3, 3],
     "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1, "act": "relu"},
    {"op": "conv2d", "in": [1], "out": 2, "weight": "middle", "bias": None, "shape": [8, 8, 3, 3],
     "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1},
    {"op": "add", "in": [2, 1], "out": 3, "act": "silu"},
    {"op": "conv2d", "in": [3], "out": 4, "weight": "last", "bias": None, "shape": [12, 8, 3, 3],
     "stride": [2, 2], "padding": [1, 1], "dilation": [1, 1], "groups": 1, "act": "relu"},
    {"op": "global_avg_pool", "in": [4], "out": 5},
    {"op": "flatten", "in": [5], "out": 6},
    {"op": "linear", "in": [6], "out": 7, "weight": "head", "bias": "head.bias"},
]  # fmt: skip
dense = {"stem": weight(8, 3, 3, 3), "middle": weight(8, 8, 3, 3), "last": weight(12, 8, 3, 3, density=0.6)}
tensors = (
    encode("stem", dense["stem"]) | encode("middle", dense["middle"], "<f2") | encode("last", dense["last"], "|i1")
)
exact = rounded("stem", tensors) | rounded("middle", tensors) | rounded("last", tensors)
tensors |= {"stem.bias": rng.standard_normal(8).astype("f")}
mean, std, temperature = [0.45, 0.5, 0.4], [0.25, 0.2, 0.3], 1.7
images = rng.integers(0, 256, (12, 1, 1, 3)) + rng.integers(-60, 60, (12, 8, 8, 3))
images = np.clip(images, 0, 255).astype(np.uint8)
inputs = ((images / 255 - mean) / std).transpose(0, 3, 1, 2)
features = reference.run(graph[:-1], tensors | exact, inputs)[6][:, :, 0, 0]
head = rng.standard_normal((4, 12)) / (features.std(0) + 0.1)  # so that each class occurs
tensors |= {"head": head.astype("f"), "head.bias": (-head @ features.mean(0)).astype("f")}

# Energy of the known classes, less the distance to the nearest of some directions.
program: list[dict[str, Any]] = [
    {"op": "slice", "in": [0], "start": 0, "end": 3, "out": 2},
    {"op": "logsumexp", "in": [2], "out": 3},
    {"op": "norm", "in": [1], "out": 4},
    {"op": "maximum", "in": [4, {"value": 1e-12}], "out": 5},
    {"op": "div", "in": [1, 5], "out": 6},
    {"op": "distances", "in": [6, {"tensor": "bank"}], "out": 7},
    {"op": "neg", "in": [7], "out": 8},
    {"op": "topk", "in": [8], "k": 3, "out": 9},
    {"op": "slice", "in": [9], "start": 2, "end": 3, "out": 10},
    {"op": "matmul", "in": [1, {"tensor": "project"}], "out": 11},
    {"op": "softmax", "in": [11], "out": 12},
    {"op": "amax", "in": [12], "out": 13},
    {"op": "concat", "in": [3, 10, 13], "out": 14},
    {"op": "mul", "in": [14, {"tensor": "mix"}], "out": 15},
    {"op": "sum", "in": [15], "out": 16},
]
bank = rng.random((10, 12))
tensors |= {"bank": (bank / np.linalg.norm(bank, axis=1, keepdims=True)).astype("<f2")}
tensors |= {"project": rng.standard_normal((5, 12)).astype("f"), "mix": np.array([0.1, 5.0, 1.0])}

vectors = reference.run(graph, tensors | exact, inputs)
features, logits = vectors[6][:, :, 0, 0], vectors[7][:, :, 0, 0]
label = logits[:, :3].argmax(1)
scores = np.array([detectors.run(program, tensors, *xs)[16][0] for xs in zip(logits, features, strict=True)])
thresholds = np.array([np.median(scores[label == k]) + 0.01 if (label == k).any() else 0.0 for k in range(3)])
groups = [np.sort(scores.mean() + scores.std() * rng.standard_normal(n)) for n in (20, 30, 40)]
probability = np.exp(logits[np.arange(12), label] / temperature) / np.exp(logits / temperature).sum(1)
p_values = [(1 + (groups[k] <= s).sum()) / (len(groups[k]) + 1) for k, s in zip(label, scores, strict=True)]

tensors |= {"threshold": thresholds, "calibration": np.concatenate(groups)}
tensors |= {"calibration.counts": np.array([20, 30, 40], "<u4")}
file = pack(
    graph, tensors, input=[3, 8, 8], outputs={"features": 6, "logits": 7}, classes=["cat", "dog", "Füchse"],
    preprocess={"mean": mean, "std": std, "resize": "cover"}, temperature=temperature,
    detector={"name": "kept", "options": {"k": 3}, "program": program, "output": 16},
    threshold={"accept": 0.5, "confidence": None, "per_class": True}, provenance={"written": "for tests"},
)  # fmt: skip
(folder / "format1.moon").write_bytes(file)
answers = {
    "images": images.tolist(), "logits": logits.tolist(), "features": features.tolist(), "label": label.tolist(),
    "probability": probability.tolist(), "score": scores.tolist(), "p_value": p_values,
    "is_known": (scores >= thresholds[label]).tolist(),
}  # fmt: skip
(folder / "format1.json").write_text(json.dumps(answers) + "\n")
