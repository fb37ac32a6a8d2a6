"""The table of benchmarks: which known set is tested against which unknown ones, and how images are normalised."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from moon.data.dataset import DataError, DataSet, load, path_of, split_off
from moon.data.embedded import SPLITS as EMBEDDED
from moon.data.embedded import embedded
from moon.data.openood import list_path, listed, read_set
from moon.data.streams import Listed
from moon.suggest import did_you_mean

AnySet = DataSet | Listed
DECLARED = "benchmarks.toml"  # under the root
_DECLARABLE: dict[str, tuple[type, str]] = {
    "near": (str, "a list of sets"),
    "far": (str, "a list of sets"),
    "net": (str, "a word"),
    "mean": (float, "a list of numbers"),
    "std": (float, "a list of numbers"),
    "crop": (int, "a whole number"),
    "flip": (bool, "true or false"),
}


@dataclass(frozen=True)
class Benchmark:
    """A known set with its near and far unknown sets; images are fitted to `size` and `channels`."""

    name: str  # of the known set too, unless `known` says another
    near: tuple[str, ...]
    far: tuple[str, ...]
    num_known: int
    size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    net: str
    crop: int = 4
    flip: bool = True
    lists: str = ""  # the version of OpenOOD's image lists; "": the sets as they are under the root
    known: str = ""  # the name of the known set, where it is not that of the benchmark
    resize: int = 0  # the shorter side before the centre crop, of images that stay on disk; 0: all are in memory
    validation: tuple[str, ...] = ()  # unknown sets that the lists set aside to choose options by

    @property
    def known_set(self) -> str:
        return self.known or self.name


_CIFAR_FAR = ("mnist", "svhn", "dtd", "places")
_HALF = (0.5,)
BENCHMARKS = {
    row.name: row
    for row in (
        # Digits and letters change their meaning when mirrored, so the embedded default is not flipped.
        Benchmark(
            "digits", ("letters",), ("textures", "photos"), 10, 28, 1, _HALF, _HALF, "lenet-norm", crop=2, flip=False
        ),
        Benchmark(
            "mnist", ("notmnist", "fashionmnist"), ("dtd", "cifar10", "tin", "places"), 10, 28, 1, _HALF, _HALF, "lenet"
        ),
        Benchmark(
            "cifar10", ("cifar100", "tin"), _CIFAR_FAR, 10, 32, 3,
            (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), "resnet18",
        ),
        Benchmark(
            "cifar100", ("cifar10", "tin"), _CIFAR_FAR, 100, 32, 3,
            (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), "resnet18",
        ),
    )
}  # fmt: skip


def _with_lists(known: str, version: str, near: tuple[str, ...], far: tuple[str, ...], validation: str) -> Benchmark:
    """A benchmark as OpenOOD publishes it."""
    row = BENCHMARKS[known]
    return replace(
        row, name=f"{known}-{version}", near=near, far=far, lists=version, known=known, validation=(validation,),
        channels=3, mean=row.mean * (3 // len(row.mean)), std=row.std * (3 // len(row.std)),
    )  # fmt: skip


def _imagenet(version: str, near: tuple[str, ...], far: tuple[str, ...]) -> Benchmark:
    """ImageNet-1K, streamed from disk."""
    return Benchmark(
        f"imagenet-{version}", near, far, 1000, 224, 3, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "resnet50",
        lists=version, known="imagenet", resize=256, validation=("openimage_o",),
    )  # fmt: skip


_FAR = ("mnist", "svhn", "texture", "places365")
_MNIST_FAR = ("texture", "cifar10", "tin", "places365")
BENCHMARKS |= {
    row.name: row
    for row in (
        _with_lists("mnist", "v1", ("notmnist", "fashionmnist"), _MNIST_FAR, "notmnist"),
        _with_lists("cifar10", "v1", ("cifar100", "tin"), _FAR, "cifar100"),
        _with_lists("cifar10", "v1.5", ("cifar100", "tin"), _FAR, "tin"),
        _with_lists("cifar100", "v1", ("cifar10", "tin"), _FAR, "tin"),
        _with_lists("cifar100", "v1.5", ("cifar10", "tin"), _FAR, "tin"),
        _imagenet("v1", ("species", "inaturalist", "openimage_o", "imagenet_o"), ("texture", "mnist")),
        _imagenet("v1.5", ("ssb_hard", "ninco"), ("inaturalist", "textures", "openimage_o")),
    )
}


def has(root: Path, name: str, split: str, row: Benchmark | None = None) -> bool:
    """Whether the set can be loaded, for this benchmark if it has lists of its own."""
    if row is not None and row.lists:
        return list_path(root, row.known_set, name, split).is_file()
    return split in EMBEDDED[name] if name in EMBEDDED else path_of(root, name, split).is_file()


def open_set(
    root: Path, name: str, split: str, row: Benchmark | None = None, track: Callable[[list], Iterable] = iter
) -> AnySet:
    """The embedded set of that name, or the one under the root, or, of a benchmark with lists, what its list names."""
    if row is not None and row.resize:
        return listed(root, row.known_set, row.lists, name, split)
    if row is not None and row.lists:
        return read_set(root, row.known_set, row.lists, name, split, row.size, track)
    return embedded(name, split) if name in EMBEDDED else load(root, name, split)


def benchmark(root: Path, name: str, near: tuple[str, ...] = (), far: tuple[str, ...] = ()) -> Benchmark:
    """The benchmark of that name: of the table, declared under the root, or a known set there with no unknown ones.

    `near` and `far` name other unknown sets than the table's.
    """
    own = declarations(root)
    if name in own:
        found = declared(root, name, own[name])
    elif name in BENCHMARKS:
        found = BENCHMARKS[name]
    elif has(root, name, "train"):
        found = _own(root, name)
    else:
        others = [*BENCHMARKS, *own]
        raise ValueError(
            f"unknown benchmark '{name}'{did_you_mean(name, others)}; known: {', '.join(others)}; "
            f"for a set of your own put train.npz and test.npz into {root / name}, or declare it in {root / DECLARED}"
        )
    return replace(found, near=near or found.near, far=far or found.far)


def _own(root: Path, name: str) -> Benchmark:
    """A known set of one's own under the root, with no unknown sets."""
    data = load(root, name, "train")
    height, width, channels = data.images.shape[1:]
    if height != width:
        raise DataError(f"{path_of(root, name, 'train')}: images are {height}x{width}; they must be square")
    classes = np.unique(data.labels)
    if not np.array_equal(classes, np.arange(len(classes))):
        gap = int(np.flatnonzero(classes != np.arange(len(classes)))[0])
        raise DataError(
            f"{path_of(root, name, 'train')}: no image of class {gap}, but of {classes[-1]}; "
            "number the classes from 0 without a gap"
        )
    return Benchmark(
        name, (), (), len(classes), height, channels, _HALF * channels, _HALF * channels,
        "lenet" if channels == 1 else "resnet18",
    )  # fmt: skip


