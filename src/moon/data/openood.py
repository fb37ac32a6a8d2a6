"""OpenOOD's image lists, in its folder layout.

<root>/benchmark_imglist/<known set>/<split>_<set>.txt    one `<path> <label>` per line, label -1 for unknown
<root>/images_classic/, <root>/images_largescale/         the folders that paths are relative to
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from moon.data.benchmarks import Size
from moon.data.dataset import DataSet, Track, check_name, load, save
from moon.data.image_files import read_list
from moon.data.image_lists import check_inside, read_entries
from moon.data.streams import ImageList
from moon.errors import DataError

IMAGES = ("images_classic", "images_largescale")
_CACHE = ".moon-cache"  # under the root: decoded lists, by a digest of the list and the state of its images

# Number of images in each list, by (known set, version). Lists that differ between versions identify the version.
_FAR_OF_CIFAR = {"mnist": 70000, "svhn": 26032, "texture": 5640}
LIST_SIZES: dict[tuple[str, str], Mapping[str, int]] = {
    ("mnist", "v1"): {
        "train_mnist": 60000, "val_mnist": 996, "test_mnist": 9004, "test_notmnist": 17724,
        "test_fashionmnist": 10000, "test_texture": 5640, "test_cifar10": 10000, "test_tin": 10000,
        "test_places365": 36500,
    },
    ("cifar10", "v1"): {
        "train_cifar10": 50000, "val_cifar10": 1000, "test_cifar10": 9000, "test_cifar100": 9000, "test_tin": 8793,
        "test_places365": 35195, "val_cifar100": 1000, **{f"test_{name}": n for name, n in _FAR_OF_CIFAR.items()},
    },
    ("cifar10", "v1.5"): {
        "train_cifar10": 50000, "val_cifar10": 1000, "test_cifar10": 9000, "test_cifar100": 9000, "test_tin": 7793,
        "test_places365": 35195, "val_tin": 1000, **{f"test_{name}": n for name, n in _FAR_OF_CIFAR.items()},
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
        "test_places365": 33773, **{f"test_{name}": n for name, n in _FAR_OF_CIFAR.items()},
    },
    ("cifar100", "v1.5"): {
        "train_cifar100": 50000, "val_cifar100": 1000, "test_cifar100": 9000, "test_cifar10": 10000, "test_tin": 6526,
        "test_places365": 33773, "val_tin": 972, **{f"test_{name}": n for name, n in _FAR_OF_CIFAR.items()},
    },
}  # fmt: skip


def list_path(root: Path, known_set: str, name: str, split: str) -> Path:
    """Return the path of an image list of a benchmark; the file need not exist."""
    check_name(name)
    return root / "benchmark_imglist" / known_set / f"{split}_{name}.txt"


def open_list(root: Path, known_set: str, version: str, name: str, split: str) -> ImageList:
    """Open an image list of OpenOOD without decoding its images; a `DataError` if it is of another version."""
    path = list_path(root, known_set, name, split)
    if not path.is_file():
        raise DataError(f"{path}: no such list; put OpenOOD's benchmark_imglist under {root}")
    entries = read_entries(path)
    _check_version(path, known_set, version, f"{split}_{name}", len(entries))
    first = entries[0][0]
    roots = [root / folder for folder in IMAGES if (root / folder / first).exists()]
    if not roots:
        raise DataError(f"{path}:1: {first} is neither under {root / IMAGES[0]} nor under {root / IMAGES[1]}")
    check_inside(entries, roots[0])
    labels = np.array([label for _, label, _ in entries], np.int64)
    return ImageList(roots[0], tuple(relative for relative, _, _ in entries), labels)


def read_list_cached(
    root: Path, known_set: str, version: str, name: str, split: str, size: Size, track: Track = iter
) -> DataSet:
    """Read the images of an OpenOOD list into memory, at `size` pixels; decoded images are cached under the root."""
    images = open_list(root, known_set, version, name, split)
    path = list_path(root, known_set, name, split)
    key = _cache_key(images, size)
    try:
        return load(root / _CACHE, key, split)
    except DataError:
        dataset = read_list(path, images.root, size, track)
        save(dataset, root / _CACHE, key, split)
        return dataset


def _cache_key(images: ImageList, size: Size) -> str:
    """Digest of a list and of the size and time of modification of its images: changed images are decoded again."""
    digest = hashlib.sha256(f"{images.root.name} {size}".encode())
    for relative, label in zip(images.paths, images.labels.tolist(), strict=True):
        try:
            file = (images.root / relative).stat()
        except (OSError, ValueError):
            raise DataError(f"{images.root / relative}: no such file") from None
        digest.update(f"\n{relative} {label} {file.st_size} {file.st_mtime_ns}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:24]


def _check_version(path: Path, known_set: str, version: str, key: str, count: int) -> None:
    """Raise a `DataError` if the number of images in a list is not that of the version."""
    expected = LIST_SIZES[known_set, version].get(key)
    if expected is None or count == expected:
        return
    others = [
        other
        for (other_set, other), sizes in LIST_SIZES.items()
        if other_set == known_set and other != version and sizes.get(key) == count
    ]
    if others:
        raise DataError(
            f"{path}: {count:,} images, as in the list of {others[0]}; this benchmark is {version} ({expected:,}). "
            f"Use {known_set}-{others[0]}, or put the lists of {version} there: results of mixed versions are not "
            "comparable"
        )
    raise DataError(f"{path}: {count:,} images; the list of OpenOOD {version} has {expected:,}. Is it truncated?")
