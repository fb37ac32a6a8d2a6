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
    monkeypatch.setattr(select, "_has_kernels", lambda score: True)
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


@pytest.mark.parametrize("kind", ["any", "few values", "narrow", "mostly out"])
@pytest.mark.parametrize("count", [1, 37, 700, 1499])
def test_the_best_are_those_that_sorting_finds(kind, count):
    score = scores(kind)
    (mask,) = top([score], [count])
    # A stable sort has equals in their order, so the first of them.
    expected = torch.zeros_like(mask)
    expected[score.sort(descending=True, stable=True).indices[:count]] = True
    assert torch.equal(mask, expected)


@pytest.mark.parametrize("count", [0, 1500])
def test_none_and_all(count):
    assert int(top([scores("any")], [count])[0].sum()) == count


def test_the_mask_is_laid_out_as_the_score():
    score = scores("any").view(5, 10, 6, 5).to(memory_format=torch.channels_last)
    (mask,) = top([score], [400])
    assert mask.stride() == score.stride()
    assert int(mask.sum()) == 400
    assert score[mask].min() > score[~mask].max()
    (across,) = top([score.transpose(0, 1)[::2]], [100])
    assert int(across.sum()) == 100
    assert across.shape == (5, 5, 6, 5)


def test_many_lists_at_once():
    lists = [scores(kind, size) for kind, size in (("any", 1500), ("narrow", 3), ("few values", 257), ("any", 256))]
    counts = [200, 2, 100, 0]
    for mask, score, count in zip(top(lists, counts), lists, counts, strict=True):
        assert torch.equal(mask, top([score], [count])[0])
    assert top([], []) == []