def declarations(root: Path) -> dict[str, Any]:
    """The tables of `<root>/benchmarks.toml`, as they are; a file that is not there declares nothing."""
    path = root / DECLARED
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None


def declared(root: Path, name: str, table: Any) -> Benchmark:
    """The benchmark that a table declares: its `known` set, a benchmark's or one under the root, and what differs."""
    where = f"{root / DECLARED}: [{name}]"
    path_of(root, name, "test")  # a name that could lead elsewhere is refused
    if name in BENCHMARKS:
        raise DataError(f"{where} is a benchmark of the table, whose name always means the same; choose another name")
    if not isinstance(table, dict):
        raise DataError(f"{where} must be a table, such as [{name}] on a line of its own")
    known = table.get("known")
    if not isinstance(known, str):
        raise DataError(f'{where} must have known = "...", a benchmark or a set under the root')
    if known == name or (known not in BENCHMARKS and not has(root, known, "train")):
        there = [*BENCHMARKS, *(path.parent.name for path in root.glob("*/train.npz"))]
        why = "is its own name" if known == name else f"is neither a benchmark nor a set under {root}"
        raise DataError(f"{where} known = '{known}' {why}{did_you_mean(known, [n for n in there if n != name])}")
    base = BENCHMARKS.get(known) or _own(root, known)
    values = {key: _declarable(where, key, value, base) for key, value in table.items() if key != "known"}
    row = replace(base, name=name, known=base.known_set, **values)
    sets = row.near + row.far
    is_here = has(root, row.known_set, "train", row)  # where it is not, only what was measured elsewhere is looked at
    for unknown in sets:
        if sets.count(unknown) > 1 or unknown == row.known_set:
            why = "is the known set" if unknown == row.known_set else "is named twice"
            raise DataError(f"{where} '{unknown}' {why}; name each set of images of no known class once")
        if is_here and not has(root, unknown, "test", row):
            place = f"a list of {row.lists} in" if row.lists else "under"
            found = [path.parent.name for path in root.glob("*/test.npz")]
            raise DataError(f"{where} names '{unknown}', which is not {place} {root}{did_you_mean(unknown, found)}")
    return row


def _declarable(where: str, key: str, value: Any, base: Benchmark) -> Any:
    """A value of a declaration, checked."""
    if key not in _DECLARABLE:
        raise DataError(f"{where} has no '{key}'{did_you_mean(key, _DECLARABLE)}; known: known, {', '.join(_DECLARABLE)}")
    kind, called = _DECLARABLE[key]
    several = isinstance(value, list)
    if kind is float and several:
        value = [float(v) if type(v) is int else v for v in value]
    if several != called.startswith("a list") or any(type(v) is not kind for v in (value if several else [value])):
        raise DataError(f"{where} '{key}' must be {called}, not {value!r}")
    if key in ("mean", "std"):
        if len(value) != base.channels:
            raise DataError(f"{where} '{key}' must have {base.channels} value(s), one a channel")
        if not all((0 <= v <= 1) if key == "mean" else (0 < v <= 1) for v in value):
            raise DataError(
                f"{where} '{key}' must be of pixels between 0 and 1{' and not 0' * (key == 'std')}, not {value}"
            )
    if key == "crop" and not 0 <= value < base.size:
        raise DataError(f"{where} 'crop' must be in 0..{base.size - 1} pixels, not {value}")
    return tuple(value) if several else value


def known_sets(root: Path, row: Benchmark, track: Callable[[list], Iterable] = iter) -> dict[str, AnySet]:
    """train, val and test of the known set, with labels checked; val is a tenth of test where there is no own."""
    name = row.known_set
    sets = {split: open_set(root, name, split, row, track) for split in ("train", "test")}
    if has(root, name, "val", row):
        sets["val"] = open_set(root, name, "val", row, track)
    else:
        test = sets["test"]
        if isinstance(test, Listed):
            raise DataError(f"{list_path(root, name, name, 'val')}: no such list")
        sets["val"], sets["test"] = split_off(test, 0.1)
        if not len(sets["val"].labels):
            raise DataError(f"{path_of(root, name, 'test')}: too few images a class to take a tenth for validation")
    for split, dataset in sets.items():
        low, high = dataset.labels.min(), dataset.labels.max()
        if low < 0 or high >= row.num_known:
            raise DataError(f"{row.name}/{split}: labels {low}..{high}; the known classes are 0..{row.num_known - 1}")
    return sets
