import shutil
from pathlib import Path

import numpy as np
import pytest

from moon.data import BENCHMARKS, DataError, benchmark, known_sets, open_set
from moon.nets import NETS


def test_the_table_is_consistent():
    for name, row in BENCHMARKS.items():
        assert row.name == name
        assert len(row.mean) == len(row.std) == row.channels
        assert row.net in NETS
        assert row.near
        assert row.far
        assert name not in row.near + row.far


def test_validation_comes_from_the_test_split_and_does_not_overlap(data_root):
    sets = known_sets(data_root, benchmark(data_root, "mnist"))
    assert {split: len(d.labels) for split, d in sets.items()} == {"train": 256, "test": 90, "val": 10}
    assert sorted(sets["val"].labels) == list(range(10))


def test_other_unknown_sets_may_be_named(data_root):
    row = benchmark(data_root, "mnist", near=("mine",))
    assert (row.near, row.far) == (("mine",), BENCHMARKS["mnist"].far)


def test_a_set_of_one_s_own_is_a_benchmark(data_root):
    (data_root / "mnist").rename(data_root / "ours")
    row = benchmark(data_root, "ours")
    assert (row.num_known, row.size, row.channels, row.net) == (10, 28, 1, "lenet")


def test_unknown_benchmarks_name_the_nearest(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'cifar10'"):
        benchmark(tmp_path, "cifer10")


def test_labels_out_of_range_are_refused(data_root):
    np.savez(data_root / "mnist" / "train.npz", images=np.zeros((2, 28, 28, 1), np.uint8), labels=np.array([0, 10]))
    with pytest.raises(DataError, match=r"mnist/train: labels 0..10; the known classes are 0..9"):
        known_sets(data_root, benchmark(data_root, "mnist"))


def test_too_few_test_images_are_refused(data_root):
    np.savez(data_root / "mnist" / "test.npz", images=np.zeros((10, 28, 28, 1), np.uint8), labels=np.arange(10))
    with pytest.raises(DataError, match=r"mnist/test\.npz: too few images"):
        known_sets(data_root, benchmark(data_root, "mnist"))


@pytest.mark.parametrize("name", ["../other", "a/b", ".hidden", ""])
def test_names_that_lead_elsewhere_are_refused(tmp_path, name):
    with pytest.raises(DataError, match="cannot name a data set"):
        open_set(tmp_path, name, "test")


def test_embedded_sets_need_no_root():
    assert len(open_set(Path("nowhere"), "letters", "test").labels) == 1000


def test_classes_are_numbered_from_zero_without_a_gap(tmp_path):
    (tmp_path / "mine").mkdir()
    for labels, what in (
        ([0, 5], "no image of class 1, but of 5"),
        ([10**9, 0], "no image of class 1, but of 1000000000"),
    ):
        np.savez(tmp_path / "mine" / "train.npz", images=np.zeros((2, 8, 8, 1), np.uint8), labels=np.array(labels))
        with pytest.raises(DataError, match=what):
            benchmark(tmp_path, "mine")


DECLARED = """
[mnist-part]
known = "mnist"
near = ["notmnist"]
far = ["dtd"]
flip = false

[ours-against-noise]
known = "ours"
far = ["fashionmnist"]
mean = [0.13]
std = [0.31]
net = "lenet-norm"
"""


def test_benchmarks_are_declared_from_what_is_there(data_root):
    (data_root / "benchmarks.toml").write_text(DECLARED)
    shutil.copytree(data_root / "mnist", data_root / "ours")
    part = benchmark(data_root, "mnist-part")
    assert (part.name, part.known_set, part.near, part.far) == ("mnist-part", "mnist", ("notmnist",), ("dtd",))
    assert (part.flip, part.crop, part.mean) == (False, 4, (0.5,))
    ours = benchmark(data_root, "ours-against-noise")
    assert (ours.known_set, ours.near, ours.far) == ("ours", (), ("fashionmnist",))
    assert (ours.num_known, ours.mean, ours.std, ours.net) == (10, (0.13,), (0.31,), "lenet-norm")
    assert len(known_sets(data_root, ours)["train"].labels) == 256
    assert benchmark(data_root, "mnist-part", far=("tin",)).far == ("tin",)
    with pytest.raises(ValueError, match="did you mean 'mnist-part'"):
        benchmark(data_root, "mnist-parts")
    # A table that is wrong does not take the others with it, but no name of the table may be declared again.
    (data_root / "benchmarks.toml").write_text(f"\ufeff{DECLARED}\n[mnist]\nknown = 'mnist'\n['../x']\nknown = 'mnist'")
    assert benchmark(data_root, "mnist-part") == part
    with pytest.raises(DataError, match=r"\[mnist\] is a benchmark of the table"):
        benchmark(data_root, "mnist")
    with pytest.raises(DataError, match="cannot name a data set"):
        benchmark(data_root, "../x")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[a]\nnear = ['dtd']", r"\[a\] must have known ="),
        ("[a]\nknown = 'a'", r"\[a\] known = 'a' is its own name"),
        ("a = 3", r"\[a\] must be a table"),
        ("[a]\nknown = 'mnst'", r"toml: \[a\] known = 'mnst' is neither .*, did you mean 'mnist'"),
        ("[b]\nknown = 'mnist'\n[a]\nknown = 'b'", r"\[a\] known = 'b' is neither a benchmark nor a set"),
        ("[a]\nknown = 'mnist'\nnaer = ['dtd']", "has no 'naer', did you mean 'near'"),
        ("[a]\nknown = 'mnist'\nfar = 'dtd'", "'far' must be a list of sets, not 'dtd'"),
        ("[a]\nknown = 'mnist'\nfar = [1]", "'far' must be a list of sets"),
        ("[a]\nknown = 'mnist'\ncrop = true", "'crop' must be a whole number, not True"),
        ("[a]\nknown = 'mnist'\nmean = [0.1, 0.2]", "'mean' must have 1 value"),
        ("[a]\nknown = 'mnist'\nfar = ['dtdd']", r"\[a\] names 'dtdd', which is not under"),
        ("[a]\nknown = 'mnist'\nfar = ['notmnst']", "'notmnst', which is not under .*, did you mean 'notmnist'"),
        ("[a]\nknown = 'mnist'\nnear = ['dtd']\nfar = ['dtd']", "'dtd' is named twice"),
        ("[a]\nknown = 'mnist'\nfar = ['mnist']", "'mnist' is the known set"),
        ("[a]\nknown = 'mnist'\ncrop = -4", r"'crop' must be in 0\.\.27"),
        ("[a]\nknown = 'mnist'\nstd = [0]", "'std' must be of pixels between 0 and 1 and not 0"),
        ("[a]\nknown = 'mnist'\nmean = [nan]", "'mean' must be of pixels between 0 and 1"),
        ("[a\nknown", "cannot be read"),
    ],
)
def test_what_cannot_be_declared_is_named(data_root, text, what):
    (data_root / "benchmarks.toml").write_text(text)
    with pytest.raises(ValueError, match=what):
        benchmark(data_root, "a")


def test_a_declaration_without_images_is_enough_to_look_at_what_was_measured(tmp_path):
    (tmp_path / "benchmarks.toml").write_text("[part]\nknown = 'cifar10'\nnear = ['tin']\nfar = ['dtd']")
    part = benchmark(tmp_path, "part")
    assert (part.known_set, part.near, part.far) == ("cifar10", ("tin",), ("dtd",))
    with pytest.raises(DataError, match="cifar10"):
        known_sets(tmp_path, part)
