"""Data: sets of images and labels, their readers, the table of benchmarks, and batches on the device."""

from moon.data.batches import Batches
from moon.data.benchmarks import BENCHMARKS, Benchmark
from moon.data.dataset import (
    DataError,
    DataSet,
    as_dataset,
    check_name,
    fit_to,
    load,
    path_of,
    save,
    split_off,
)
from moon.data.download import SOURCES, download_set
from moon.data.formats import read_cifar, read_idx, read_svhn
from moon.data.image_files import read_folders, read_list
from moon.data.importing import SavedSplit, hold_out, import_set
from moon.data.loading import evaluation_batches, training_batches
from moon.data.lookup import all_benchmarks, find_benchmark
from moon.data.readers import read_any
from moon.data.sets import AnySet, has_set, known_splits, open_set, set_names
from moon.data.streams import ImageList, StreamedBatches
from moon.data.verify import compare_with_published, verify_sets

__all__ = [
    "BENCHMARKS", "SOURCES", "AnySet", "Batches", "Benchmark", "DataError", "DataSet", "ImageList", "SavedSplit",
    "StreamedBatches", "all_benchmarks", "as_dataset", "check_name", "compare_with_published", "download_set",
    "evaluation_batches", "find_benchmark", "fit_to", "has_set", "hold_out", "import_set", "known_splits", "load",
    "open_set", "path_of", "read_any", "read_cifar", "read_folders", "read_idx", "read_list", "read_svhn", "save",
    "set_names", "split_off", "training_batches", "verify_sets",
]  # fmt: skip
