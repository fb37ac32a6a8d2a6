"""Grids: axes and files become recipes."""

import pytest

from moon.recipe.expand import expand

SMALL = {"benchmark": "mnist", "net": "lenet-norm", "epochs": 2, "batch_size": 64}


def test_a_grid_contains_every_combination_once(data_root):
    found = expand(
        data_root, SMALL | {"objective": "mixup", "topology": ["dense", "rigl"], "sparsity": [0.8, 0.9], "seed": [0, 1]}
    )
    assert len(found) == 2 * (1 + 2)  # a dense network has no sparsity
    assert {(r.topology, r.sparsity, r.seed) for r in found} == {
        ("dense", 0.0, 0), ("dense", 0.0, 1), ("rigl", 0.8, 0), ("rigl", 0.8, 1), ("rigl", 0.9, 0), ("rigl", 0.9, 1),
    }  # fmt: skip


def test_options_apply_to_the_objectives_that_have_them(data_root):
    found = expand(
        data_root, SMALL | {"objective": ["cross-entropy", "moon"], "set": {"final": [1, 2], "quiet_epochs": 1}}
    )
    options = sorted((r.objective, r.objective_options) for r in found)
    assert options == [
        ("cross-entropy", ()),
        ("moon", (("final", 1.0), ("quiet_epochs", 1))),
        ("moon", (("final", 2.0), ("quiet_epochs", 1))),
    ]
    with pytest.raises(ValueError, match=r"or topology of the grid has an option 'finale' \(did you mean 'final'"):
        expand(data_root, SMALL | {"objective": ["cross-entropy", "moon"], "set": {"finale": 1}})


def test_presets_are_an_axis(data_root):
    found = expand(data_root, SMALL | {"preset": ["plain", "control"], "seed": [0, 1]})
    assert [(r.objective, r.lr_start, r.vote_share, r.seed) for r in found] == [
        ("cross-entropy", 0.1, 0.0, 0), ("cross-entropy", 0.1, 0.0, 1),
        ("cross-entropy", 0.12, 0.2, 0), ("cross-entropy", 0.12, 0.2, 1),
    ]  # fmt: skip
    (one,) = expand(data_root, SMALL | {"preset": "without-lm", "set": {"quiet_epochs": 1}, "vote": 0.5})
    assert one.objective_options == (("final", 0.0), ("quiet_epochs", 1), ("schedule", "final"))
    assert one.vote_share == 0.5
    with pytest.raises(ValueError, match="preset 'control' has objective 'cross-entropy'"):
        expand(data_root, SMALL | {"preset": "control", "objective": "moon", "epochs": 9})
    with pytest.raises(ValueError, match="preset 'without-lm' sets option 'final' itself; leave one of the two out"):
        expand(data_root, SMALL | {"preset": ["plain", "without-lm"], "set": {"final": 2}, "epochs": 9})
    with pytest.raises(ValueError, match=r"unknown preset 'contrl' \(did you mean 'control'"):
        expand(data_root, SMALL | {"preset": "contrl"})
