"""OpenOOD's folder layout and image lists, read as they are.

<root>/benchmark_imglist/<id>/<split>_<set>.txt      `<path> <label>` a line, -1 for unknown
<root>/images_classic/..., <root>/images_largescale/...   what the paths start from
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from moon.data.dataset import DataError, DataSet, load, save
from moon.data.readers import read_entries, read_list
from moon.data.streams import Listed

IMAGES = ("images_classic", "images_largescale")
_CACHE = ".moon-cache"  # under the root: decoded lists, by their content

# Images in each list; a set that differs between the versions tells which one a list is of.
_CIFAR_FAR = {"mnist": 70000, "svhn": 26032, "texture": 5640}
SIZES: dict[tuple[str, str], Mapping[str, int]] = {
    ("mnist", "v1"): {
        "train_mnist": 60000, "val_mnist": 996, "test_mnist": 9004, "test_notmnist": 17724,
        "test_fashionmnist": 10000, "test_texture": 5640, "test_cifar10": 10000, "test_tin": 10000,
        "test_places365": 36500,
    },
    ("cifar10", "v1"): {
        "train_cifar10": 50000, "val_cifar10": 1000, "test_cifar10": 9000, "test_cifar100": 9000, "test_tin": 8793,
        "test_places365": 35195, "val_cifar100": 1000, **{f"test_{name}": n for name, n in _CIFAR_FAR.items()},
    },
    ("cifar10", "v1.5"): {
        "train_cifar10": 50000, "val_cifar10": 1000, "test_cifar10": 9000, "test_cifar100": 9000, "test_tin": 7793,
        "test_places365": 35195, "val_tin": 1000, **{f"test_{name}": n for name, n in _CIFAR_FAR.items()},
    },
    ("imagenet", "v1"): {
        "val_imagenet": 5000, "test_imagenet": 45000, "test_species": 10000, "test_inaturalist": 10000,
        "test_openimage_o": 15869, "val_openimage_o": 1763, "test_imagenet_o": 2000, "test_texture": 5160,
        "test_mnist": 9000,
    },
    ("imagenet", "v1.5"): {
        "val_imagenet": 5000, "test_imagenet": 45000, "test_ssb_hard": 49000, "test_ninco": 5879,
        "test_inaturalist": 10000, "test_textures": 5160, "test_openimage_o": 15869, "val_openimage_o": 1763,
    },
    ("cifar100", "v1"): {
        "train_cifar100": 50000, "val_cifar100": 1000, "test_cifar100": 9000, "test_cifar10": 10000, "test_tin": 7498,
        "test_places365": 33773, **{f"test_{name}": n for name, n in _CIFAR_FAR.items()},
    },
    ("cifar100", "v1.5"): {
        "train_cifar100": 50000, "val_cifar100": 1000, "test_cifar100": 9000, "test_cifar10": 10000, "test_tin": 6526,
        "test_places365": 33773, "val_tin": 972, **{f"test_{name}": n for name, n in _CIFAR_FAR.items()},
    },
}  # fmt: skip


def list_path(root: Path, benchmark: str, name: str, split: str) -> Path:
    return root / "benchmark_imglist" / benchmark / f"{split}_{name}.txt"


def listed(root: Path, benchmark: str, version: str, name: str, split: str) -> Listed:
    """The set of a list, its images left where they are; a list of another version than the benchmark's is refused."""
    path = list_path(root, benchmark, name, split)
    if not path.is_file():
        raise DataError(f"{path}: no such list; put OpenOOD's benchmark_imglist under {root}")
    entries = read_entries(path)
    _check_version(path, benchmark, version, f"{split}_{name}", len(entries))
    first = entries[0][0]
    roots = [root / folder for folder in IMAGES if (root / folder / first).exists()]
    if not roots:
        raise DataError(f"{path}:1: {first} is neither under {root / IMAGES[0]} nor under {root / IMAGES[1]}")
    inside = roots[0].resolve()
    for relative, _, where in entries:
        if not (inside / relative).resolve().is_relative_to(inside):
            raise DataError(f"{where}: '{relative}' leaves the root {inside}")
    labels = np.array([label for _, label, _ in entries], np.int64)
    return Listed(roots[0], tuple(relative for relative, _, _ in entries), labels)


def read_set(
    root: Path,
    benchmark: str,
    version: str,
    name: str,
    split: str,
    size: int,
    track: Callable[[list], Iterable] = iter,
) -> DataSet:
    """The images of a list, decoded once: the second time they are read from a cache beside them."""
    found = listed(root, benchmark, version, name, split)
    path = list_path(root, benchmark, name, split)
    key = hashlib.sha256(path.read_bytes() + f"{found.root.name} {size}".encode()).hexdigest()[:24]
    try:
        return load(root / _CACHE, key, split)
    except DataError:
        data = read_list(path, found.root, size, track)
        save(data, root / _CACHE, key, split)
        return data


def _check_version(path: Path, benchmark: str, version: str, key: str, count: int) -> None:
    expected = SIZES[benchmark, version].get(key)
    if expected is None or count == expected:
        return
    others = [v for (of, v), sizes in SIZES.items() if of == benchmark and v != version and sizes.get(key) == count]
    if others:
        raise DataError(
            f"{path}: {count:,} images, which is the list of {others[0]}; this benchmark is {version} ({expected:,}). "
            f"Use {benchmark}-{others[0]}, or put the lists of {version} there: mixed versions compare with nothing"
        )
    raise DataError(f"{path}: {count:,} images; the list of OpenOOD {version} has {expected:,}. Is it cut off?")
