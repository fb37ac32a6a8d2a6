"""A data set is two arrays. The native form on disk is `<root>/<name>/<split>.npz`."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray


class DataError(ValueError):
    """Data that cannot be used; the message names the file or line and says what is wrong."""


class DataSet(NamedTuple):
    """Images and their labels; the label of an input of no known class is -1."""

    images: NDArray[np.uint8]  # (N, H, W, C)
    labels: NDArray[np.int64]  # (N,)

    def take(self, indices: NDArray) -> DataSet:
        """The samples with these indices, or where this mask is true."""
        return DataSet(self.images[indices], self.labels[indices])

    def digest(self) -> str:
        """The SHA-256 of all pixels and labels."""
        found = hashlib.sha256(np.ascontiguousarray(self.images).data)
        found.update(np.ascontiguousarray(self.labels).data)
        return found.hexdigest()


def checked(images, labels, where: object) -> DataSet:
    """The two arrays as a data set, or a `DataError` that names `where` they came from."""
    images, labels = np.asarray(images), np.asarray(labels)
    if images.ndim == 3:
        images = images[..., None]  # grey images may lack the channel axis
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
        raise DataError(
            f"{where}: images are {images.dtype} of shape {images.shape}; they must be uint8 (N, H, W, 1 or 3)"
        )
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise DataError(f"{where}: labels are {labels.dtype} of shape {labels.shape}; they must be whole numbers (N,)")
    if len(images) != len(labels):
        raise DataError(f"{where}: {len(images)} images but {len(labels)} labels; there must be one per image")
    if images.size == 0:
        raise DataError(f"{where}: no images")
    labels = labels.astype(np.int64)
    if labels.min() < -1:
        raise DataError(f"{where}: label {labels.min()} of image {labels.argmin()}; the least is -1, for unknown")
    return DataSet(np.require(images, requirements=["C", "W"]), labels)


def path_of(root: Path, name: str, split: str) -> Path:
    """Where the set is, or would be; names that lead elsewhere are refused."""
    for word in (name, split):
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", word):
            raise DataError(f"'{word}' cannot name a data set; use letters, digits, '.', '_' and '-'")
    return root / name / f"{split}.npz"


def load(root: Path, name: str, split: str) -> DataSet:
    """Read `<root>/<name>/<split>.npz`."""
    path = path_of(root, name, split)
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            if missing := {"images", "labels"} - set(file.files):
                raise DataError(f"{path}: has no array '{min(missing)}'; it has {sorted(file.files)}")
            return checked(file["images"], file["labels"], path)
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such file; import the set with `moon data import`, or point --data (or MOON_DATA) to it"
        ) from None
    except DataError:
        raise
    except (Exception, MemoryError) as error:  # a damaged file can break NumPy's reader in many ways
        raise DataError(f"{path}: cannot be read as .npz ({error or type(error).__name__})") from error


def save(dataset: DataSet, root: Path, name: str, split: str) -> Path:
    """Write `<root>/<name>/<split>.npz`; a half-written file never bears the final name."""
    path = path_of(root, name, split)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".npz.part")
    with partial.open("wb") as file:
        np.savez(file, images=dataset.images, labels=dataset.labels)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    return path


# Whole public sets in their original order, as `DataSet.digest` sees them: (images, SHA-256). They were taken from one
# copy of each; their homes publish digests of archives, not of pixels, so no second source has confirmed them.
PUBLISHED = {
    ("cifar10", "train"): (50000, "67e12c2a5906880a4fe5595fe6d768185ad7ca587f35d3a7ece3c3b8b85035d2"),
    ("cifar10", "test"): (10000, "e54a434ec35094516eacbaac0f2f9550358d985e9d1f71b47d41d333c15ba304"),
    ("mnist", "train"): (60000, "d18cfd466eb143ac1097fde604dba9eec4116885869d04cc648b510949f9e88c"),
    ("mnist", "test"): (10000, "a0863a96c44e5666edbb30c4071ee79ca0514c621e6349c5967fc78e7305c891"),
    ("fashionmnist", "test"): (10000, "9a494dc49efeb996f4076c469b31cd058152067b1594ba6ab85dd739fce3775e"),
}


def verify(dataset: DataSet, name: str, split: str) -> str:
    """Whether the set is the published one, in words; a `DataError` if it has its size and is not."""
    found = dataset.digest()
    if (name, split) not in PUBLISHED:
        return f"whole and readable; SHA-256 {found[:16]}, none is published here to compare with"
    count, expected = PUBLISHED[name, split]
    if found == expected:
        return "the published set, bit for bit"
    if len(dataset.labels) != count:
        return f"a part or another selection: {len(dataset.labels):,} images, the published set has {count:,}"
    raise DataError(
        f"{name}/{split}: has the size of the published set but other pixels, labels or order; import it again"
    )


def fit_to(dataset: DataSet, height: int, width: int, channels: int) -> DataSet:
    """The same images in another size and number of channels, as a model trained on other data needs them.

    Grey becomes RGB by repetition, RGB grey by luminance. As in OpenOOD the image is resized so that it covers the
    target (bilinear, antialiased), then cropped at the centre.
    """
    images = dataset.images
    if images.shape[1:] == (height, width, channels):
        return dataset
    if images.shape[3] == 3 and channels == 1:
        luminance = images.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
        images = np.rint(luminance).astype(np.uint8)[..., None]
    elif images.shape[3] == 1 and channels == 3:
        images = images.repeat(3, axis=3)
    old_height, old_width = images.shape[1:3]
    if (old_height, old_width) != (height, width):
        scale = max(height / old_height, width / old_width)
        size = max(height, round(old_height * scale)), max(width, round(old_width * scale))
        top, left = (size[0] - height) // 2, (size[1] - width) // 2
        parts = []
        for part in torch.from_numpy(images).split(1024):
            x = part.permute(0, 3, 1, 2).float()
            x = torch.nn.functional.interpolate(x, size, mode="bilinear", antialias=True)
            x = x[:, :, top : top + height, left : left + width]
            parts.append(x.round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy())
        images = np.concatenate(parts)
    return DataSet(np.ascontiguousarray(images), dataset.labels)


def split_off(dataset: DataSet, fraction: float) -> tuple[DataSet, DataSet]:
    """(part, rest): the first `fraction` of each class, and the others; OpenOOD's validation split is made so."""
    chosen = np.zeros(len(dataset.labels), bool)
    for label in np.unique(dataset.labels):
        members = np.flatnonzero(dataset.labels == label)
        if len(members) > 1:
            chosen[members[: max(1, round(fraction * len(members)))]] = True
    return dataset.take(chosen), dataset.take(~chosen)
