"""A benchmark with its images, and the evidence of a model on them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from moon.data import (
    AnySet,
    Benchmark,
    DataError,
    DataSet,
    ImageList,
    evaluation_batches,
    find_benchmark,
    fit_to,
    has_set,
    identities,
    known_splits,
    open_set,
)  # fmt: skip
from moon.evidence import Evidence, Storage, find_rotation_head, mapped, read
from moon.run.sparse_reading import faster_model
from moon.suggest import as_names

_log = logging.getLogger(__name__)
Perturb = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True)
class BenchmarkImages:
    """The images of a benchmark, resized to its size.

    Args:
        benchmark: The benchmark.
        splits: `train`, `val` and `test` of the known set.
        unknown: The unknown sets to score, by name, near ones first.
        missing: Unknown sets of the benchmark that were not found.
        outliers: Unknown images to train with; their set is not scored.
        tuning: Unknown images to tune options on; none of them is scored.

    Example:
        >>> from moon import BenchmarkImages
        >>> images = BenchmarkImages.open("data", "digits")  # embedded, so no data root is needed
        >>> list(images.splits), list(images.unknown)
        (['train', 'test', 'val'], ['letters', 'textures', 'photos'])
    """

    benchmark: Benchmark
    splits: dict[str, AnySet]
    unknown: dict[str, AnySet]
    missing: tuple[str, ...]
    outliers: AnySet | None = None
    tuning: dict[str, AnySet] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        root: Path | str,
        name: str,
        near: str | Sequence[str] = (),
        far: str | Sequence[str] = (),
        outliers: str = "",
        tune_on: str | Sequence[str] = (),
        track: Callable[[list], Iterable] = iter,
    ) -> BenchmarkImages:
        """Load and check the images of a benchmark.

        Unknown images of another size are resized, which is logged.

        Args:
            root: The data root.
            name: The benchmark.
            near: Near unknown sets in place of the benchmark's, one name or several; these must exist.
            far: Far unknown sets in place of the benchmark's, one name or several; these must exist.
            outliers: An unknown set to train with (its train split, else its test split).
            tune_on: Unknown sets to tune detectors' options on (their val split, else their test split). Images
                that are used for training or tuning are not scored.
            track: Wraps the list of files that are decoded, for a progress bar.

        Returns:
            The images; unknown sets of the benchmark that were not found are listed in `missing`.

        Raises:
            ValueError: A set has two roles.
            DataError: A set is missing or invalid, or images of the known set are not of the benchmark's size.
        """
        root, near, far, tune_on = Path(root), as_names(near), as_names(far), as_names(tune_on)
        benchmark = find_benchmark(root, name, near, far)
        tuned = {s: "val" if has_set(root, s, "val", benchmark) else "test" for s in tune_on}
        used = ({outliers} if outliers else set()) | {s for s, split in tuned.items() if split == "test"}
        if benchmark.known_set in (*near, *far, *tune_on, outliers):
            raise ValueError(f"'{benchmark.known_set}' is the known set; name unknown sets only")
        if clash := (used & {*near, *far}) | ({outliers} & {*tune_on}):
            raise ValueError(f"'{min(clash)}' is used for training or tuning, so it cannot be scored as unknown")
        if twice := [s for s in (*near, *far) if (*near, *far).count(s) > 1]:
            raise ValueError(f"'{twice[0]}' is named more than once as near or far; name it once")
        resized: dict[str, str] = {}  # sizes of sets that are not of the benchmark's size

        def fitted(data: AnySet, name: str) -> AnySet:
            if isinstance(data, ImageList) or _size(data) == _expected_size(benchmark):
                return data  # images on disk are resized when they are decoded
            resized[name] = _size(data)
            return fit_to(data, *benchmark.input_shape[1:], benchmark.channels)

        splits = {}
        for split, data in known_splits(root, benchmark, track).items():
            where = f"{benchmark.known_set}/{split}"
            _check_size(data, benchmark, where, root)
            splits[split] = fitted(data, where)
        sets = benchmark.near + benchmark.far
        missing = tuple(s for s in sets if s not in near + far and not has_set(root, s, "test", benchmark))

        def opened(name: str, split: str) -> AnySet:
            return fitted(open_set(root, name, split, benchmark, track), name)

        unknown = {s: opened(s, "test") for s in sets if s not in missing and s not in used}
        tuning = {s: opened(s, split) for s, split in tuned.items()}
        _check_disjoint(tuning, unknown)
        trained_with = None
        if outliers:
            split = "train" if has_set(root, outliers, "train", benchmark) else "test"
            trained_with = _as_outliers(opened(outliers, split), outliers)
        _check_unknown(
            splits, unknown | tuning | ({outliers: trained_with} if trained_with else {}), benchmark.known_set
        )
        if resized:
            sizes = ", ".join(f"{name} {size}" for name, size in resized.items())
            _log.info("resized to %s: %s", _expected_size(benchmark), sizes)
        return cls(benchmark, splits, unknown, missing, trained_with, tuning)

    def evidence(
        self,
        model: nn.Module,
        dataset: AnySet,
        perturb: Perturb | None = None,
        precision: str = "float32",
        mirrored: bool = False,
        rotate: bool = False,
        storage: Storage | None = None,
        layers: bool = False,
    ) -> Evidence:
        """Run the model on a set.

        Args:
            model: The network.
            dataset: One of the sets of this benchmark.
            perturb: A function that changes the inputs before the forward pass (ODIN).
            precision: "float16" is faster and less exact, for sparse networks on a CPU that supports it; it needs
                moon-runtime.
            mirrored: Average the evidence of each image and its mirror image.
            rotate: Whether to run the network on four rotations of each image (RotPred).
            storage: Where to keep the evidence if it is large; None: in memory.
            layers: Whether to look at inner layers, for `Evidence.layers`.

        Returns:
            The evidence; logits are float64, so that confidences near 1 do not tie.
        """
        if precision not in ("float32", "float16"):
            raise ValueError(f"precision must be float32 or float16, not {precision}")
        if mirrored and not self.benchmark.flip:
            raise ValueError(f"networks on {self.benchmark.name} are not trained with mirrored images")

        def perturbed(_: nn.Module, x: Tensor) -> Tensor:  # the faster model has no gradients
            return x if perturb is None else perturb(model, x)

        def mirror(_: nn.Module, x: Tensor) -> Tensor:
            return perturbed(_, x.flip(-1))

        if rotate:
            find_rotation_head(model)  # fails before anything is computed
        faster = self.faster_model(model, dataset, precision, layers)
        batches = evaluation_batches(dataset, self.benchmark, next(model.parameters()).device)
        plain = None if perturb is None else perturbed
        views = (plain, mirror) if mirrored else (plain,)
        how: Any = {"rotate": rotate, "storage": storage, "layers": layers}
        evidence = Evidence.mean(read(faster, batches, view, **how) for view in views)
        return replace(evidence, logits=mapped(Tensor.double, evidence.logits))

    def faster_model(
        self, model: nn.Module, dataset: AnySet, precision: str = "float32", layers: bool = False
    ) -> nn.Module:
        """A model to evaluate several sets with, in less time; see `moon.run.sparse_reading.faster_model`.

        `evidence` calls this, too, but then it is done for each set.

        Args:
            model: The network. Its weights must not change while the result is in use.
            dataset: One of the sets.
            precision: As for `evidence`, and the same.
            layers: As for `evidence`, and the same.

        Returns:
            A model without gradients that computes the same, or the model itself.
        """
        return faster_model(model, self.benchmark.input_shape, len(dataset.labels), precision, layers)

    def fingerprint(self) -> dict[str, Any]:
        """The data of a run: the known classes, digests of the known images and labels and of the outliers, and their
        preparation."""
        parts = self.splits | ({} if self.outliers is None else {"outliers": self.outliers})
        b = self.benchmark
        size = b.size if isinstance(b.size, int) else list(b.size)
        prepared = {"size": size, "mean": list(b.mean), "std": list(b.std), "crop": b.crop, "flip": b.flip}
        prepared |= {"resize": b.resize} if b.folder else {}
        classes = list(self.splits["train"].classes)
        known = {"num_known": b.num_known, "channels": b.channels, "size": size, "classes": classes}
        return {"known": known, "preparation": prepared} | {
            split: {
                "images": [len(data.labels)] if isinstance(data, ImageList) else list(data.images.shape),
                "sha256": hashlib.sha256(
                    "\n".join(data.paths).encode() if isinstance(data, ImageList) else data.images.data
                ).hexdigest(),
                "labels_sha256": hashlib.sha256(data.labels.data).hexdigest(),
            }
            for split, data in parts.items()
        }


def _size(data: DataSet) -> str:
    """Height, width and channels of the images, such as 32x32x3."""
    return "x".join(map(str, data.images.shape[1:]))


def _expected_size(benchmark: Benchmark) -> str:
    channels, height, width = benchmark.input_shape
    return f"{height}x{width}x{channels}"


def _check_size(data: AnySet, benchmark: Benchmark, where: str, root: Path) -> None:
    """Raise a `DataError` if known images are not of the benchmark's size, unless the benchmark resizes them."""
    expected = _expected_size(benchmark)
    if isinstance(data, ImageList) or benchmark.resize_known or _size(data) == expected:
        return
    options = f"--size {expected.rpartition('x')[0]}" + (" --grey" if benchmark.channels == 1 else "")
    raise DataError(
        f"{where}: images are {_size(data)}, but the known images of {benchmark.name} are {expected}; import them "
        f"again (`moon data import` with {options}), or declare a benchmark with resize_known = true in "
        f"{root / 'benchmarks.toml'}"
    )


