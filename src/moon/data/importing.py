"""Add sets to a data root: import them from a public format, or hold out training images of another set."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from moon.data.benchmarks import BENCHMARKS, Size, sides
from moon.data.dataset import (
    AnyPath,
    DataSet,
    Track,
    split_off,
)
from moon.data.folders import SPLITS, find_splits
from moon.data.groups import group_images, split_off_groups
from moon.data.image_files import read_folders
from moon.data.readers import LIST_SUFFIXES, note_ignored, read_any
from moon.data.resizing import fit_to, note_grey
from moon.data.saving import SavedSplit, check_new_name, check_target, save_all
from moon.data.sets import open_set, warn_of_two_labels
from moon.errors import DataError
from moon.files import write_atomic
from moon.suggest import did_you_mean

_log = logging.getLogger(__name__)
_Skipped = dict[Path, DataError] | None
DEFAULT_SIZE = 32  # of images from class folders and image lists, in pixels


def import_set(
    root: AnyPath,
    source: AnyPath,
    name: str,
    split: str = "test",
    *,
    image_root: AnyPath | None = None,
    size: Size | None = None,
    grey: bool = False,
    to_8_bit: int = 0,
    skip_bad: bool = False,
    replace: bool = False,
    track: Track = iter,
) -> SavedSplit:
    """Import one split of a set from a public format and save it as `<root>/<name>/<split>.npz`.

    The classes of a val or test split are numbered like those of the training split, by name, if that is under the root
    already.

    Args:
        root: The data root.
        source: A file or folder in one of the formats of `read_any`.
        name: The name of the set under the root.
        split: "train", "val" or "test".
        image_root: The folder that the paths of an image list are relative to; default: the folder of the list.
        size: Height and width of the images, one number if they are square; default: 32 for class folders and image
            lists, else unchanged.
        grey: Whether to convert the images to one channel.
        to_8_bit: The value that becomes 255 in images with more than 8 bits per channel, such as 65535, or 4095 for 12
            bits; 0: such images are an error.
        skip_bad: Whether to leave out images that cannot be read. They are listed in `<split>.skipped.txt` beside the
            split.
        replace: Whether to overwrite a split that has other images.
        track: Wraps the list of images while they are decoded, for example in a progress bar.

    Returns:
        The saved split.

    Raises:
        ValueError: The name or the split is not allowed, or the split exists with other images.
        DataError: The source cannot be read, has images of a class that the training split does not have, or is a
            training split with a class called "unknown".

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from moon.data import import_set
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     source = Path(folder, "test_batch.bin")
        ...     _ = source.write_bytes(bytes([3]) + bytes(3072))  # CIFAR: one image, label 3
        ...     saved = import_set(folder, source, "mine")
        >>> saved.path.name, saved.dataset.labels.tolist(), saved.is_new
        ('test.npz', [3], True)
    """
    if split not in SPLITS:
        raise ValueError(f"split must be train, val or test, not '{split}'{did_you_mean(split, SPLITS)}")
    check_target(root, name)
    if image_root is not None and Path(source).suffix not in LIST_SUFFIXES:
        raise ValueError(f"{source}: is not an image list, so {image_root} does not apply; leave it out (image_root)")
    skipped: _Skipped = {} if skip_bad else None
    dataset = read_any(source, split, image_root, size or DEFAULT_SIZE, track, to_8_bit=to_8_bit, skipped=skipped)
    (saved,) = save_all({split: _converted(dataset, size, grey, source)}, root, name, replace)
    warn_of_two_labels({split: saved.dataset}, source)
    _list_skipped(skipped, saved)
    return saved


def import_splits(
    root: AnyPath,
    source: AnyPath,
    name: str,
    *,
    size: Size | None = None,
    grey: bool = False,
    to_8_bit: int = 0,
    skip_bad: bool = False,
    replace: bool = False,
    track: Track = iter,
) -> list[SavedSplit]:
    """Import all splits of a set of class folders: `<source>/train/<class>/<image>`, and val and test alike.

    All splits are read and checked before one is saved. Classes are numbered in alphabetical order of the training
    split's names.

    Args:
        root: The data root.
        source: A folder that contains train, val (valid, validation) or test (testing), in any case.
        name: The name of the set under the root.
        size: Height and width of the images, one number if they are square; default: 32.
        grey: Whether to convert the images to one channel.
        to_8_bit: As for `import_set`.
        skip_bad: As for `import_set`.
        replace: Whether to overwrite splits that have other images.
        track: Wraps the list of images while they are decoded, for example in a progress bar.

    Returns:
        The saved splits.

    Raises:
        ValueError: The name is not allowed, or a split exists with other images.
        DataError: The source contains no splits, cannot be read, or a split has images of a class that the training
            split does not have. Or a class of the training split is called "unknown".

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from moon.data import import_splits
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for path in ("train/cat", "train/dog", "test/dog"):
        ...         Path(folder, path).mkdir(parents=True)
        ...         Image.new("RGB", (32, 32)).save(f"{folder}/{path}/1.png")
        ...     train, test = import_splits(f"{folder}/data", folder, "pets")
        >>> train.dataset.classes, train.dataset.labels.tolist(), test.dataset.labels.tolist()
        (('cat', 'dog'), [0, 1], [1])
    """
    check_target(root, name)
    found = find_splits(source)
    if not found.splits:
        raise DataError(f"{source}: contains no splits; expected train/<class>/<image>, and val and test alike")
    note_ignored(source, found)
    skipped: dict[str, _Skipped] = {split: {} if skip_bad else None for split in found.splits}
    datasets = {}
    for split, folder in found.splits.items():
        images = read_folders(
            folder, size or DEFAULT_SIZE, track, root=source, to_8_bit=to_8_bit, skipped=skipped[split]
        )
        datasets[split] = _converted(images, None, grey, folder)
    saved = save_all(datasets, root, name, replace)
    warn_of_two_labels(datasets, source)
    for split, each in zip(found.splits, saved, strict=True):
        _list_skipped(skipped[split], each)
    return saved


def hold_out(
    root: AnyPath,
    source: str,
    name: str,
    share: float = 0.1,
    *,
    val_share: float | None = None,
    groups: str | None = None,
    replace: bool = False,
) -> list[SavedSplit]:
    """Make a set whose test images are held out of the training images of another set.

    The test split of the new set is the first `share` of each class of the source's training images, its validation
    split the next `val_share`, and its training split the rest. Options can then be tuned without looking at the
    source's test images.

    Args:
        root: The data root.
        source: The name of the set whose training images are divided.
        name: The name of the new set.
        share: Share of the training images that are held out for testing, above 0 and below 1.
        val_share: Share that is held out for validation as well; 0 makes no validation split, so that a tenth of the
            test images is used instead. That is too few for the thresholds of a small set, and does not respect groups.
            Default: 0, with `groups` as much as `share`.
        groups: What images of one group have in common, so that they stay together: a regular expression or a .csv
            file, see `moon.data.groups.group_images`.
        replace: Whether to overwrite splits that have other images.

    Returns:
        The training split, the test split and, if there is one, the validation split.

    Raises:
        ValueError: The name or the share is not allowed, an image has no group, or a split exists with other images.
        DataError: The source is missing or invalid, or no image can be held out.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from moon.data import DataSet, hold_out, save
        >>> dataset = DataSet(np.zeros((40, 8, 8, 1), np.uint8), np.arange(40) % 2)
        >>> with tempfile.TemporaryDirectory() as root:
        ...     path = save(dataset, root, "mine", "train")
        ...     train, test = hold_out(root, "mine", "mine-held-out", share=0.1)
        >>> len(train.dataset.labels), len(test.dataset.labels)
        (36, 4)
    """
    if not 0 < share < 1:
        raise ValueError(f"share must be above 0 and below 1, not {share:g}")
    if val_share is None:
        val_share = 0.0 if groups is None else share
    if not 0 <= val_share < 1 - share:
        raise ValueError(
            f"val_share must be at least 0 and leave images to train on beside {share:g}, not {val_share:g}"
        )
    check_new_name(name)
    if name == source or name in BENCHMARKS:
        why = "the set that images are held out of" if name == source else "the name of a benchmark"
        raise ValueError(f"'{name}' is {why}; choose another name")
    dataset = open_set(root, source, "train")
    assert isinstance(dataset, DataSet)  # only sets of a benchmark with image lists are not

    def split(part: DataSet, fraction: float) -> tuple[DataSet, DataSet]:
        if groups is None:
            return split_off(part, fraction)
        return split_off_groups(part, group_images(part, groups, f"{source}/train"), fraction)

    held_out, rest = split(dataset, share)
    splits = {"train": rest, "test": held_out}
    if val_share:
        splits["val"], splits["train"] = split(rest, val_share / (1 - share))
    if empty := [key for key, part in splits.items() if not len(part.labels)]:
        what = "images" if groups is None else "groups of images"
        raise DataError(f"{source}/train: too few {what} to hold some out ({', '.join(empty)} would be empty)")
    if groups is not None:
        counts = [f"{len(np.unique(group_images(part, groups, source))):,} in {key}" for key, part in splits.items()]
        _log.info("%s/train: groups of images: %s", source, ", ".join(counts))
    return save_all(splits, root, name, replace)


def _list_skipped(skipped: _Skipped, saved: SavedSplit) -> None:
    """Write the images that were left out to a file beside their split, and log the first ones."""
    path = saved.path.with_suffix(".skipped.txt")
    if not skipped:
        path.unlink(missing_ok=True)
        return
    text = "".join(f"{error}\n" for error in skipped.values())
    write_atomic(path, lambda partial: partial.write_text(text, encoding="utf-8", errors="replace"))
    names = ", ".join(map(str, [*skipped][:3])) + (", ..." if len(skipped) > 3 else "")
    count = f"{len(skipped):,} of {len(skipped) + len(saved.dataset.labels):,}"
    _log.warning("%s images cannot be read and are left out (%s); %s says why", count, names, path)


def _converted(dataset: DataSet, size: Size | None, grey: bool, where: AnyPath) -> DataSet:
    """Images in the given size and in grey; another size than before is logged."""
    height, width, channels = dataset.images.shape[1:]
    target = sides(size) if size else (height, width)
    if target != (height, width):
        _log.info(
            "%s: images resized from %dx%d to %dx%d (height x width): scaled to cover it, centre cropped",
            where, height, width, *target,
        )  # fmt: skip
    if not grey:
        note_grey(dataset, where)
    return fit_to(dataset, *target, 1 if grey else channels)
