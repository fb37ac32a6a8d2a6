"""The best of many scores, by kernels on a GPU or interpreted (tests/conftest.py), against torch's sorting."""

from importlib.util import find_spec

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from moon.fast import select, top

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    monkeypatch.setattr(select, "_is_selected", lambda score: True)
    monkeypatch.setattr(select, "_BLOCK", 256)


def scores(kind, count=1500):
    made = torch.Generator().manual_seed(0)
    values = torch.randn(count, generator=made)
    if kind == "few values":
        values = (3 * values).round()
    elif kind == "narrow":
        values = 1 + values.bfloat16().float() * 1e-3
    elif kind == "mostly out":
        values = torch.where(torch.rand(count, generator=made) < 0.9, -torch.inf, values.abs())
    return values.to(DEVICE)


def expected(score, count):
    """A stable sort has equals in their order, so the first of them."""
    mask = torch.zeros_like(score, dtype=torch.bool)
    mask[score.sort(descending=True, stable=True).indices[:count]] = True
    return mask


@pytest.mark.parametrize("kind", ["any", "few values", "narrow", "mostly out"])
@pytest.mark.parametrize("count", [1, 37, 700, 1499])
def test_the_best_are_those_that_sorting_finds(kind, count):
    score = scores(kind)
    assert torch.equal(top([score], [count])[0], expected(score, count))


@pytest.mark.parametrize("count", [0, 1500])
def test_none_and_all(count):
    assert int(top([scores("any")], [count])[0].sum()) == count


def test_the_mask_is_laid_out_as_the_score():
    score = scores("any").view(5, 10, 6, 5).to(memory_format=torch.channels_last)
    (mask,) = top([score], [400])
    assert mask.stride() == score.stride()
    assert int(mask.sum()) == 400
    assert score[mask].min() > score[~mask].max()
    part = score.transpose(0, 1)[::2]
    (across,) = top([part], [100])
    assert int(across.sum()) == 100
    assert part[across].min() > part[~across].max()


def test_many_lists_at_once():
    lists = [scores(kind, size) for kind, size in (("any", 1500), ("narrow", 3), ("few values", 257), ("any", 256))]
    counts = [200, 2, 100, 0]
    for mask, score, count in zip(top(lists, counts), lists, counts, strict=True):
        assert torch.equal(mask, expected(score, count))
    assert top([], []) == []


def test_minus_zero_is_zero():
    score = torch.tensor([-0.0, 0.0, -1.0, -0.0], device=DEVICE)
    assert top([score], [2])[0].tolist() == [True, True, False, False]


def test_where_a_kernel_cannot_be_compiled_scores_are_sorted(monkeypatch):
    monkeypatch.setattr(select, "_works", True)
    monkeypatch.setattr(select, "_selected", lambda *_: 1 / 0)
    score = scores("any")
    with pytest.warns(UserWarning, match="scores are sorted, which is slower: division by zero"):
        (mask,) = top([score], [700])
    assert torch.equal(mask, expected(score, 700))
    assert torch.equal(top([score], [700])[0], mask)  # says it once
