import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from moon.objectives import LabelSmoothing


def test_formula_by_hand():
    # p = 1/2, 1/4, 1/4: the label keeps 0.7, and each class, the label too, gets 0.1.
    logits = torch.tensor([[2.0, 1.0, 1.0]]).log()
    expected = -0.7 * math.log(1 / 2) - 0.1 * (math.log(1 / 2) + 2 * math.log(1 / 4))
    assert LabelSmoothing(0.3)(nn.Identity(), logits, torch.tensor([0]), epoch=0).item() == pytest.approx(expected)


def test_the_default_smoothing():
    logits, y = torch.randn(6, 5), torch.arange(6) % 5
    soft = 0.9 * torch.eye(5)[y] + 0.1 / 5
    expected = -(soft * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(LabelSmoothing()(nn.Identity(), logits, y, epoch=0), expected)


def test_the_gradient_is_zero_at_the_smoothed_target():
    # With e = 0.3 and K = 3 the best p_y is 0.7 + 0.1.
    logits = torch.tensor([[0.8, 0.1, 0.1]]).log().requires_grad_()
    LabelSmoothing(0.3)(nn.Identity(), logits, torch.tensor([0]), epoch=0).backward()
    torch.testing.assert_close(logits.grad, torch.zeros(1, 3))


def test_no_smoothing_is_cross_entropy_and_full_smoothing_ignores_the_label():
    logits, y = torch.randn(8, 5), torch.arange(8) % 5
    torch.testing.assert_close(LabelSmoothing(0.0)(nn.Identity(), logits, y, epoch=0), cross_entropy(logits, y))
    full = LabelSmoothing(1.0)
    torch.testing.assert_close(full(nn.Identity(), logits, y, epoch=0), -logits.log_softmax(1).mean())


@pytest.mark.parametrize("smoothing", [-0.1, 1.1, math.nan])
def test_an_invalid_smoothing_is_rejected(smoothing):
    with pytest.raises(ValueError, match=r"smoothing must be in \[0, 1\]"):
        LabelSmoothing(smoothing)
