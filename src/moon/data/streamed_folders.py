"""Class folders that stay on disk, declared in `benchmarks.toml`: for images that do not fit into memory.

[flowers]
folder = "flowers"      # under the data root: flowers/train/<class>/<image>, test and, optionally, val
size = 224              # of the network's input, or [height, width]
near = ["birds"]        # sets under the root, as for other benchmarks
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from moon.data.benchmarks import BENCHMARKS, Benchmark, default_net, size_of
from moon.data.folders import find_splits
from moon.data.image_files import class_images
from moon.data.streams import ImageList
from moon.errors import DataError

_MAX_SIZE = 1024  # pixels; a mistyped size must not fill the memory


def folder_splits(root: Path, benchmark: Benchmark) -> dict[str, Path]:
    """The folder of each split of a streamed known set."""
    return find_splits(root / benchmark.folder).splits


def open_folder(root: Path, benchmark: Benchmark, split: str) -> ImageList:
    """List the images of a split of a streamed known set, without reading them."""
    folder = root / benchmark.folder
    if split not in (splits := folder_splits(root, benchmark)):
        raise DataError(f"{folder}: has no split '{split}'; expected {folder.name}/{split}/<class>/<image>")
    images, names = class_images(splits[split], folder)
    paths = tuple(str(path.relative_to(folder)) for path, _ in images)
    return ImageList(folder, paths, np.array([label for _, label in images], np.int64), names, upright=True)


def streamed_benchmark(root: Path, name: str, table: dict[str, Any], where: str) -> Benchmark:
    """Make the benchmark of a declaration with a `folder`, without its other fields and without unknown sets.

    The images are not read, so mean and standard deviation are those of ImageNet unless the declaration has others.
    """
    folder, size = table["folder"], table.get("size", 224)
    both: list[Any] = size if isinstance(size, list) and len(size) == 2 else [size, size]
    is_size = all(type(side) is int and 8 <= side <= _MAX_SIZE for side in both)
    resize = table.get("resize", round(min(both) * 256 / 224) if is_size else 0)
    if not isinstance(folder, str) or not folder:
        raise DataError(f"{where} 'folder' must be a string, not {folder!r}")
    if not is_size or type(resize) is not int or not min(both) <= resize <= _MAX_SIZE:
        raise DataError(
            f"{where} 'size' and 'resize' must be integers, 8 <= size <= resize <= {_MAX_SIZE}; size may be "
            "[height, width]"
        )
    if not (root / folder).is_dir():
        raise DataError(f"{where} folder = '{folder}': there is no folder {root / folder}")
    usual = BENCHMARKS["imagenet-v1.5"]
    made = Benchmark(
        name, near=(), far=(), num_known=0, size=size_of(*both), channels=3, mean=usual.mean, std=usual.std,
        net=default_net(size_of(*both), channels=3), resize=resize, folder=folder,
    )  # fmt: skip
    return replace(made, num_known=len(open_folder(root, made, "train").classes))