def _check_disjoint(tuning: dict[str, AnySet], unknown: dict[str, AnySet]) -> None:
    """Raise a `DataError` if an image to tune on is also scored."""
    scored = {image: name for name, data in unknown.items() for image in identities(data)} if tuning else {}
    for name, data in tuning.items():
        shared = [scored[image] for image in identities(data) if image in scored]
        if shared:
            raise DataError(
                f"{len(shared)} image(s) of '{name}' are among the test images of '{shared[0]}'; "
                "options must not be tuned on images that are scored; name another set to tune on"
            )


def _check_unknown(splits: dict[str, AnySet], unknown: dict[str, AnySet], known_set: str) -> None:
    """Log a warning for each unknown set with images of the known set, the same pixels; a DataError if all are."""
    known = {image for data in splits.values() for image in identities(data)} if unknown else set()
    for name, data in unknown.items():
        shared, count = sum(image in known for image in identities(data)), len(data.labels)
        if shared == count:
            raise DataError(f"{name}: all {count:,} images are images of the known set {known_set}; name another set")
        if shared:
            _log.warning(
                "%s: %s of %s images are images of the known set %s, which nothing can tell from known images; remove "
                "them", name, f"{shared:,}", f"{count:,}", known_set
            )  # fmt: skip


def _as_outliers(data: AnySet, name: str) -> AnySet:
    """The set with its classes numbered from 0; one class if it has no labels."""
    if isinstance(data, ImageList):
        raise DataError(f"'{name}' is streamed from disk, but outliers must fit into memory; import a smaller set")
    labels = np.unique(data.labels, return_inverse=True)[1].astype(data.labels.dtype)
    return data._replace(labels=labels, classes=())
