"""Augmentation on a GPU: are the bits those of a CPU, does nothing wait, can it be captured, and how long does it take?

    python tests/gpu/augment.py

Exits with an error if one of these is not so.
"""

from __future__ import annotations

from functools import partial
from statistics import median

import numpy as np
import torch

from moon.data import Batches, DataSet
from moon.data.augment import Augmentation
from moon.data.benchmarks import AUGMENTATIONS

COUNT = 16 * 128


def milliseconds(function, repeats: int = 50) -> float:
    """The median time of a call on the device."""
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return median(times)


def main() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (COUNT, 32, 32, 3)).astype(np.uint8)
    x = torch.from_numpy(pixels)
    on_cpu, on_gpu = Augmentation("trivial", 32, 32), Augmentation("trivial", 32, 32, "cuda")
    numbers = on_cpu.draw(COUNT, seed=0, epoch=0)
    assert torch.equal(on_cpu.change(x, numbers), on_gpu.change(x.cuda(), numbers.cuda()).cpu()), "other bits"
    for augment in AUGMENTATIONS:
        data = DataSet(pixels, np.arange(COUNT) % 10)
        statistics = (0.5, 0.5, 0.5), (0.2, 0.2, 0.2)
        made = Batches(data, *statistics, crop=4, flip=True, augment=augment, device="cuda")
        order, corner, flipped, drawn = (part.cuda() for part in made._augmentation(0))
        made._gather(order, corner, flipped, drawn)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        made._gather(order, corner, flipped, drawn)
        made.draw(128)
        torch.cuda.set_sync_debug_mode("default")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured, _ = made.draw(128)
        graph.replay()
        first = captured.clone()
        graph.replay()
        assert not torch.equal(first, captured)  # new images in each replay
        took = milliseconds(partial(made._gather, order, corner, flipped, drawn))
        print(f"{augment}: {took:.3f} ms for {COUNT} images of 32x32, nothing waits for the device")


if __name__ == "__main__":
    main()
