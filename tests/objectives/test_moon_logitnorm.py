import math

import pytest
import torch

from moon import AutoWeight, Moon, lenet, moon_loss, open_head
from moon.objectives import MoonLogitNorm
from moon.objectives.logitnorm import normalised


def test_the_norm_includes_the_unknown_output(identity_model):
    # |(3, 0, 4)| = 5 over all K+1 outputs; the unknown output is the largest, so the prediction is wrong.
    logits, label = torch.tensor([[3.0, 0.0, 4.0]]), torch.tensor([0])
    loss = MoonLogitNorm(2.0, temperature=0.5)(identity_model, logits, label, epoch=0)
    z = [1.2, 0.0, 1.6]
    total = sum(math.exp(v) for v in z)
    p_y, p_unknown = math.exp(z[0]) / total, math.exp(z[2]) / total
    assert loss.item() == pytest.approx(-(1 + 2 / (1 + 2 * p_unknown)) * math.log(p_y))


@pytest.mark.parametrize("unknown", [-0.4, 0.4])
def test_wrong_samples_move_the_unknown_logit_away_from_zero_and_right_ones_towards_it(unknown):
    # Where p_{K+1} is negligible. The card explains with it why the first steps matter for the unknown output.
    logits = torch.tensor([[2.0, 1.7, unknown]], requires_grad=True)
    for y, is_right in ((0, True), (1, False)):
        (gradient,) = torch.autograd.grad(moon_loss(normalised(logits, 0.04), torch.tensor([y]), w=1.0), logits)
        moves = -gradient[0, -1].item()
        assert moves * unknown < 0 if is_right else moves * unknown > 0


def test_it_is_moon_at_normalised_logits():
    model = open_head(lenet(10))
    x, y = torch.randn(8, 1, 28, 28), torch.arange(8)
    logits = model(x)
    assert logits.shape == (8, 11)
    loss = MoonLogitNorm(0.7, temperature=0.1)(model, x, y, epoch=0)
    torch.testing.assert_close(loss, moon_loss(normalised(logits, 0.1), y, 0.7))


def test_beta_is_observed_at_normalised_logits():
    model = open_head(lenet(10))
    objective = MoonLogitNorm(AutoWeight(epochs=4, quiet_epochs=2))
    x, y = torch.randn(8, 1, 28, 28), torch.arange(8)
    objective(model, x, y, epoch=1)
    z = model(x).detach()
    p = (z / z.norm(dim=1, keepdim=True) / 0.04).softmax(1)
    beta = ((1 - p[:, -1]) * -p[range(8), y].log()).mean()
    inner = objective.inner
    assert isinstance(inner, Moon)
    assert isinstance(inner.weight, AutoWeight)
    torch.testing.assert_close(inner.weight.beta, beta)
    assert objective.log(2) == {"w": pytest.approx(beta.item() / 64)}
    assert objective.log(3) == {"w": 1.0}


def test_options_of_a_run_reach_both_parts():
    objective = MoonLogitNorm.for_run(epochs=20, temperature=0.5, quiet_epochs=3, final=2.0)
    assert objective.temperature == 0.5
    assert objective.log(2) == {"w": 0.0}
    assert objective.log(19) == {"w": 2.0}


def test_invalid_arguments_are_rejected():
    with pytest.raises(ValueError, match="temperature must be above 0"):
        MoonLogitNorm(1.0, temperature=0.0)
    with pytest.raises(ValueError, match="w must be at least 0"):
        MoonLogitNorm(-1.0)
    with pytest.raises(ValueError, match="leaves no epoch"):
        MoonLogitNorm.for_run(epochs=5)
