"""A benchmark with its images: what runs are trained, measured and scored on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from moon.data import Batches, Benchmark, DataError, DataSet, benchmark, fit_to, has, known_sets, open_set
from moon.evidence import Evidence, read

Perturb = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True)
class Bench:
    """A benchmark's images, fitted to its size, ready for a device."""

    row: Benchmark
    known: dict[str, DataSet]  # train, val, test
    unknown: dict[str, DataSet]  # by name, near first
    missing: tuple[str, ...]  # unknown sets of the table that were not found
    outliers: DataSet | None = None  # unknown images to train with; their set is not among those scored
    validation: dict[str, DataSet] = field(default_factory=dict)  # unknown images to choose by, none of them scored

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
        shape = row.size, row.size, row.channels
        known = {split: fit_to(data, *shape) for split, data in known_sets(root, row, track).items()}
        sets = row.near + row.far
        missing = tuple(s for s in sets if s not in near + far and not has(root, s, "test", row))
        unknown = {
            s: fit_to(open_set(root, s, "test", row, track), *shape) for s in sets if s not in missing and s not in used
        }
        validation = {s: fit_to(open_set(root, s, split, row, track), *shape) for s, split in splits.items()}
        _check_apart(validation, unknown)
        return cls(
            row, known, unknown, missing, _outliers(root, outliers, shape, row) if outliers else None, validation
        )

    def batches(self, dataset: DataSet, device: torch.device | str) -> Batches:
        """For evaluation: in order, as they are."""
        return Batches(dataset, self.row.mean, self.row.std, batch_size=500, device=device)

    def read(self, model: nn.Module, dataset: DataSet, perturb: Perturb | None = None) -> Evidence:
        """One reading of a set. Logits are widened so that confidences near 1 do not tie in float32."""
        evidence = read(model, self.batches(dataset, next(model.parameters()).device), perturb)
        return replace(evidence, logits=evidence.logits.double())

    def fingerprint(self) -> dict[str, Any]:
        """What a run is trained and measured on: the known images and labels, and the outliers if there are any."""
        parts = self.known | ({} if self.outliers is None else {"outliers": self.outliers})
        return {
            split: {
                "images": list(data.images.shape),
                "sha256": hashlib.sha256(data.images.data).hexdigest(),
                "labels_sha256": hashlib.sha256(data.labels.data).hexdigest(),
            }
            for split, data in parts.items()
        }


def _check_apart(validation: dict[str, DataSet], unknown: dict[str, DataSet]) -> None:
    """Refuse to choose by images that are scored."""
    scored = {image.tobytes(): name for name, data in unknown.items() for image in data.images} if validation else {}
    for name, data in validation.items():
        shared = [scored[key] for image in data.images if (key := image.tobytes()) in scored]
        if shared:
            raise DataError(
                f"{len(shared)} image(s) of '{name}' are among the test images of '{shared[0]}'; "
                "nothing may be chosen by images that are scored: name another set to tune on"
            )


def _outliers(root: Path, name: str, shape: tuple[int, int, int], row: Benchmark) -> DataSet:
    """The set, with its classes numbered from 0; one class where it has no labels."""
    data = fit_to(open_set(root, name, "train" if has(root, name, "train", row) else "test", row), *shape)
    return data._replace(labels=np.unique(data.labels, return_inverse=True)[1].astype(data.labels.dtype))
