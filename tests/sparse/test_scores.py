"""Scores of topologies that others write."""

import pytest
import torch
from torch import nn

from moon import DropSchedule, SparseTopology


def step(grow=lambda weight, grad: grad.abs(), keep=lambda weight, grad: weight.abs(), grad=1.0):
    """One step of a topology with these scores, in which masks change."""
    methods = {"grow_score": lambda _, *layer: grow(*layer), "keep_score": lambda _, *layer: keep(*layer)}
    torch.manual_seed(0)
    model = nn.Linear(20, 10, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mine = type("Mine", (SparseTopology,), methods)
    topology = mine(model, optimizer, 0.8, DropSchedule(t_end=10, delta_t=1, fraction=0.5))
    for _ in range(2):
        model.weight.grad = grad * torch.randn(10, 20)
        topology.step()
    return model.weight


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({"grow": lambda weight, grad: grad.abs().sum()}, r"Mine.grow_score of 'weight' .*, not shape \(\)"),
        ({"grow": lambda weight, grad: None}, r"Mine.grow_score of 'weight' .* shape \(10, 20\), not NoneType"),
        ({"keep": lambda weight, grad: weight.abs()[:1]}, r"Mine.keep_score of 'weight' .*, not shape \(1, 20\)"),
        ({"grow": lambda weight, grad: weight / weight}, "Mine.grow_score of 'weight' is NaN for some weights.*0 / 0"),
        ({"keep": lambda weight, grad: weight}, "Mine.keep_score of 'weight' is below 0 for some weights"),
    ],
)  # fmt: skip
def test_scores_that_are_none_are_errors(scores, message):
    with pytest.raises(ValueError, match=message):
        step(**scores)


def test_keep_scores_of_weights_that_are_zero_are_ignored():
    assert torch.equal(step(keep=lambda weight, grad: torch.where(weight == 0, float("nan"), weight.abs())), step())


def test_a_diverged_run_is_not_blamed_on_the_scores():
    assert not step(grad=float("nan")).isfinite().all()
