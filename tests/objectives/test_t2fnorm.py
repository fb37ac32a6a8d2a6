import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

from moon import Moon, RotPred, T2FNorm, Vos, lenet, look, open_head, rotation_head
from moon.evidence import float32_classifier
from moon.objectives.models import changed_features


def test_formula_by_hand():
    # |(3, 4)| = 5, so at tau = 0.5 the features become (1.2, 1.6); then the weights and the bias of the classifier.
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        model.bias.copy_(torch.tensor([0.5, 0.0]))
    loss = T2FNorm(0.5)(model, torch.tensor([[3.0, 4.0]]), torch.tensor([0]), epoch=0)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(3.2 - 1.7)))


def test_it_is_cross_entropy_of_normalised_features():
    model, x, y = lenet(10).eval(), torch.randn(8, 1, 28, 28), torch.arange(8)
    h = look(model, x).features
    logits = linear(h / h.norm(dim=1, keepdim=True) / 0.1, model.fc.weight, model.fc.bias)
    torch.testing.assert_close(T2FNorm()(model, x, y, epoch=0), cross_entropy(logits, y))


def test_the_gradient_is_orthogonal_to_the_features():
    model = nn.Linear(6, 4).double()
    h = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    T2FNorm()(model, h, torch.arange(5) % 4, epoch=0).backward()
    assert h.grad.abs().sum() > 0.1
    torch.testing.assert_close((h.grad * h).sum(1), torch.zeros(5, dtype=torch.float64), atol=1e-5, rtol=0)


def test_features_of_zero_give_a_finite_gradient():
    model, h = nn.Linear(6, 4), torch.zeros(2, 6, requires_grad=True)
    T2FNorm()(model, h, torch.tensor([0, 1]), epoch=0).backward()
    assert h.grad.isfinite().all()


def test_the_model_itself_is_not_normalised(small_net):
    model = small_net().eval()
    x, y = torch.randn(8, 1, 8, 8), torch.arange(8) % 4
    before = model(x)
    T2FNorm()(model, x, y, epoch=0)
    assert torch.equal(model(x), before)
    with torch.autocast("cpu", torch.bfloat16), float32_classifier(model):  # which replaces the forward pass as well
        forward = model[6].forward
        T2FNorm()(model, x, y, epoch=0)
        assert model[6].forward is forward
    assert "forward" not in vars(model[6])


def test_it_is_computed_around_moon_and_inside_rotpred(small_net):
    model = rotation_head(open_head(small_net())).eval()
    x, y = torch.randn(8, 1, 8, 8), torch.arange(8) % 4
    h = model[:6](x)
    logits = linear(10 * h / h.norm(dim=1, keepdim=True), model[6].weight, model[6].bias)
    expected = Moon(0.7).loss(logits, y, epoch=0)
    torch.testing.assert_close(T2FNorm(inner=Moon(0.7))(model, x, y, epoch=0), expected)
    terms = RotPred(inner=T2FNorm(inner=Moon(0.7))).terms(model, x, y, epoch=0)
    torch.testing.assert_close(terms["unknown_aware"], expected)
    # The rotation head gets the features as they are, as it does when images are scored.
    torch.testing.assert_close(terms["rotation"], RotPred().terms(model, x, y, epoch=0)["rotation"])
    terms = T2FNorm(inner=RotPred(inner=Moon(0.7))).terms(model, x, y, epoch=0)
    torch.testing.assert_close(terms["unknown_aware"], expected)


def test_what_it_cannot_use_is_rejected(small_net):
    class Functional(nn.Module):
        """Uses the weight of its classifier without calling it."""

        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            return linear(x, self.fc.weight)

    with pytest.raises(ValueError, match="'fc' of Functional was never called as a layer"):
        T2FNorm()(Functional(), torch.ones(2, 4), torch.tensor([0, 1]), epoch=0)
    with pytest.raises(ValueError, match="Vos cannot be an inner objective"):
        T2FNorm(inner=Vos(4, 16, 10))(small_net(), torch.randn(8, 1, 8, 8), torch.arange(8) % 4, epoch=0)
    for tau in (0.0, -0.1, math.nan):
        with pytest.raises(ValueError, match="tau must be above 0"):
            T2FNorm(tau)


def test_changed_features_are_restored_after_an_error():
    model = nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="stop"), changed_features(model, lambda features: features):
        raise RuntimeError("stop")
    assert "forward" not in vars(model)
