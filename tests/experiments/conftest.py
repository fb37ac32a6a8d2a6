"""Run folders made by hand, so that tables and pictures can be tested with literals."""

import json

import numpy as np
import pytest


def _fabricate(folder, recipe, *, auroc=0.9, fpr95=0.3, accuracy=0.94, ece=0.02, seconds=100.0, arrays=True, **more):
    """A finished and scored run; `auroc` is a number for all sets, or a mapping of sets."""
    folder = folder / recipe.name
    folder.mkdir(parents=True)
    near, far = more.get("near", ["notmnist"]), more.get("far", ["dtd", "tin"])
    detectors = more.get("detectors", ["msp", "odin", "ebo", "knn", "klm", "tempscale"])

    def row(name):
        value = auroc[name] if isinstance(auroc, dict) else auroc
        return {"auroc": value, "fpr95": fpr95, "aupr_in": value, "aupr_out": value}

    def mean(names):
        return {key: float(np.mean([row(name)[key] for name in names])) for key in row(names[0])}

    table = {"sets": {name: row(name) for name in near + far}, "near": mean(near), "far": mean(far)}
    known = {"accuracy": accuracy, "ece": ece, "nll": 0.2, "brier": 0.1}
    summary = {
        "benchmark": recipe.benchmark, "images": dict.fromkeys(["known", *near, *far], 50), "sha256": {}, "missing": [],
        "left_out": {}, "search": {}, "known": known, "known_scaled": known | {"temperature": 1.1}, "p_unknown": {},
        "detectors": dict.fromkeys(detectors, table),
    }  # fmt: skip
    result = {"known": known, "seconds": seconds, "model_sha256": "0" * 64, "software": {}, "hardware": "none",
              "layer_density": {"a.weight": 0.2, "b.weight": 0.05}}  # fmt: skip
    log = [{"epoch": e, "loss": 1.0, "val_accuracy": 0.5 + 0.1 * e, "w": 0.1 * e, "p_unknown_correct": 0.01,
            "p_unknown_wrong": None, "seconds": 1.0} for e in range(3)]  # fmt: skip
    for name, value in (("recipe", recipe.to_json()), ("result", result), ("scores", summary)):
        (folder / f"{name}.json").write_text(json.dumps(value))
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    if arrays:
        chance = np.random.default_rng(recipe.seed)
        scores = {
            f"{d}/{name}": chance.normal(name == "known", 1, 50) for d in detectors for name in ["known", *near, *far]
        }
        np.savez(folder / "scores.npz", **scores)
        labels = np.arange(50) % 10
        np.savez(folder / "known.npz", labels=labels, prediction=np.where(chance.random(50) < 0.9, labels, 0),
                 confidence=chance.uniform(0.3, 1, 50).astype(np.float32), p_unknown=np.zeros(50, np.float32),
                 first_component=chance.normal(labels, 1).astype(np.float32))  # fmt: skip
        images = chance.integers(0, 256, (3, 8, 8, 1), dtype=np.uint8)
        np.savez(folder / "examples.npz", **{f"{s}/{n}": images for s in ("right", "wrong") for n in ("known", "dtd")})
    return folder


@pytest.fixture
def fabricate():
    """A function that makes a run folder by hand."""
    return _fabricate
