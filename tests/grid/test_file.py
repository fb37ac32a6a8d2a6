"""TOML files that describe a grid."""

import pytest

from moon.grid.file import read_file
from moon.recipe.labels import labels

FILE = """
benchmark = "mnist"
net = "lenet-norm"
epochs = 8
sparsity = 0.95
seed = [0, 1]
near = ["notmnist", "fashionmnist"]
far = "dtd"

[[runs]]
objective = ["cross-entropy", "moon"]

[[runs]]
objective = "cross-entropy"
rates = "moon"
vote = 0.25
"""


def test_a_file_describes_a_grid(data_root, tmp_path):
    path = tmp_path / "compare.toml"
    path.write_text(FILE)
    found = read_file(data_root, path)
    assert len(found.recipes) == 6
    settings = [(r.objective, r.lr_start, r.vote_share, r.seed) for r in found.recipes]
    assert settings[4] == ("cross-entropy", 0.12, 0.25, 0)
    names = ["cross-entropy lr_start=0.1", "cross-entropy lr_start=0.12", "moon"]
    assert sorted(set(labels(found.recipes).values())) == names
    assert (found.near, found.far) == (("notmnist", "fashionmnist"), ("dtd",))


def test_a_file_need_not_name_unknown_sets(data_root, tmp_path):
    (tmp_path / "compare.toml").write_text("benchmark = 'mnist'")
    found = read_file(data_root, tmp_path / "compare.toml")
    assert (len(found.recipes), found.near, found.far) == (1, (), ())


def test_a_block_may_have_an_objective_in_place_of_a_preset(data_root, tmp_path):
    path = tmp_path / "compare.toml"
    path.write_text("benchmark = 'mnist'\npreset = 'control'\n[[runs]]\n[[runs]]\nobjective = 'moon'\n")
    assert [recipe.objective for recipe in read_file(data_root, path).recipes] == ["cross-entropy", "moon"]
    path.write_text("benchmark = 'mnist'\nobjective = 'moon'\n[[runs]]\n[[runs]]\npreset = 'control'\n")
    assert [recipe.objective for recipe in read_file(data_root, path).recipes] == ["moon", "cross-entropy"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("benchmrk = 'mnist'", "a grid has no axis 'benchmrk' .did you mean 'benchmark'"),
        ("benchmark = 'mnst'", "unknown benchmark 'mnst' .did you mean 'mnist'"),
        ("epochs = 3", "needs at least one benchmark"),
        ("benchmark = 'mnist'\nset = 3", "'set' must be a table"),
        ("benchmark = 'mnist'\nruns = 3", "must be blocks"),
        ("benchmark = ", "is not valid TOML"),
        ("benchmark = 'mnist'\n[[runs]]\nobjective = 'mooon'", r"block 1 of \[\[runs\]\]: unknown objective 'mooon'"),
        ("benchmark = 'mnist'\nepochs = 'many'", "'epochs' must be an integer, not 'many'"),
        ("benchmark = 'mnist'\nobjective = 3", "'objective' must be a string, not 3"),
        ("benchmark = 'mnist'\npreset = ['plain', 3]", "'preset' must be a string, not 3"),
        ("benchmark = 'mnist'\nnear = [3]", r"'near' must be a list of unknown sets, not \[3\]"),
        ("benchmark = 'mnist'\n[[runs]]\nfar = 'dtd'", r"block 1 of \[\[runs\]\]: 'far' applies to the whole grid"),
    ],
)
def test_messages_about_a_file_name_the_mistake(data_root, tmp_path, text, what):
    path = tmp_path / "compare.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=what):
        read_file(data_root, path)
    with pytest.raises(ValueError, match=r"nowhere.toml: no such file"):
        read_file(data_root, tmp_path / "nowhere.toml")
