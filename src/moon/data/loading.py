"""Make batches of data sets, prepared as a benchmark specifies: normalisation, crop, flip and size."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

from moon.data.batches import Batches
from moon.data.benchmarks import Benchmark
from moon.data.sets import AnySet
from moon.data.streams import ImageList, StreamedBatches

_log = logging.getLogger(__name__)
_MAX_STREAMED = 256  # images per evaluation batch that are read from disk
_MAX_WORKERS = 8
_FEW_IMAGES = 2000  # up to this many, starting worker processes takes longer than it saves


def evaluation_batches(
    dataset: AnySet, benchmark: Benchmark, device: torch.device | str, batch_size: int = 500
) -> Batches | StreamedBatches:
    """Make batches for evaluation: iterate to get the images in order, without augmentation.

    Args:
        dataset: A set in memory, in the size and channels of the benchmark (see `fit_to`), or a list of images.
        benchmark: The benchmark, which defines mean, standard deviation and size.
        device: Where the batches are needed.
        batch_size: Images per batch; at most 256 are used for images that are read from disk.

    Returns:
        The batches.

    Example:
        >>> import numpy as np
        >>> from moon.data import BENCHMARKS, DataSet, evaluation_batches
        >>> dataset = DataSet(np.zeros((6, 28, 28, 1), np.uint8), np.arange(6))
        >>> [tuple(x.shape) for x, y in evaluation_batches(dataset, BENCHMARKS["mnist"], "cpu", batch_size=4)]
        [(4, 1, 28, 28), (2, 1, 28, 28)]
    """
    if isinstance(dataset, ImageList):
        return _streamed(dataset, benchmark, device, batch_size=min(batch_size, _MAX_STREAMED))
    return Batches(dataset, benchmark.mean, benchmark.std, batch_size=batch_size, device=device)


def training_batches(
    dataset: AnySet,
    benchmark: Benchmark,
    device: torch.device | str,
    *,
    batch_size: int,
    seed: int,
    augment: str = "none",
    part: tuple[int, int] = (0, 1),
) -> Batches | StreamedBatches:
    """Make batches for training: `epoch(e)` yields the images shuffled and augmented.

    Args:
        dataset: A set in memory, in the size and channels of the benchmark (see `fit_to`), or a list of images.
        benchmark: The benchmark, which defines mean, standard deviation, crop, flip and size.
        device: Where the batches are needed.
        batch_size: Images per batch, over all processes.
        seed: Seed of the order and the augmentation.
        augment: What is done besides crop and flip: "none", "cutout", "trivial" or "trivial+cutout".
        part: (rank, count) of this process. Images that are read from disk are divided among the processes; batches
            of a set in memory are the same in all of them.

    Returns:
        The batches.

    Example:
        >>> import numpy as np
        >>> from moon.data import BENCHMARKS, DataSet, training_batches
        >>> dataset = DataSet(np.zeros((6, 28, 28, 1), np.uint8), np.arange(6))
        >>> batches = training_batches(dataset, BENCHMARKS["mnist"], "cpu", batch_size=4, seed=0)
        >>> [len(y) for x, y in batches.epoch(0)], batches.crop, batches.flip
        ([4, 2], 4, True)
    """
    if batch_size > (count := len(dataset.labels)):
        _log.warning(
            "batch_size is %s, but there are only %s training images: every step uses all of them", f"{batch_size:,}",
            f"{count:,}",
        )  # fmt: skip
    if isinstance(dataset, ImageList):
        return _streamed(dataset, benchmark, device, batch_size=batch_size, seed=seed, augment=augment, part=part)
    return Batches(
        dataset,
        benchmark.mean,
        benchmark.std,
        batch_size=batch_size,
        crop=benchmark.crop,
        flip=benchmark.flip,
        augment=augment,
        seed=seed,
        device=device,
    )


def _streamed(images: ImageList, benchmark: Benchmark, device: torch.device | str, **settings: Any) -> StreamedBatches:
    """Stream a list of images; worker processes decode a long one."""
    workers = min(_MAX_WORKERS, os.cpu_count() or 1) if len(images.paths) > _FEW_IMAGES else 0
    return StreamedBatches(
        images,
        benchmark.mean,
        benchmark.std,
        size=benchmark.size,
        resize=benchmark.resize,
        workers=workers,
        device=device,
        **settings,
    )
