"""Benchmarks by name: from the table, from benchmarks.toml, and sets under the data root."""

import shutil

import numpy as np
import pytest
import torch

from moon.data import BENCHMARKS, DataError, DataSet, all_benchmarks, find_benchmark, known_splits, save
from moon.nets import NETS


def test_other_unknown_sets_may_be_named(data_root):
    benchmark = find_benchmark(data_root, "mnist", near=("mine",))
    assert (benchmark.near, benchmark.far) == (("mine",), BENCHMARKS["mnist"].far)


def test_a_set_under_the_root_is_a_benchmark(data_root):
    (data_root / "mnist").rename(data_root / "mine")
    benchmark = find_benchmark(str(data_root), "mine")
    assert (benchmark.num_known, benchmark.size, benchmark.channels, benchmark.net) == (10, 28, 1, "lenet-norm")
    assert (benchmark.near, benchmark.far) == ((), ())


def test_classes_must_be_numbered_from_zero_without_a_gap(tmp_path):
    (tmp_path / "mine").mkdir()
    for labels, what in (
        ([0, 5], "no image of class 1, but some of class 5"),
        ([10**9, 0], "no image of class 1, but some of class 1000000000"),
    ):
        np.savez(tmp_path / "mine" / "train.npz", images=np.zeros((2, 8, 8, 1), np.uint8), labels=np.array(labels))
        with pytest.raises(DataError, match=what):
            find_benchmark(tmp_path, "mine")


@pytest.mark.parametrize(
    ("size", "net"), [((40, 48), "lenet-norm"), ((27, 99), "resnet18"), ((32, 128), "resnet18-imagenet")]
)
def test_images_need_not_be_square(tmp_path, size, net):
    (tmp_path / "mine").mkdir()
    np.savez(tmp_path / "mine" / "train.npz", images=np.zeros((2, *size, 1), np.uint8), labels=np.array([0, 1]))
    benchmark = find_benchmark(tmp_path, "mine")
    assert (benchmark.input_shape, benchmark.net) == ((1, *size), net)
    (tmp_path / "benchmarks.toml").write_text(f"[mine]\ncrop = {min(size)}")
    with pytest.raises(DataError, match=rf"'crop' must be in 0..{min(size) - 1} pixels"):
        find_benchmark(tmp_path, "mine")


