"""Masks of the highest scores, by kernels on a GPU or interpreted (tests/conftest.py), against torch's sorting."""

from importlib.util import find_spec

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from moon.fast import selection, top_masks

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    monkeypatch.setattr(selection, "_has_kernels", lambda score: True)
    monkeypatch.setattr(selection, "_BLOCK", 256)


def scores(kind, count=1500):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(count, generator=generator)
    if kind == "few values":
        values = (3 * values).round()
    elif kind == "similar":
        values = 1 + values.bfloat16().float() * 1e-3
    elif kind == "mostly -inf":
        values = torch.where(torch.rand(count, generator=generator) < 0.9, -torch.inf, values.abs())
    return values.to(DEVICE)


def expected(score, count):
    """A stable sort keeps the order of equal scores, so the first of them are taken."""
    mask = torch.zeros_like(score, dtype=torch.bool)
    mask[score.sort(descending=True, stable=True).indices[:count]] = True
    return mask


@pytest.mark.parametrize("kind", ["any", "few values", "similar", "mostly -inf"])
@pytest.mark.parametrize("count", [1, 37, 700, 1499])
@pytest.mark.slow
def test_the_highest_are_those_that_sorting_finds(kind, count):
    score = scores(kind)
    assert torch.equal(top_masks([score], [count])[0], expected(score, count))


@pytest.mark.parametrize("count", [0, 1500])
def test_none_or_all_can_be_selected(count):
    assert int(top_masks([scores("any")], [count])[0].sum()) == count


def test_the_mask_has_the_strides_of_the_score():
    score = scores("any").view(5, 10, 6, 5).to(memory_format=torch.channels_last)
    (mask,) = top_masks([score], [400])
    assert mask.stride() == score.stride()
    assert int(mask.sum()) == 400
    assert score[mask].min() > score[~mask].max()
    part = score.transpose(0, 1)[::2]
    (across,) = top_masks([part], [100])
    assert int(across.sum()) == 100
    assert part[across].min() > part[~across].max()


def test_several_tensors_at_once():
    lists = [scores(kind, size) for kind, size in (("any", 1500), ("similar", 3), ("few values", 257), ("any", 256))]
    counts = [200, 2, 100, 0]
    for mask, score, count in zip(top_masks(lists, counts), lists, counts, strict=True):
        assert torch.equal(mask, expected(score, count))
    assert top_masks([], []) == []


def test_minus_zero_equals_zero():
    score = torch.tensor([-0.0, 0.0, -1.0, -0.0], device=DEVICE)
    assert top_masks([score], [2])[0].tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("error", "reason"), [(RuntimeError("\nno compiler\nsee"), "no compiler"), (AssertionError(), "AssertionError")]
)
def test_scores_are_sorted_if_a_kernel_cannot_be_compiled(monkeypatch, error, reason):
    def fail(*_):
        raise error

    monkeypatch.setattr(selection, "_kernels_work", True)
    monkeypatch.setattr(selection, "_by_kernels", fail)
    score = scores("any")
    with pytest.warns(UserWarning, match=f"masks are computed by sorting, which is slower: {reason}$"):
        (mask,) = top_masks([score], [700])
    assert torch.equal(mask, expected(score, 700))
    assert torch.equal(top_masks([score], [700])[0], mask)  # warns only once
