"""Growth among equal scores: gradients in bfloat16 often tie, and the position must not decide which weights grow."""

from importlib.util import find_spec
from math import sqrt

import pytest
import torch
from torch import nn

from moon import DropSchedule, NOfM, RigL, uniform
from moon.fast import selection, top_masks
from moon.seeds import hashed_uniform

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # without a GPU, kernels are interpreted (tests/conftest.py)
KERNELS = pytest.param(True, marks=pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"))


def lean(chosen, tied):
    """How many standard errors the positions of the chosen ones are from the middle of all tied ones, if at random."""
    places = chosen.flatten()[tied.flatten()]
    n, k = len(places), int(places.sum())
    ranks = (torch.arange(n) + 0.5) / n - 0.5
    return float(ranks[places].sum()) / sqrt(k / 12 * (n - k) / (n - 1)), n, k


def rewired(grad, seed=0, kind=RigL, **options):
    """A layer with this gradient: its masks before and after a rewiring."""
    torch.manual_seed(seed)
    layer = nn.Linear(grad.shape[1], grad.shape[0], bias=False).to(DEVICE)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    topology = kind(layer, optimizer, schedule=DropSchedule(100, 1), allocation=uniform, seed=seed, **options)
    before = topology.masks["weight"].cpu().clone()
    topology.steps = 10
    layer.weight.grad = grad.to(DEVICE)
    topology.step()
    return before, topology.masks["weight"].cpu().clone()


@pytest.mark.parametrize("by_kernels", [False, KERNELS])
def test_growth_does_not_depend_on_the_position_of_tied_gradients(by_kernels, monkeypatch):
    monkeypatch.setattr(selection, "_has_kernels", lambda score: by_kernels)
    monkeypatch.setattr(selection, "_BLOCK", 4096)
    leans = []
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        grad = torch.randn(60, 200, generator=generator).bfloat16().float()
        grad[grad.abs() > 1] = 1.0  # more ties at the threshold than there are weights to grow
        before, after = rewired(grad, seed, sparsity=0.9)
        grown, tied = after & ~before, (grad == 1) & ~before
        assert (grown & tied).any()
        assert after.sum() == before.sum()
        leans.append(lean(grown & tied, tied))
    z = sum(value for value, _, _ in leans) / sqrt(len(leans))
    assert abs(z) < 3
    # The same test finds the fault if the first of the tied ones are taken.
    _, n, k = leans[0]
    assert lean(torch.arange(n) < k, torch.ones(n, dtype=torch.bool))[0] < -10


def test_growth_in_a_pattern_does_not_depend_on_the_position_either():
    grad = torch.ones(100, 400)  # all tied
    before, after = rewired(grad, sparsity=0.5, pattern=NOfM(2, 4))
    grown = (after & ~before).view(-1, 4).sum(0)
    expected = grown.sum() / 4
    assert expected > 100
    assert ((grown - expected).abs() < 4 * expected.sqrt()).all()
    assert (after.view(-1, 4).sum(1) == 2).all()


def test_another_step_or_seed_grows_other_ones_and_the_same_grows_the_same():
    grad = torch.ones(20, 50)
    (before, first), (_, again), (_, other) = (rewired(grad, seed, sparsity=0.9) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.sum() == before.sum() == other.sum()


@pytest.mark.parametrize("options", [{"sparsity": 0.9}, {"sparsity": 0.5, "pattern": NOfM(2, 4)}])
def test_without_ties_the_highest_scores_grow(options, monkeypatch):
    grad = torch.randn(60, 200)
    grad = grad.flatten().argsort().argsort().view(60, 200) + 1.0  # all different
    _, expected = rewired(grad, **options)
    monkeypatch.setattr("moon.sparse.sparse_topology._hashed", lambda key, weight: torch.zeros_like(weight))
    assert torch.equal(rewired(grad, **options)[1], expected)


@pytest.mark.parametrize("count", [0, 1, 3, 5, 8])
def test_counts_are_exact_whatever_the_scores(count):
    inf, nan = float("inf"), float("nan")
    for values in ([1.0] * 8, [0.0, -0.0] * 4, [nan] * 8, [nan, 1.0] * 4, [inf, 1.0] * 4, [-inf] * 3 + [1.0] * 5):
        score = torch.tensor(values)
        (mask,) = top_masks([score], [count], [hashed_uniform(3, 8, "cpu")])
        assert mask.sum() == count
        if count <= 5:
            assert not mask[score == -inf].any()


def test_by_hand():
    score, ties = torch.tensor([2.0, 5.0, 2.0, 1.0, 2.0]), torch.tensor([0.2, 0.0, 0.9, 0.99, 0.5])
    assert top_masks([score], [3], [ties])[0].tolist() == [False, True, True, False, True]
