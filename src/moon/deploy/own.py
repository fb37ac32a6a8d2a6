"""Pack a network that was not trained by `moon train`: any traceable classifier, with loaders of its images."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from moon.data import AnySet, Benchmark, DataSet
from moon.data.benchmarks import size_of
from moon.data.dataset import as_dataset
from moon.deploy.bank import BANK
from moon.deploy.calibration import Guarantee
from moon.deploy.measure import CHECKED
from moon.deploy.packing import Trained, pack_network
from moon.evidence import Evidence, classifier_of, evaluation_mode, mapped, read
from moon.evidence.head import known_outputs
from moon.evidence.look import split_batch
from moon.evidence.outputs import only_tensor
from moon.export.runtime import runtime
from moon.files import check_output
from moon.recipe import make_recipe
from moon.run.images import BenchmarkImages
from moon.score.auto import AUTO, Track

_log = logging.getLogger(__name__)
_OUTSIDE = 0.01  # how far pixels may be below 0 or above 1, after rounding of the loader
_UNEVEN = 0.02  # of a step of 1 / 255, between which pixels lie on average that were not transformed


def pack(
    model: nn.Module,
    path: Path | str,
    *,
    train: Iterable,
    validation: Iterable,
    classes: Sequence[str],
    mean: Sequence[float],
    std: Sequence[float],
    detector: str = AUTO,
    guarantee: Guarantee | None = None,
    test: Iterable | None = None,
    near: Mapping[str, Iterable] | None = None,
    far: Mapping[str, Iterable] | None = None,
    resize: int = 0,
    bank: int = BANK,
    precision: str = "float16",
    checked: int = CHECKED,
    force: bool = False,
    track: Track = lambda items, _: items,
) -> dict[str, Any]:
    """Pack any traceable classifier, dense or sparse, into a `.moon` file, as `pack_run` packs a run.

    The network may come from your own loop, Lightning, timm or Hugging Face. Loaders yield batches as `moon.read` takes
    them: (inputs, labels), or mappings of one input and "labels". Inputs are images (N, C, H, W) normalised to
    (pixel / 255 - mean) / std, as the network was trained, without augmentation. All but the training images are held
    in memory, one byte per pixel and channel.

    Args:
        model: The network, which ends in a `Linear` layer or an `OpenHead`; it is not changed.
        path: The file to write.
        train: A loader of training images, with labels if the detector needs them; read only if the detector does.
        validation: A loader of known images that were not trained on, with labels.
        classes: The names of the known classes, by label.
        mean: Mean of each channel that the loaders subtract, of pixels from 0 to 1.
        std: Standard deviation of each channel that the loaders divide by.
        detector: The name of a detector, as for `pack_run`; `auto` is the one that the rule of `score_run` names.
        guarantee: As for `pack_run`.
        test: A loader of known images to measure on; None: the validation images, of which the threshold accepts what
            it should.
        near: Loaders of near unknown images, by name, to measure on.
        far: Loaders of far unknown images, by name, to measure on.
        resize: The length to which the shorter side of an image is resized before the centre is cropped; 0: that of the
            network's input.
        bank: As for `pack_run`.
        precision: As for `pack_run`.
        checked: As for `pack_run`.
        force: As for `pack_run`.
        track: As for `pack_run`.

    Returns:
        As for `pack_run`.

    Raises:
        ValueError: If `mean` and `std` are not those of the loaders, labels are missing, or as for `pack_run`.
        MissingPackage: If the package moon-runtime is not installed.

    Example:
        >>> import tempfile
        >>> import moon
        >>> images = moon.BenchmarkImages.open("data", "digits")  # embedded
        >>> train, val = (moon.Batches(images.splits[name], [0.5], [0.5]) for name in ("train", "val"))
        >>> shared = {"classes": "0123456789", "mean": [0.5], "std": [0.5]}
        >>> with tempfile.TemporaryDirectory() as folder:  # force: this network was not trained
        ...     path = f"{folder}/own.moon"
        ...     facts = moon.pack(moon.lenet(), path, train=train, validation=val, **shared, checked=0, force=True)
        >>> facts["detector"]
        'layers'
    """
    runtime()  # says so if it is missing, before anything is computed
    check_output(path := Path(path))
    known = known_outputs(model, classifier_of(model))
    if len(classes) != known:
        raise ValueError(f"{len(classes)} classes are named, but {type(model).__name__} has {known} known outputs")
    scale = np.array(mean, np.float32), np.array(std, np.float32)
    with evaluation_mode(model):
        held_out = _images(model, validation, scale, "validation", classes)
        splits: dict[str, AnySet] = {
            "val": held_out,
            "test": held_out if test is None else _images(model, test, scale, "test", classes),
        }
        near, far = near or {}, far or {}
        unknown: dict[str, AnySet] = {
            name: _images(model, loader, scale, name) for name, loader in {**near, **far}.items()
        }
        rows, columns, channels = held_out.images.shape[1:]
        prepared = tuple(map(float, mean)), tuple(map(float, std))
        shape = known, size_of(rows, columns), channels
        benchmark = Benchmark("own", tuple(near), tuple(far), *shape, *prepared, net="resnet18", resize=resize)

        def training(layers: bool) -> Evidence:
            found = read(model, train, layers=layers)
            return replace(found, logits=mapped(Tensor.double, found.logits))  # as for the other images

        trained = Trained(
            model,
            make_recipe(benchmark, "cross-entropy", topology="dense"),  # logits that were not normalised
            BenchmarkImages(benchmark, splits, unknown, ()),
            held_out.classes,
            {"net": type(model).__name__},
            training=training,
            count=_count(train),
        )
        return pack_network(trained, path, detector, guarantee, bank, precision, checked, force, track)


def _count(train: Iterable) -> int | None:
    """How many images a loader yields, if it or its data set says so."""
    if isinstance(train, (list, tuple)):
        return sum(len(next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0]) for batch in train)
    images: Any = train if isinstance(train, Tensor) else getattr(train, "dataset", getattr(train, "images", None))
    return len(images) if hasattr(images, "__len__") else None


def _images(
    model: nn.Module,
    loader: Iterable,
    scale: tuple[np.ndarray, np.ndarray],
    name: str,
    classes: Sequence[str] | None = None,
) -> DataSet:
    """The images of a loader as pixels, with their labels if classes are given."""
    images, labels = [], []
    for batch in loader:
        x, y = split_batch(batch, torch.device("cpu"))
        x = only_tensor(model, x)
        if x is None or x.ndim != 4 or x.shape[1] not in (1, 3) or len(scale[0]) != x.shape[1]:
            found = "several inputs" if x is None else f"inputs of shape {tuple(x.shape)}"
            raise ValueError(
                f"{name}: the loader yields {found}; a packed network takes images (N, C, H, W) with 1 or 3 channels, "
                "and mean and std have one value for each"
            )
        if classes is not None and (y is None or y.ndim != 1):
            raise ValueError(f"{name}: the loader must yield (images, labels), with one label per image")
        images.append(_pixels(x.float().numpy().transpose(0, 2, 3, 1), scale, name))
        labels.append(np.full(len(x), -1) if classes is None or y is None else y.numpy())
    if not images:
        raise ValueError(f"{name}: the loader yields no batch")
    pixels = np.concatenate(images)
    if (uneven := float(np.abs(pixels - pixels.round()).mean())) > _UNEVEN:
        _log.warning(
            "%s: the pixels (input * std + mean) * 255 are not whole numbers (%.2f from the next one on average) and "
            "are rounded: either the images were transformed after they were scaled, or mean and std are not those of "
            "the loader", name, uneven
        )  # fmt: skip
    return as_dataset(pixels.round().astype(np.uint8), np.concatenate(labels), name, tuple(classes or ()))


def _pixels(x: np.ndarray, scale: tuple[np.ndarray, np.ndarray], name: str) -> np.ndarray:
    """Pixels from 0 to 255, not rounded; a ValueError if they cannot be pixels."""
    pixels = x * scale[1] + scale[0]
    low, high = float(pixels.min()), float(pixels.max())
    if not -_OUTSIDE <= low <= high <= 1 + _OUTSIDE:
        raise ValueError(
            f"{name}: input * std + mean is between {low:.3g} and {high:.3g}, but pixels are between 0 and 1; give the "
            "mean and std that the loader normalises with"
        )
    return 255 * pixels.clip(0, 1)