DECLARATIONS = """
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


def test_one_class_is_too_few(data_root):
    save(DataSet(np.zeros((4, 8, 8, 1), np.uint8), np.zeros(4, int)), data_root, "one", "train")
    save(DataSet(np.zeros((4, 8, 8, 1), np.uint8), np.zeros(4, int)), data_root, "one", "test")
    with pytest.raises(DataError, match=r"one/train\.npz: has images of one class only"):
        find_benchmark(data_root, "one")


def test_benchmarks_can_be_declared(data_root):
    (data_root / "benchmarks.toml").write_text(DECLARATIONS)
    shutil.copytree(data_root / "mnist", data_root / "ours")
    part = find_benchmark(data_root, "mnist-part")
    assert (part.name, part.known_set, part.near, part.far) == ("mnist-part", "mnist", ("notmnist",), ("dtd",))
    assert (part.flip, part.crop, part.mean) == (False, 4, (0.5,))
    ours = find_benchmark(data_root, "ours-against-noise")
    assert (ours.known_set, ours.near, ours.far) == ("ours", (), ("fashionmnist",))
    assert (ours.num_known, ours.mean, ours.std, ours.net) == (10, (0.13,), (0.31,), "lenet-norm")
    assert len(known_splits(data_root, ours)["train"].labels) == 256
    assert find_benchmark(data_root, "mnist-part", far=("tin",)).far == ("tin",)
    with pytest.raises(ValueError, match="did you mean 'mnist-part'"):
        find_benchmark(data_root, "mnist-parts")


def test_an_invalid_declaration_does_not_affect_the_others(data_root):
    (data_root / "benchmarks.toml").write_text(DECLARATIONS)
    shutil.copytree(data_root / "mnist", data_root / "ours")
    part = find_benchmark(data_root, "mnist-part")
    (data_root / "benchmarks.toml").write_text(
        f"\ufeff{DECLARATIONS}\n[mnist]\nknown = 'mnist'\n['../x']\nknown = 'mnist'"
    )
    assert find_benchmark(data_root, "mnist-part") == part
    with pytest.raises(DataError, match=r"\[mnist\] is the name of a built-in benchmark"):
        find_benchmark(data_root, "mnist")
    with pytest.raises(DataError, match="is not a valid data set name"):
        find_benchmark(data_root, "../x")
    benchmarks, errors = all_benchmarks(data_root)
    assert [b.name for b in benchmarks] == [*BENCHMARKS, "mnist-part", "ours-against-noise"]
    assert [type(error) for error in errors] == [DataError, DataError]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[a]\nnear = ['dtd']", r"\[a\] must have known ="),
        ("[a]\nknown = 'a'", r"\[a\] known = 'a' is neither a benchmark nor a set"),
        ("a = 3", r"\[a\] must be a table"),
        ("[a]\nknown = 'mnist'\nfar = 'dtd'", "'far' must be a list of sets, not 'dtd'"),
        ("[a]\nknown = 'mnist'\nfar = ['dtdd']", r"\[a\] names 'dtdd' .*, which is not under"),
        ("[a]\nknown = 'mnist'\nnear = ['dtd']\nfar = ['dtd']", "'dtd' is listed twice"),
        ("[a]\nknown = 'mnist'\nfar = ['mnist']", "'mnist' is the known set"),
        ("[a]\nknown = 'mnist'\ncrop = -4", r"'crop' must be in 0\.\.27"),
        ("[a]\nknown = 'mnist'\nstd = [0]", r"'std' must be above 0 and at most 1 .*, not \[0.0\]"),
        ("[a\nknown", "benchmarks.toml: is not valid TOML"),
    ],
)
def test_invalid_declarations_are_rejected(data_root, text, what):
    (data_root / "benchmarks.toml").write_text(text)
    with pytest.raises(ValueError, match=what):
        find_benchmark(data_root, "a")


def own(root, size=28, channels=1, **more):
    (root / "mine").mkdir(exist_ok=True)
    images = np.zeros((4, size, size, channels), np.uint8)
    images[:2, :, :, 0] = 51
    np.savez(root / "mine" / "train.npz", images=images, labels=np.arange(4) % 2, **more)


def test_mean_and_deviation_of_own_sets_are_measured(tmp_path):
    own(tmp_path, channels=3)
    benchmark = find_benchmark(tmp_path, "mine")
    assert benchmark.mean == (0.1, 0.0, 0.0)
    assert benchmark.std == (0.1, 1.0, 1.0)  # a channel of one value is not divided
    images = np.random.default_rng(0).integers(0, 256, (30, 9, 9, 3), dtype=np.uint8)
    np.savez(tmp_path / "mine" / "train.npz", images=images, labels=np.arange(30) % 2)
    benchmark = find_benchmark(tmp_path, "mine")
    assert benchmark.mean == tuple((images / 255).mean((0, 1, 2)).round(4).tolist())
    assert benchmark.std == tuple((images / 255).std((0, 1, 2)).round(4).tolist())


def test_images_of_own_sets_are_read_once(tmp_path, monkeypatch):
    own(tmp_path)
    first = find_benchmark(tmp_path, "mine")
    monkeypatch.setattr("moon.data.lookup.load", None)
    assert find_benchmark(tmp_path, "mine") == first
    own(tmp_path, size=32)
    with pytest.raises(TypeError):  # another file is read
        find_benchmark(tmp_path, "mine")


@pytest.mark.parametrize(
    ("size", "channels", "net"),
    [
        (20, 1, "resnet18"), (28, 1, "lenet-norm"), (63, 1, "lenet-norm"), (64, 1, "resnet18-imagenet"),
        (28, 3, "resnet18"), (63, 3, "resnet18"), (64, 3, "resnet18-imagenet"), (96, 3, "resnet18-imagenet"),
    ],
)  # fmt: skip
def test_the_default_net_of_own_sets_accepts_their_images(tmp_path, size, channels, net):
    own(tmp_path, size, channels)
    assert find_benchmark(tmp_path, "mine").net == net
    with torch.no_grad():
        assert NETS[net](num_classes=2, in_channels=channels).eval()(torch.zeros(1, channels, size, size)).shape == (
            1,
            2,
        )


def test_the_classes_of_own_sets_are_those_with_names(tmp_path):
    own(tmp_path, classes=np.array(["cat", "dog"]))
    assert find_benchmark(tmp_path, "mine").num_known == 2
    own(tmp_path, classes=np.array(["cat", "dog", "rabbit"]))
    with pytest.raises(DataError, match="no image of class rabbit; remove its name, or add images"):
        find_benchmark(tmp_path, "mine")


def test_a_set_under_the_root_can_be_declared_under_its_own_name(data_root):
    shutil.copytree(data_root / "mnist", data_root / "mine")
    measured = find_benchmark(data_root, "mine")
    for known in ("", "known = 'mine'\n"):
        (data_root / "benchmarks.toml").write_text(f"[mine]\n{known}mean = [0.5]\nstd = [0.5]\nfar = ['dtd']")
        declared = find_benchmark(data_root, "mine")
        assert (declared.name, declared.known_set, declared.far) == ("mine", "mine", ("dtd",))
        assert (declared.mean, declared.std) == ((0.5,), (0.5,))
        assert measured.mean != declared.mean


def test_whether_known_images_are_resized_can_be_declared(data_root):
    (data_root / "benchmarks.toml").write_text("[part]\nknown = 'mnist'\nfar = ['dtd']\nresize_known = true")
    assert find_benchmark(data_root, "part").resize_known
    assert not find_benchmark(data_root, "mnist").resize_known


def test_an_unknown_name_names_own_sets_and_a_missing_root(data_root):
    shutil.copytree(data_root / "mnist", data_root / "pets")
    with pytest.raises(ValueError, match=r"did you mean 'pets'.*moon data import"):
        find_benchmark(data_root, "pet")
    with pytest.raises(ValueError, match=r"the data root .*nowhere does not exist$"):
        find_benchmark(data_root / "nowhere", "pets")


def test_misplaced_keys_and_sets_without_training_images_are_named(tmp_path):
    save(DataSet(np.zeros((2, 8, 8, 1), np.uint8), np.array([0, 1])), tmp_path, "mine", "test")
    with pytest.raises(DataError, match=r"mine: has test images but no training images; .*--split train"):
        find_benchmark(tmp_path, "mine")
    (tmp_path / "benchmarks.toml").write_text('near = ["birds"]\n')
    with pytest.raises(DataError, match=r"benchmarks.toml: 'near' belongs to no benchmark; write \[NAME\]"):
        find_benchmark(tmp_path, "digits")
