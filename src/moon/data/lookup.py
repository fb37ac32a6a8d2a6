"""Look up benchmarks: built-in ones, those of `<root>/benchmarks.toml`, and sets under the data root."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from moon.data.benchmarks import BENCHMARKS, Benchmark
from moon.data.dataset import AnyPath, DataError, check_name, load, path_of
from moon.data.sets import has_set
from moon.suggest import did_you_mean

DECLARATIONS = "benchmarks.toml"  # under the data root
_FIELDS: dict[str, tuple[type, str]] = {
    "near": (str, "a list of sets"),
    "far": (str, "a list of sets"),
    "net": (str, "a string"),
    "mean": (float, "a list of numbers"),
    "std": (float, "a list of numbers"),
    "crop": (int, "an integer"),
    "flip": (bool, "true or false"),
}


def find_benchmark(root: AnyPath, name: str, near: tuple[str, ...] = (), far: tuple[str, ...] = ()) -> Benchmark:
    """Find a benchmark by name.

    The name is a key of `BENCHMARKS`, a table in `<root>/benchmarks.toml`, or a set under the root. In the last case
    the size, channels and classes come from its training images, and there are no unknown sets unless `near` and `far`
    name them.

    Args:
        root: The data root.
        name: The name of the benchmark.
        near: Near unknown sets, in place of the benchmark's.
        far: Far unknown sets, in place of the benchmark's.

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
    root = Path(root)
    for unknown in (*near, *far):
        check_name(unknown)
    tables = read_declarations(root)
    if name in tables:
        found = declared_benchmark(root, name, tables[name])
    elif name in BENCHMARKS:
        found = BENCHMARKS[name]
    elif has_set(root, name, "train"):
        found = _benchmark_of_set(root, name)
    else:
        names = [*BENCHMARKS, *tables]
        raise ValueError(
            f"unknown benchmark '{name}'{did_you_mean(name, names)}; known: {', '.join(names)}; "
            f"for a set of your own put train.npz and test.npz into {root / name}, or declare it in "
            f"{root / DECLARATIONS}"
        )
    return replace(found, near=near or found.near, far=far or found.far)


def all_benchmarks(root: AnyPath) -> tuple[list[Benchmark], list[DataError]]:
    """List the benchmarks of the table and those declared in `<root>/benchmarks.toml`.

    Args:
        root: The data root.

    Returns:
        The benchmarks, and the errors of the declarations that are invalid.

    Example:
        >>> from moon.data import all_benchmarks
        >>> benchmarks, errors = all_benchmarks("nowhere")
        >>> benchmarks[0].name, errors
        ('digits', [])
    """
    root, benchmarks, errors = Path(root), list(BENCHMARKS.values()), []
    for name, table in read_declarations(root).items():
        try:
            benchmarks.append(declared_benchmark(root, name, table))
        except DataError as error:
            errors.append(error)
    return benchmarks, errors


def read_declarations(root: Path) -> dict[str, Any]:
    """Read the tables of `<root>/benchmarks.toml`, unchecked; a missing file has none."""
    path = root / DECLARATIONS
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{path}: is not valid TOML ({error})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from None


def declared_benchmark(root: Path, name: str, table: Any) -> Benchmark:
    """Make the benchmark that a table of `benchmarks.toml` declares.

    Args:
        root: The data root.
        name: The name of the table.
        table: Its contents: `known`, a benchmark or a set under the root, and the fields that differ from it.

    Returns:
        The benchmark.

    Raises:
        DataError: The declaration is invalid.
    """
    where = f"{root / DECLARATIONS}: [{name}]"
    check_name(name)
    if name in BENCHMARKS:
        raise DataError(f"{where} is the name of a built-in benchmark, which cannot be changed; choose another name")
    if not isinstance(table, dict):
        raise DataError(f"{where} must be a table: write [{name}] on a separate line")
    known = table.get("known")
    if not isinstance(known, str):
        raise DataError(f'{where} must have known = "...", a benchmark or a set under the root')
    check_name(known, where)
    if known == name or (known not in BENCHMARKS and not has_set(root, known, "train")):
        names = [*BENCHMARKS, *(path.parent.name for path in root.glob("*/train.npz"))]
        why = "is its own name" if known == name else f"is neither a benchmark nor a set under {root}"
        raise DataError(f"{where} known = '{known}' {why}{did_you_mean(known, [n for n in names if n != name])}")
    base = BENCHMARKS.get(known) or _benchmark_of_set(root, known)
    values = {key: _checked_field(where, key, value, base) for key, value in table.items() if key != "known"}
    benchmark = replace(base, name=name, known=base.known_set, **values)
    _check_unknown_sets(root, benchmark, where)
    return benchmark


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
            raise DataError(f"{where} names '{unknown}', which is not {place} {root}{did_you_mean(unknown, found)}")


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
        raise DataError(f"{where} '{key}' must be {expected}, not {value!r}")
    if key in ("mean", "std"):
        if len(value) != base.channels:
            raise DataError(f"{where} '{key}' must have {base.channels} value(s), one per channel")
        if not all((0 <= v <= 1) if key == "mean" else (0 < v <= 1) for v in value):
            bounds = "in [0, 1]" if key == "mean" else "above 0 and at most 1"
            raise DataError(f"{where} '{key}' must be {bounds} (pixels are scaled to [0, 1]), not {value}")
    if key == "crop" and not 0 <= value < base.size:
        raise DataError(f"{where} 'crop' must be in 0..{base.size - 1} pixels, not {value}")
    return tuple(value) if is_list else value


def _benchmark_of_set(root: Path, name: str) -> Benchmark:
    """Make a benchmark, without unknown sets, of a set under the root."""
    path, data = path_of(root, name, "train"), load(root, name, "train")
    height, width, channels = data.images.shape[1:]
    if height != width:
        raise DataError(f"{path}: images are {height}x{width}; they must be square")
    classes = np.unique(data.labels)
    if not np.array_equal(classes, np.arange(len(classes))):
        gap = int(np.flatnonzero(classes != np.arange(len(classes)))[0])
        raise DataError(
            f"{path}: no image of class {gap}, but some of class {classes[-1]}; number the classes from 0 without gaps"
        )
    return Benchmark(
        name, near=(), far=(), num_known=len(classes), size=height, channels=channels, mean=(0.5,) * channels,
        std=(0.5,) * channels, net="lenet" if channels == 1 else "resnet18",
    )  # fmt: skip
