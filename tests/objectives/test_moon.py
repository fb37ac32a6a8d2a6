import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from moon import AutoWeight, Moon, lenet, moon_loss, open_head


def test_eq_1_by_hand():
    # Sample 0 is predicted correctly; sample 1 has class 0 but is predicted as 1, with p = 1/4, 1/2 | 1/4.
    logits = torch.tensor([[4.0, 2.0, 2.0], [1.0, 2.0, 1.0]]).log()
    y, w = torch.tensor([0, 0]), 2.0
    right = -math.log(1 / 2)
    wrong = -(1 + w / (1 + w * 0.25)) * math.log(1 / 4)
    assert moon_loss(logits, y, w).item() == pytest.approx((right + wrong) / 2)


def test_a_sample_predicted_unknown_counts_as_wrong():
    logits = torch.tensor([[2.0, 1.0, 3.0]]).log()
    expected = -(1 + 1 / (1 + 0.5)) * math.log(1 / 3)
    assert moon_loss(logits, torch.tensor([0]), 1.0).item() == pytest.approx(expected)


@pytest.mark.parametrize("p_y", [0.05, 0.3])
@pytest.mark.parametrize("w", [0.1, 1.0, 2.0])
def test_the_gradient_of_the_unknown_logit(w, p_y):
    # On a wrongly predicted sample dL/dz = (1 + w/(1+wp)) p - CE w^2 p (1-p) / (1+wp)^2.
    p = 0.1
    logits = torch.tensor([[p_y, 1 - p_y - p, p]], dtype=torch.float64).log().requires_grad_()
    moon_loss(logits, torch.tensor([0]), w).backward()
    ce = -math.log(p_y)
    expected = (1 + w / (1 + w * p)) * p - ce * w**2 * p * (1 - p) / (1 + w * p) ** 2
    assert logits.grad[0, 2].item() == pytest.approx(expected, rel=1e-9)


def test_the_unknown_output_rises_only_where_the_loss_is_large():
    # At small p_{K+1} the gradient is negative, so the output rises, only if CE > (1 + w) / w^2.
    for ce, rises in ((1.9, False), (2.1, True)):
        p_y, p = math.exp(-ce), 1e-6
        logits = torch.tensor([[p_y, 1 - p_y - p, p]], dtype=torch.float64).log().requires_grad_()
        moon_loss(logits, torch.tensor([0]), 1.0).backward()
        assert (logits.grad[0, 2] < 0) == rises


def test_weight_zero_is_cross_entropy():
    logits, y = torch.randn(32, 11), torch.randint(10, (32,))
    torch.testing.assert_close(moon_loss(logits, y, 0.0), cross_entropy(logits, y))


def test_the_unknown_output_is_not_a_label():
    with pytest.raises(ValueError, match=r"label 2, but with 3 outputs labels are in \[0, 2\)"):
        moon_loss(torch.zeros(2, 3), torch.tensor([0, 2]), 1.0)


def test_half_precision_logits_give_a_float32_loss():
    logits = torch.randn(8, 5).bfloat16()
    assert moon_loss(logits, torch.zeros(8).long(), 1.0).dtype == torch.float32


def test_only_quiet_epochs_are_observed():
    model = open_head(lenet(10))
    objective = Moon(AutoWeight(epochs=4, quiet_epochs=2))
    x, y = torch.randn(8, 1, 28, 28), torch.arange(8)
    loss = objective(model, x, y, epoch=0)
    torch.testing.assert_close(loss, cross_entropy(model(x), y))
    beta = objective.weight.beta.clone()
    assert beta > 0
    later = objective(model, x, y, epoch=3)
    assert torch.equal(objective.weight.beta, beta)
    torch.testing.assert_close(later, moon_loss(model(x), y, 1.0))
    assert objective.log(3) == {"w": 1.0}


def test_a_constant_weight():
    model = open_head(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    x, y = torch.randn(5, 2, 2), torch.arange(5) % 3
    for epoch in (0, 50):
        torch.testing.assert_close(Moon(0.7)(model, x, y, epoch=epoch), moon_loss(model(x), y, 0.7))
    with pytest.raises(ValueError, match="at least 0"):
        Moon(-1.0)
