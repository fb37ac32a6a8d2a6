import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from moon import Moon, WeightVote, moon_loss, open_head
from moon.objectives import CigL, LabelSmoothing


def batch():
    return torch.randn(8, 1, 8, 8), torch.arange(8) % 4


def spy(module):
    """A list that records the parameters of this module in each forward pass."""
    recorded = []
    module.register_forward_pre_hook(
        lambda m, _: recorded.append({name: value.detach().clone() for name, value in m.named_parameters()})
    )
    return recorded


def test_every_step_drops_other_weights(small_net):
    model = small_net()
    recorded, x, y = spy(model[4]), *batch()
    for _ in range(2):
        CigL(0.25)(model, x, y, epoch=0)
    first, second = (parameters["weight"] for parameters in recorded)
    for weight in (first, second):
        assert (weight == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)
        assert torch.equal(weight[weight != 0], model[4].weight[weight != 0])
    assert not torch.equal(first, second)


def test_the_rate_applies_to_non_zero_weights(small_net):
    model = small_net()
    with torch.no_grad():
        model[4].weight[:, ::2] = 0
    recorded = spy(model[4])
    CigL(0.25)(model, *batch(), epoch=0)
    weight = recorded[0]["weight"]
    assert (weight[:, 1::2] == 0).float().mean().item() == pytest.approx(0.25, abs=0.03)


def test_biases_and_norms_are_never_dropped(small_net):
    model = small_net()
    norm, linear = spy(model[1]), spy(model[4])
    CigL(0.9)(model, *batch(), epoch=0)
    assert torch.equal(norm[0]["weight"], model[1].weight)
    assert torch.equal(linear[0]["bias"], model[4].bias)


def test_a_dropped_weight_has_no_gradient_and_a_zero_weight_keeps_its_gradient():
    model, x, y = nn.Linear(40, 3), torch.randn(8, 40), torch.arange(8) % 3
    with torch.no_grad():
        model.weight[:, ::2] = 0
    recorded = spy(model)
    CigL(0.5)(model, x, y, epoch=0).backward()
    used = recorded[0]["weight"]
    is_zero = model.weight.detach() == 0
    dropped = ~is_zero & (used == 0)
    assert 15 < dropped.sum() < 45
    thinned = used.clone().requires_grad_()
    cross_entropy(x @ thinned.T + model.bias, y).backward()  # the gradients of all weights at the thinned ones
    torch.testing.assert_close(model.weight.grad, thinned.grad.masked_fill(dropped, 0.0))
    assert (model.weight.grad[is_zero] != 0).all()


def test_votes_and_evaluation_see_all_weights(small_net):
    model = small_net()
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    x, y = batch()
    vote = WeightVote(model)
    for _ in range(2):
        CigL(0.9)(model, x, y, epoch=0).backward()
        vote.cast(model)
    elected = vote.elect([(x, y)])
    for found in (model, elected):
        for key, value in found.named_parameters():
            assert torch.equal(value, before[key]), key
    recorded = spy(model.eval()[4])
    model(x)
    assert torch.equal(recorded[0]["weight"], before["4.weight"])


def test_batchnorm_statistics_are_updated(small_net):
    model = small_net()
    CigL(0.1)(model, *batch(), epoch=0)
    assert model[1].num_batches_tracked == 1
    assert model[1].running_mean.any()


def test_a_step_does_not_affect_the_next_one(small_net):
    model, (x, y) = small_net().eval(), batch()
    plain = cross_entropy(model(x), y)
    for rate in (0.9, 0.5):
        assert not torch.equal(CigL(rate)(model, x, y, epoch=0), plain)
        assert torch.equal(CigL(0.0)(model, x, y, epoch=0), plain)
    assert not CigL().state_dict()


def test_other_inner_objectives(small_net):
    model, (x, y) = open_head(small_net()).eval(), batch()
    smooth = CigL(0.0, LabelSmoothing(0.2))(model, x, y, epoch=0)
    torch.testing.assert_close(smooth, cross_entropy(model(x), y, label_smoothing=0.2))
    torch.testing.assert_close(CigL(0.0, Moon(0.5))(model, x, y, epoch=0), moon_loss(model(x), y, 0.5))
    assert CigL(0.0, Moon(0.5)).log(0) == {"w": 0.5}


@pytest.mark.parametrize("rate", [-0.1, 1.0, math.nan])
def test_an_invalid_rate_is_rejected(rate):
    with pytest.raises(ValueError, match=r"rate must be in \[0, 1\)"):
        CigL(rate)
