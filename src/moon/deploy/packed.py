"""A network with a detector and a threshold: the bytes of a `.moon` file, and what it answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from moon.data import AnySet, Benchmark, ImageList, evaluation_batches
from moon.export.file import network_bytes
from moon.export.graph import Graph
from moon.export.program import Program
from moon.export.runtime import runtime

_BATCH = 256
_LARGE = 4096  # a detector's matrices with as many numbers are stored in float16, as weights are
_ANY_THRESHOLD = {"threshold": np.zeros(1), "calibration": np.zeros(1)}


def preprocessing(benchmark: Benchmark) -> dict[str, Any]:
    """How images are prepared, as a file states it: resize, crop the centre, then (pixel / 255 - mean) / std."""
    sizes = {"resize": "cover", "shorter_side": benchmark.resize or min(benchmark.input_shape[1:])}
    return {"mean": list(benchmark.mean), "std": list(benchmark.std), **sizes}


@dataclass(frozen=True)
class PackedNetwork:
    """What a file contains: a network, a detector, and a threshold once it is known.

    The description has all else that the file says: preprocessing, class names, temperature, the detector's name. The
    tensors are the threshold and the calibration scores.
    """

    graph: Graph
    program: Program
    description: Mapping[str, Any]
    precision: str = "float16"
    threshold: Mapping[str, Any] | None = None
    tensors: Mapping[str, NDArray] | None = None

    def content(self) -> bytes:
        """The bytes of the file."""
        detector = {**self.description["detector"], "program": self.program.ops, "output": self.program.output}
        threshold = self.threshold or {"accept": 0.5, "confidence": None, "per_class": False}
        description = {**self.description, "detector": detector, "threshold": threshold}
        tensors = self._detector_tensors() | dict(self.tensors or _ANY_THRESHOLD)
        return network_bytes(self.graph, description, self.precision, tensors)

    @property
    def detector_bytes(self) -> int:
        """How many bytes of the file are constants of the detector, such as features of training images."""
        return sum(tensor.nbytes for tensor in self._detector_tensors().values())

    def _detector_tensors(self) -> dict[str, NDArray]:
        return {name: self._stored(tensor) for name, tensor in self.program.tensors.items()}

    def _stored(self, tensor: torch.Tensor) -> NDArray:
        half = tensor.half()
        is_large = tensor.ndim == 2 and tensor.numel() >= _LARGE and tensor.dtype == torch.float32
        return (half if is_large and self.precision != "float32" and bool(half.isfinite().all()) else tensor).numpy()

    def with_threshold(self, threshold: Mapping[str, Any], tensors: Mapping[str, NDArray]) -> PackedNetwork:
        """A copy with a threshold."""
        return replace(self, threshold=threshold, tensors=tensors)

    def with_description(self, **more: Any) -> PackedNetwork:
        """A copy with more entries in the description."""
        return replace(self, description={**self.description, **more})

    def answer(self, images: AnySet, benchmark: Benchmark) -> dict[str, NDArray]:
        """Answer about images in the size of the benchmark with the runtime, as the written file would."""
        classifier = runtime().load(self.content(), threads=torch.get_num_threads(), limit=float("inf"))
        answers = [classifier(pixels) for pixels in pixels_of(images, benchmark)]
        fields = ("label", "probability", "score", "p_value", "is_known")
        return {name: np.concatenate([getattr(part, name) for part in answers]) for name in fields}


def pixels_of(images: AnySet, benchmark: Benchmark) -> Iterator[NDArray[np.uint8]]:
    """Batches of pixels; images that are read from disk are resized and cropped as for evaluation."""
    if not isinstance(images, ImageList):
        for start in range(0, len(images.labels), _BATCH):
            yield images.images[start : start + _BATCH]
        return
    mean, std = (torch.tensor(values)[:, None, None] for values in (benchmark.mean, benchmark.std))
    for x, _ in evaluation_batches(images, benchmark, "cpu", _BATCH):
        yield ((x * std + mean) * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()
