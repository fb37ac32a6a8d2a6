"""A data set is two arrays, images (N, H, W, C) uint8 and labels (N,)."""

from moon.data.batches import Batches
from moon.data.benchmarks import (
    BENCHMARKS,
    AnySet,
    Benchmark,
    benchmark,
    declarations,
    declared,
    has,
    known_sets,
    open_set,
)
from moon.data.dataset import DataError, DataSet, checked, fit_to, load, save, split_off
from moon.data.streams import Listed, Streams

__all__ = [
    "BENCHMARKS", "AnySet", "Batches", "Benchmark", "DataError", "DataSet", "Listed", "Streams", "benchmark",
    "checked", "declarations", "declared", "fit_to", "has", "known_sets", "load", "open_set", "save", "split_off",
]  # fmt: skip
