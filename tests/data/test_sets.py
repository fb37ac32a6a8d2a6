import numpy as np
import pytest

from moon.data import BENCHMARKS, DataError, find_benchmark, has_set, known_splits, open_set, set_names


def test_validation_images_come_from_the_test_split_and_are_removed_from_it(data_root):
    splits = known_splits(data_root, find_benchmark(data_root, "mnist"))
    assert {split: len(d.labels) for split, d in splits.items()} == {"train": 256, "test": 90, "val": 10}
    assert sorted(splits["val"].labels) == list(range(10))
    pixels = [{image.tobytes() for image in splits[split].images} for split in ("val", "test")]
    assert not pixels[0] & pixels[1]


def test_labels_out_of_range_are_rejected(data_root):
    np.savez(data_root / "mnist" / "train.npz", images=np.zeros((2, 28, 28, 1), np.uint8), labels=np.array([0, 10]))
    with pytest.raises(DataError, match=r"mnist/train: labels 0..10; the known classes are 0..9"):
        known_splits(data_root, find_benchmark(data_root, "mnist"))


def test_too_few_test_images_are_rejected(data_root):
    np.savez(data_root / "mnist" / "test.npz", images=np.zeros((10, 28, 28, 1), np.uint8), labels=np.arange(10))
    with pytest.raises(DataError, match=r"mnist/test\.npz: too few images per class"):
        known_splits(data_root, find_benchmark(data_root, "mnist"))


def test_embedded_sets_need_no_root():
    assert len(open_set("nowhere", "letters", "test").labels) == 1000
    assert has_set("nowhere", "letters", "test")
    assert not has_set("nowhere", "letters", "train")


def test_has_set_finds_sets_under_the_root(data_root):
    assert has_set(data_root, "mnist", "train")
    assert not has_set(data_root, "mnist", "val")
    assert not has_set(str(data_root), "cifar10", "test")
    assert set_names(str(data_root)) == ["dtd", "fashionmnist", "mnist", "notmnist"]
    assert set_names(data_root / "nowhere") == []


@pytest.mark.parametrize("benchmark", [None, BENCHMARKS["cifar10-v1.5"], BENCHMARKS["imagenet-v1.5"]])
@pytest.mark.parametrize("name", ["known", "near", "far", "../other"])
def test_invalid_names_are_rejected_in_the_root_and_in_lists(tmp_path, name, benchmark):
    for use in (has_set, open_set):
        with pytest.raises(DataError, match=f"'{name}' is not a valid data set name"):
            use(tmp_path, name, "test", benchmark)
