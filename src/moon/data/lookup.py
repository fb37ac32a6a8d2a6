"""Look up benchmarks: built-in ones, those of `<root>/benchmarks.toml`, and sets under the data root."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moon.data.benchmarks import BENCHMARKS, Benchmark, default_net, default_preset, sides, size_of
from moon.data.classes import check_known, missing_classes, names_of_labels
from moon.data.dataset import AnyPath, check_name, check_root, load, path_of
from moon.data.sets import has_set
from moon.data.streamed_folders import streamed_benchmark
from moon.data.toml_file import read_toml
from moon.errors import DataError
from moon.suggest import as_names, did_you_mean

DECLARATIONS = "benchmarks.toml"  # under the data root
_FIELDS: dict[str, tuple[type, str]] = {
    "near": (str, "a list of sets"),
    "far": (str, "a list of sets"),
    "net": (str, "a string"),
    "mean": (float, "a list of numbers"),
    "std": (float, "a list of numbers"),
    "crop": (int, "an integer"),
    "flip": (bool, "true or false"),
    "resize_known": (bool, "true or false"),
}


def find_benchmark(
    root: AnyPath, name: str, near: str | Sequence[str] = (), far: str | Sequence[str] = ()
) -> Benchmark:
    """Find a benchmark by name.

    The name is a key of `BENCHMARKS`, a table in `<root>/benchmarks.toml`, or a set under the root. In the last case
    size, channels, classes, mean and standard deviation come from its training images, and there are no unknown sets
    unless `near` and `far` name them.

    Args:
        root: The data root.
        name: The name of the benchmark.
        near: Near unknown sets, one name or several, in place of the benchmark's. One that the benchmark has as far is
            then near only, and the other way round.
        far: Far unknown sets, one name or several, in place of the benchmark's.

    Returns:
        The benchmark.

    Raises:
        ValueError: There is no benchmark of that name.
        DataError: A declaration, a set under the root or the name of a set is invalid.

    Example:
        >>> from moon import find_benchmark
        >>> find_benchmark("data", "cifar10", near=("cifar100",)).near
        ('cifar100',)
    """
    root, near, far = Path(root), as_names(near), as_names(far)
    check_root(root)
    for unknown in (*near, *far):
        check_name(unknown)
    tables = read_declarations(root)
    if misplaced := [key for key, value in tables.items() if key != name and not isinstance(value, dict)]:
        raise DataError(
            f"{root / DECLARATIONS}: '{misplaced[0]}' belongs to no benchmark; write [NAME] on a line before it"
        )
    if name in tables:
        found = declared_benchmark(root, name, tables[name])
    elif name in BENCHMARKS:
        found = BENCHMARKS[name]
    elif has_set(root, name, "train"):
        found = _benchmark_of_set(root, name)
    else:
        if has_set(root, name, "test"):
            raise DataError(
                f"{root / name}: has test images but no training images; import them with "
                f"`moon data import SOURCE --name {name} --split train`"
            )
        names = [*dict.fromkeys([*BENCHMARKS, *tables, *_own_sets(root)])]
        where = "" if root.is_dir() else f"; the data root {root} does not exist"
        raise ValueError(
            f"unknown benchmark '{name}'{did_you_mean(name, names)}; known: {', '.join(names)}; import a set of your "
            f"own with `moon data import`, or put train.npz and test.npz into {root / name}{where}"
        )
    others = [tuple(s for s in sets if s not in (*near, *far)) for sets in (found.near, found.far)]
    return replace(found, near=near or others[0], far=far or others[1])


def all_benchmarks(root: AnyPath) -> tuple[list[Benchmark], list[DataError]]:
    """List the benchmarks of the table and those declared in `<root>/benchmarks.toml`.

    Args:
        root: The data root.

    Returns:
        The benchmarks, and the errors of the declarations that are invalid.

    Raises:
        DataError: The data root is a file, or `benchmarks.toml` cannot be read.

    Example:
        >>> from moon.data import all_benchmarks
        >>> benchmarks, errors = all_benchmarks("nowhere")
        >>> benchmarks[0].name, errors
        ('digits', [])
    """
    root, benchmarks, errors = Path(root), list(BENCHMARKS.values()), []
    check_root(root)
    for name, table in read_declarations(root).items():
        try:
            benchmarks.append(declared_benchmark(root, name, table))
        except DataError as error:
            errors.append(error)
    return benchmarks, errors


def read_declarations(root: Path) -> dict[str, Any]:
    """Read the tables of `<root>/benchmarks.toml`, unchecked; a missing file has none."""
    path = root / DECLARATIONS
    return read_toml(path) if path.exists() or path.is_symlink() else {}


def declared_benchmark(root: Path, name: str, table: Any) -> Benchmark:
    """Make the benchmark that a table of `benchmarks.toml` declares; a DataError if the table is invalid.

    `known` in the table is a benchmark or a set under the root, by default the set of the same name. The other fields
    are those that differ from it.
    """
    where = f"{root / DECLARATIONS}: [{name}]"
    check_name(name)
    if name in BENCHMARKS:
        raise DataError(f"{where} is the name of a built-in benchmark, which cannot be changed; choose another name")
    if not isinstance(table, dict):
        raise DataError(f"{where} must be a table: write [{name}] on a separate line")
    if "folder" in table:
        return _declared_folder(root, name, table, where)
    known = table.get("known", name if has_set(root, name, "train") else None)
    if not isinstance(known, str):
        raise DataError(f'{where} must have known = "...", a benchmark or a set under the root')
    check_name(known, where)
    if known not in BENCHMARKS and not has_set(root, known, "train"):
        names = [n for n in (*BENCHMARKS, *_own_sets(root)) if n != name]
        raise DataError(
            f"{where} known = '{known}'{did_you_mean(known, names)} is neither a benchmark nor a set under {root}"
        )
    base = BENCHMARKS.get(known) or _benchmark_of_set(root, known)
    values = {key: _checked_field(where, key, value, base) for key, value in table.items() if key != "known"}
    benchmark = replace(base, name=name, known=base.known_set, **values)
    _check_unknown_sets(root, benchmark, where)
    return benchmark


def _declared_folder(root: Path, name: str, table: dict[str, Any], where: str) -> Benchmark:
    """Make the benchmark of a declaration whose images are streamed from a folder."""
    if other := [key for key in ("known", "crop", "flip", "resize_known") if key in table]:
        raise DataError(
            f"{where} '{other[0]}' cannot be used with 'folder': streamed images have their own augmentation"
        )
    base = streamed_benchmark(root, name, table, where)
    fields = {key: value for key, value in table.items() if key not in ("folder", "size", "resize")}
    benchmark = replace(base, **{key: _checked_field(where, key, value, base) for key, value in fields.items()})
    _check_unknown_sets(root, benchmark, where)
    return benchmark


def _own_sets(root: Path) -> list[str]:
    """Names of the sets under the root that have training images."""
    return sorted(path.parent.name for path in root.glob("*/train.npz") if not path.parent.name.startswith("."))


def _check_unknown_sets(root: Path, benchmark: Benchmark, where: str) -> None:
    """Raise a `DataError` if an unknown set is invalid, listed twice or missing.

    If the known set is missing as well, missing sets are accepted: results can be shown without the images.
    """
    sets = benchmark.near + benchmark.far
    has_images = has_set(root, benchmark.known_set, "train", benchmark)
    for unknown in sets:
        check_name(unknown, where)
        if sets.count(unknown) > 1 or unknown == benchmark.known_set:
            why = "is the known set" if unknown == benchmark.known_set else "is listed twice"
            raise DataError(f"{where} '{unknown}' {why}; list each unknown set once")
        if has_images and not has_set(root, unknown, "test", benchmark):
            place = f"a list of {benchmark.lists} in" if benchmark.lists else "under"
            found = [path.parent.name for path in root.glob("*/test.npz")]
            raise DataError(f"{where} names '{unknown}'{did_you_mean(unknown, found)}, which is not {place} {root}")


def _checked_field(where: str, key: str, value: Any, base: Benchmark) -> Any:
    """Check one field of a declaration."""
    if key not in _FIELDS:
        choices = f"choose from: known, {', '.join(_FIELDS)}"
        raise DataError(f"{where} has an unknown field '{key}'{did_you_mean(key, _FIELDS)}; {choices}")
    kind, expected = _FIELDS[key]
    is_list = isinstance(value, list)
    if kind is float and is_list:
        value = [float(v) if type(v) is int else v for v in value]
    if is_list != expected.startswith("a list") or any(type(v) is not kind for v in (value if is_list else [value])):
        raise DataError(f"{where} '{key}' must be {expected}, not {repr(value)[:100]}")
    if key in ("mean", "std"):
        if len(value) != base.channels:
            raise DataError(f"{where} '{key}' must have {base.channels} value(s), one per channel")
        if not all((0 <= v <= 1) if key == "mean" else (0 < v <= 1) for v in value):
            bounds = "in [0, 1]" if key == "mean" else "above 0 and at most 1"
            raise DataError(f"{where} '{key}' must be {bounds} (pixels are scaled to [0, 1]), not {value}")
    if key == "crop" and not 0 <= value < min(sides(base.size)):
        raise DataError(f"{where} 'crop' must be in 0..{min(sides(base.size)) - 1} pixels, not {value}")
    return tuple(value) if is_list else value


def _benchmark_of_set(root: Path, name: str) -> Benchmark:
    """Make a benchmark, without unknown sets, of a set under the root."""
    file = path_of(root, name, "train").stat()
    return _benchmark_of_file(root, name, (file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns))


@lru_cache(maxsize=64)
def _benchmark_of_file(root: Path, name: str, file: tuple[int, ...]) -> Benchmark:
    """`_benchmark_of_set`; images are read again only if the file, its size or its time of modification is another."""
    path, data = path_of(root, name, "train"), load(root, name, "train")
    height, width, channels = data.images.shape[1:]
    check_known(data.labels, np.iinfo(np.int64).max, path)
    num_known = len(data.classes) or len(np.unique(data.labels))
    if len(missing := missing_classes(data.labels, num_known)):
        gap = names_of_labels(missing[:1], data.classes)[0]
        rest = "remove its name, or add images" if data.classes else "number the classes from 0 without gaps"
        some = "" if data.classes else f", but some of class {data.labels.max()}"
        raise DataError(f"{path}: no image of class {gap}{some}; {rest}")
    if num_known < 2:
        raise DataError(f"{path}: has images of one class only; a classifier needs two classes or more")
    mean, std = _mean_and_std(data.images)
    size = size_of(height, width)
    net = default_net(size, channels)
    facts = {"num_known": num_known, "size": size, "channels": channels, "mean": mean, "std": std}
    return Benchmark(name, (), (), **facts, net=net, preset=default_preset(size, len(data.labels)))


def _mean_and_std(images: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the pixels per channel, exact and then rounded to four digits."""
    means, deviations = [], []
    for channel in range(images.shape[3]):
        parts = (images[start : start + 1024, ..., channel] for start in range(0, len(images), 1024))
        counts = sum(np.bincount(part.ravel(), minlength=256) for part in parts)
        count, total, squares = (int((counts * np.arange(256, dtype=np.int64) ** power).sum()) for power in (0, 1, 2))
        means.append(round(total / count / 255, 4))
        # Images of one value have no deviation to divide by.
        deviations.append(round(sqrt(count * squares - total**2) / count / 255, 4) or 1.0)
    return tuple(means), tuple(deviations)
