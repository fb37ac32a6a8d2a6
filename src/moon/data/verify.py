"""Verify sets under the data root: whether they are readable and, for some public sets, identical to the original."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from moon.data.dataset import AnyPath, DataSet, Track, check_root, load
from moon.data.sets import set_names
from moon.errors import DataError
from moon.suggest import counted, did_you_mean

# (images, SHA-256 by `DataSet.digest`) of complete public sets in their original order. Each digest was computed from
# one copy of the set. The sites publish digests of archives, not of pixels, so no second source has confirmed these.
PUBLISHED = {
    ("cifar10", "train"): (50000, "67e12c2a5906880a4fe5595fe6d768185ad7ca587f35d3a7ece3c3b8b85035d2"),
    ("cifar10", "test"): (10000, "e54a434ec35094516eacbaac0f2f9550358d985e9d1f71b47d41d333c15ba304"),
    ("mnist", "train"): (60000, "d18cfd466eb143ac1097fde604dba9eec4116885869d04cc648b510949f9e88c"),
    ("mnist", "test"): (10000, "a0863a96c44e5666edbb30c4071ee79ca0514c621e6349c5967fc78e7305c891"),
    ("fashionmnist", "test"): (10000, "9a494dc49efeb996f4076c469b31cd058152067b1594ba6ab85dd739fce3775e"),
}


def compare_with_published(dataset: DataSet, name: str, split: str) -> str:
    """Compare a split with the published one, if its digest is known.

    Args:
        dataset: The split.
        name: The name of the set.
        split: The name of the split.

    Returns:
        A description of the result.

    Raises:
        DataError: The split has as many images as the published one, but differs from it.

    Example:
        >>> import numpy as np
        >>> from moon.data import DataSet, compare_with_published
        >>> compare_with_published(DataSet(np.zeros((2, 28, 28, 1), np.uint8), np.array([0, 1])), "mnist", "test")
        'a subset or another selection: 2 images, the published set has 10,000'
    """
    found = dataset.digest()
    if (name, split) not in PUBLISHED:
        return f"complete and readable; SHA-256 {found[:16]}, no published digest to compare with"
    count, expected = PUBLISHED[name, split]
    if found == expected:
        return "identical to the published set"
    if len(dataset.labels) != count:
        return (
            f"a subset or another selection: {counted(len(dataset.labels), 'image')}, the published set has {count:,}"
        )
    raise DataError(
        f"{name}/{split}: has as many images as the published set, but different pixels, labels or order; import again"
    )


def verify_sets(root: AnyPath, name: str | None = None, track: Track = iter) -> Iterator[str]:
    """Read the sets under a data root and compare them with the published ones.

    Args:
        root: The data root.
        name: The set to verify; default: all of them.
        track: Wraps the list of files, for example in a progress bar.

    Yields:
        The result for each split, one line. A split that cannot be used does not end the iteration.

    Raises:
        DataError: There is no set to verify; or, at the end, at least one split cannot be used.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from moon.data import DataSet, save, verify_sets
        >>> with tempfile.TemporaryDirectory() as root:
        ...     path = save(DataSet(np.zeros((2, 28, 28, 1), np.uint8), np.array([0, 1])), root, "mnist", "test")
        ...     list(verify_sets(root))
        ['mnist/test: a subset or another selection: 2 images, the published set has 10,000']
    """
    root = Path(root)
    check_root(root)
    if not root.is_dir():
        raise DataError(f"{root}: the data root does not exist")
    names = set_names(root)
    paths = [path for set_name in names if name in (None, set_name) for path in sorted((root / set_name).glob("*.npz"))]
    if not paths:
        which = "" if name is None else f" '{name}'{did_you_mean(name, names)}"
        raise DataError(f"{root}: no set{which} to verify")
    failed = 0
    for path in track(paths):
        set_name, split = path.parent.name, path.stem
        try:
            yield f"{set_name}/{split}: {compare_with_published(load(root, set_name, split), set_name, split)}"
        except DataError as error:
            failed += 1
            yield str(error)
    if failed:
        raise DataError(f"{failed} of {len(paths)} splits cannot be used; import them again")
