import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from moon import Moon, open_head
from moon.objectives import LabelSmoothing, LogitNorm
from moon.objectives.logitnorm import normalised


def test_formula_by_hand():
    # |(3, 4)| = 5, so at temperature 0.5 the logits become (1.2, 1.6).
    logits = torch.tensor([[3.0, 4.0]])
    torch.testing.assert_close(normalised(logits, 0.5), torch.tensor([[1.2, 1.6]]))
    loss = LogitNorm(0.5)(nn.Identity(), logits, torch.tensor([0]), epoch=0)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(0.4)))


def test_the_default_temperature():
    logits = torch.tensor([[0.6, 0.8]])
    assert LogitNorm()(nn.Identity(), logits, torch.tensor([1]), epoch=0).item() == pytest.approx(
        math.log(1 + math.exp(-0.2 / 0.04))
    )


def test_the_norm_of_the_logits_does_not_change_the_loss(small_net):
    model = small_net().eval()
    x, y = torch.randn(8, 1, 8, 8), torch.arange(8) % 4
    before = LogitNorm()(model, x, y, epoch=0)
    with torch.no_grad():
        model[6].weight *= 7
        model[6].bias *= 7
    torch.testing.assert_close(LogitNorm()(model, x, y, epoch=0), before)


def test_the_gradient_is_orthogonal_to_the_logits():
    logits = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    LogitNorm(1.0)(nn.Identity(), logits, torch.arange(5) % 4, epoch=0).backward()
    assert logits.grad.abs().sum() > 0.1
    torch.testing.assert_close((logits.grad * logits).sum(1), torch.zeros(5, dtype=torch.float64), atol=1e-6, rtol=0)


def test_zero_logits_give_a_uniform_prediction_and_a_finite_gradient():
    logits = torch.zeros(2, 4, requires_grad=True)
    loss = LogitNorm()(nn.Identity(), logits, torch.tensor([0, 1]), epoch=0)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(4))
    assert logits.grad.isfinite().all()


def test_other_inner_objectives(small_net):
    model = open_head(small_net()).eval()
    x, y = torch.randn(8, 1, 8, 8), torch.arange(8) % 4
    z = model(x)
    z = z / z.norm(dim=1, keepdim=True) / 0.1
    smooth = LogitNorm(0.1, LabelSmoothing(0.2))(model, x, y, epoch=0)
    torch.testing.assert_close(smooth, cross_entropy(z, y, label_smoothing=0.2))
    assert LogitNorm(0.1, Moon(0.5)).log(3) == {"w": 0.5}


@pytest.mark.parametrize("temperature", [0.0, -0.04, math.nan])
def test_an_invalid_temperature_is_rejected(temperature):
    with pytest.raises(ValueError, match="temperature must be above 0"):
        LogitNorm(temperature)
