"""A benchmark with its images: what runs are trained, measured and scored on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from moon.data import (
    AnySet,
    Batches,
    Benchmark,
    DataError,
    Listed,
    Streams,
    benchmark,
    fit_to,
    has,
    known_sets,
    open_set,
)  # fmt: skip
from moon.data.readers import decode
from moon.evidence import Evidence, read
from moon.fast import sparse_reading

KNOWN = "known"  # the key of the known test set among those scored
Perturb = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True)
class Bench:
    """A benchmark's images, fitted to its size, ready for a device."""

    row: Benchmark
    known: dict[str, AnySet]  # train, val, test
    unknown: dict[str, AnySet]  # by name, near first
    missing: tuple[str, ...]  # unknown sets of the table that were not found
    outliers: AnySet | None = None  # unknown images to train with; their set is not among those scored
    validation: dict[str, AnySet] = field(default_factory=dict)  # unknown images to choose by, none of them scored

    @classmethod
    def open(
        cls,
        root: Path,
        name: str,
        near: tuple[str, ...] = (),
        far: tuple[str, ...] = (),
        outliers: str = "",
        tune_on: tuple[str, ...] = (),
        track: Callable[[list], Iterable] = iter,
    ) -> Bench:
        """Load and check all of it; unknown sets of the table may be missing, those asked for may not.

        `outliers` names an unknown set to train with (its train split, or else its test split), `tune_on` sets to
        choose detectors' options by (their val split, or else their test split). What was used so is not scored.
        """
        row = benchmark(root, name, near, far)
        splits = {s: "val" if has(root, s, "val", row) else "test" for s in tune_on}
        used = ({outliers} if outliers else set()) | {s for s, split in splits.items() if split == "test"}
        if row.known_set in (*near, *far, *tune_on, outliers):
            raise ValueError(f"'{row.known_set}' is the known set; name sets of images of no known class")
        if asked := (used & {*near, *far}) | ({outliers} & {*tune_on}):
            raise ValueError(f"'{min(asked)}' is trained or tuned with; its images are not unknown any more")
        if twice := {*near} & {*far}:
            raise ValueError(f"'{min(twice)}' is named as near and as far; name it once")
        known = {split: _fitted(data, row) for split, data in known_sets(root, row, track).items()}
        sets = row.near + row.far
        missing = tuple(s for s in sets if s not in near + far and not has(root, s, "test", row))
        unknown = {
            s: _fitted(open_set(root, s, "test", row, track), row) for s in sets if s not in missing and s not in used
        }
        validation = {s: _fitted(open_set(root, s, split, row, track), row) for s, split in splits.items()}
        _check_apart(validation, unknown)
        return cls(row, known, unknown, missing, _outliers(root, outliers, row) if outliers else None, validation)

    def batches(self, dataset: AnySet, device: torch.device | str, batch_size: int = 500) -> Batches | Streams:
        """For evaluation: in order, as they are; images that are read from files come 256 at a time at most."""
        if isinstance(dataset, Listed):
            return streams(dataset, self.row, device, batch_size=min(batch_size, 256))
        return Batches(dataset, self.row.mean, self.row.std, batch_size=batch_size, device=device)

    def read(
        self,
        model: nn.Module,
        dataset: AnySet,
        perturb: Perturb | None = None,
        precision: str = "float32",
        mirrored: bool = False,
    ) -> Evidence:
        """One reading of a set. Logits are widened so that confidences near 1 do not tie in float32.

        `precision` is float16 for a faster and less exact reading of a sparse network on a CPU that computes in it.
        With `mirrored` every image is read as it is and mirrored, and the evidence is the mean of the two.
        """
        if precision not in ("float32", "float16"):
            raise ValueError(f"images are read in float32 or float16, not {precision}")
        if mirrored and not self.row.flip:
            raise ValueError(f"networks on {self.row.name} are not trained with mirrored images; read them as they are")

        def mirror(model: nn.Module, x: Tensor) -> Tensor:
            x = x.flip(-1)
            return x if perturb is None else perturb(model, x)

        views = (perturb, mirror) if mirrored else (perturb,)
        with sparse_reading(model, half=precision == "float16") as is_sparse:
            small = {"batch_size": max(16, 2**12 // self.row.size**2 * 16)}  # whose maps stay in a cache
            batches = self.batches(dataset, next(model.parameters()).device, **(small if is_sparse else {}))
            evidence = Evidence.mean(read(model, batches, view) for view in views)
        return replace(evidence, logits=evidence.logits.double())

    def digests(self) -> dict[str, str]:
        """The SHA-256 of what is scored, by the name of the set."""
        return {name: data.digest() for name, data in {KNOWN: self.known["test"], **self.unknown}.items()}

    def fingerprint(self) -> dict[str, Any]:
        """What a run is trained and measured on: the known images, labels and preparation, and any outliers."""
        parts = self.known | ({} if self.outliers is None else {"outliers": self.outliers})
        row = self.row
        prepared = {"size": row.size, "mean": list(row.mean), "std": list(row.std), "crop": row.crop, "flip": row.flip}
        return {"preparation": prepared} | {
            split: {
                "images": [len(data.labels)] if isinstance(data, Listed) else list(data.images.shape),
                "sha256": hashlib.sha256(
                    "\n".join(data.paths).encode() if isinstance(data, Listed) else data.images.data
                ).hexdigest(),
                "labels_sha256": hashlib.sha256(data.labels.data).hexdigest(),
            }
            for split, data in parts.items()
        }


def streams(listed: Listed, row: Benchmark, device: torch.device | str, **settings: Any) -> Streams:
    """A listed set as this benchmark wants it; a large one is decoded by worker processes."""
    workers = min(8, os.cpu_count() or 1) if len(listed.paths) > 2000 else 0
    return Streams(
        listed, row.mean, row.std, size=row.size, resize=row.resize, workers=workers, device=device, **settings
    )


def thumbnails(data: AnySet, indices: NDArray) -> NDArray[np.uint8]:
    """These images, small enough to be shown."""
    if isinstance(data, Listed):
        return np.stack([decode(path, 64, path) for path in (data.root / data.paths[i] for i in indices)])
    return data.images[indices]


def _fitted(data: AnySet, row: Benchmark) -> AnySet:
    """Images in memory in the benchmark's size; those on disk are resized when they are read."""
    return data if isinstance(data, Listed) else fit_to(data, row.size, row.size, row.channels)


def _each(data: AnySet) -> Iterable[object]:
    """What tells one image from another."""
    if isinstance(data, Listed):
        return ((data.root, path) for path in data.paths)
    return (image.tobytes() for image in data.images)


def _check_apart(validation: dict[str, AnySet], unknown: dict[str, AnySet]) -> None:
    """Refuse to choose by images that are scored."""
    scored = {image: name for name, data in unknown.items() for image in _each(data)} if validation else {}
    for name, data in validation.items():
        shared = [scored[image] for image in _each(data) if image in scored]
        if shared:
            raise DataError(
                f"{len(shared)} image(s) of '{name}' are among the test images of '{shared[0]}'; "
                "nothing may be chosen by images that are scored: name another set to tune on"
            )


def _outliers(root: Path, name: str, row: Benchmark) -> AnySet:
    """The set, with its classes numbered from 0; one class where it has no labels."""
    data = _fitted(open_set(root, name, "train" if has(root, name, "train", row) else "test", row), row)
    labels = np.unique(data.labels, return_inverse=True)[1].astype(data.labels.dtype)
    if isinstance(data, Listed):
        raise DataError(f"'{name}' stays on disk; outliers must fit into memory, so import a set of them")
    return data._replace(labels=labels)
