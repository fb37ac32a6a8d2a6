import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from moon import AutoWeight
from moon.objectives import Dac

# p = 1/2, 1/4 | 1/4 and label 0: of the probability 3/4 not to abstain, 2/3 is on the right class.
LOGITS, LABEL = torch.tensor([[2.0, 1.0, 1.0]]).log(), torch.tensor([0])
H_K = math.log(3 / 2)


def test_formula_by_hand(identity_model):
    objective = Dac(AutoWeight(epochs=5, quiet_epochs=1, final=3.0))
    terms = objective.terms(identity_model, LOGITS, LABEL, epoch=4)
    assert terms["cross_entropy"].item() == pytest.approx(3 / 4 * H_K)
    assert terms["abstention"].item() == pytest.approx(-3.0 * math.log(3 / 4))


def test_quiet_epochs_are_cross_entropy_over_all_outputs(identity_model):
    logits, y = torch.randn(16, 3), torch.arange(16) % 2
    objective = Dac(AutoWeight(epochs=5, quiet_epochs=2, final=3.0))
    for epoch in (0, 1):
        torch.testing.assert_close(objective(identity_model, logits, y, epoch=epoch), cross_entropy(logits, y))


def test_the_first_price_is_a_fraction_of_the_observed_average(identity_model):
    objective = Dac(AutoWeight(epochs=5, quiet_epochs=1, init_factor=8.0))
    objective(identity_model, LOGITS, LABEL, epoch=0)
    assert objective.price.beta.item() == pytest.approx(3 / 4 * H_K)  # of the K-way cross-entropy
    price = 3 / 4 * H_K / 8
    terms = objective.terms(identity_model, LOGITS, LABEL, epoch=1)
    assert terms["abstention"].item() == pytest.approx(-price * math.log(3 / 4))
    assert objective.price.beta.item() == pytest.approx(3 / 4 * H_K)  # only quiet epochs are observed


def test_the_price_rises_linearly_to_its_final_value():
    objective = Dac(AutoWeight(epochs=8, quiet_epochs=3, final=2.0))
    prices = [objective.log(epoch)["price"] for epoch in range(8)]
    assert prices == pytest.approx([0, 0, 0, 0, 0.5, 1.0, 1.5, 2.0])


def test_a_nearly_certain_abstention_has_a_finite_loss_and_a_gradient(identity_model):
    # In float32, p_{K+1} = 1 and 1 - p_{K+1} = 0 here. With a clamped p the gradient would vanish.
    logits = torch.tensor([[0.0, 0.0, 200.0]], requires_grad=True)
    loss = Dac(AutoWeight(epochs=2, quiet_epochs=1))(identity_model, logits, LABEL, epoch=1)
    loss.backward()
    assert loss.item() == pytest.approx(200 - math.log(2))
    torch.testing.assert_close(logits.grad, torch.tensor([[-0.5, -0.5, 1.0]]))


def test_invalid_arguments_are_rejected():
    with pytest.raises(ValueError, match="quiet_epochs=10 of epochs=10 leaves no epoch"):
        Dac.for_run(epochs=10)
    with pytest.raises(ValueError, match="final=-1"):
        Dac.for_run(epochs=20, final=-1)
