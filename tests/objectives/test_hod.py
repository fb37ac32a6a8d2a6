import math

import pytest
import torch
from torch.nn.functional import binary_cross_entropy, cross_entropy

from moon.objectives import Hod


def fixed_draw(images, classes):
    """A `Draw` that returns these outliers and checks that their number is requested."""

    def draw(count):
        assert count == len(images)
        return images, classes

    return draw


def test_formula_by_hand(identity_model):
    # The image has p = 1/2, 1/4 | 1/4 and label 0; the outlier has p_{K+1} = 1/2, of which 3/4 is its class 1.
    image, outlier = torch.tensor([[2.0, 1.0, 1.0]]).log(), torch.tensor([[1.0, 1.0, 2.0]]).log()
    objective = Hod(fixed_draw(outlier, torch.tensor([1])), outlier_classes=2, num_features=3)
    with torch.no_grad():
        objective.divide.weight.zero_()
        objective.divide.bias.copy_(torch.tensor([1.0, 3.0]).log())
    terms = objective.terms(identity_model, image, torch.tensor([0]), epoch=0)
    assert terms["classes"].item() == pytest.approx(-(math.log(1 / 2) + math.log(1 / 2 * 3 / 4)) / 2)
    assert terms["known_or_outlier"].item() == pytest.approx(-0.1 * (math.log(3 / 4) + math.log(1 / 2)) / 2)


def test_it_equals_the_loss_of_a_head_with_an_output_per_outlier_class(identity_model):
    # K + O outputs: p_{K+1} * q_o is a softmax in which outlier class o has the logit z_{K+1} + log q_o.
    x, y, outliers, classes = torch.randn(6, 3), torch.arange(6) % 2, torch.randn(3, 3), torch.tensor([3, 0, 1])
    objective = Hod(fixed_draw(outliers, classes), outlier_classes=4, num_features=3, weight=0.3, per_image=0.5)
    z = torch.cat([x, outliers])
    wide = torch.cat([z[:, :2], z[:, 2:] + objective.divide(z).log_softmax(1)], 1)
    is_outlier = torch.tensor([0.0] * 6 + [1.0] * 3)
    fine = cross_entropy(wide, torch.cat([y, 2 + classes]))
    coarse = binary_cross_entropy(wide.softmax(1)[:, 2:].sum(1), is_outlier)
    torch.testing.assert_close(objective(identity_model, x, y, epoch=0), fine + 0.3 * coarse)


def test_with_one_outlier_class_it_is_cross_entropy_over_k_plus_1_outputs(identity_model):
    x, y, outliers = torch.randn(4, 3), torch.arange(4) % 2, torch.randn(4, 3)
    objective = Hod(fixed_draw(outliers, torch.zeros(4).long()), outlier_classes=1, num_features=3, weight=0.5)
    z = torch.cat([x, outliers])
    is_outlier = torch.tensor([0.0] * 4 + [1.0] * 4)
    expected = cross_entropy(z, torch.tensor([0, 1, 0, 1, 2, 2, 2, 2]))
    expected = expected + 0.5 * binary_cross_entropy(z.softmax(1)[:, 2], is_outlier)
    torch.testing.assert_close(objective(identity_model, x, y, epoch=0), expected)


def test_one_forward_pass_and_q_learns_from_outliers_only(identity_model):
    sizes = []
    identity_model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    objective = Hod(
        fixed_draw(torch.zeros(2, 3), torch.tensor([0, 1])), outlier_classes=2, num_features=3, per_image=0.5
    )
    objective(identity_model, torch.randn(4, 3), torch.arange(4) % 2, epoch=0).backward()
    assert sizes == [6]
    assert not objective.divide.weight.grad.any()  # the outliers' features are zero, those of the images are not


@pytest.mark.parametrize("wrong", [{"weight": -1.0}, {"weight": math.nan}, {"per_image": 0.0}])
def test_invalid_arguments_are_rejected(wrong):
    with pytest.raises(ValueError, match=r"must be at least 0, per_image=.* above 0, both finite"):
        Hod(fixed_draw(torch.zeros(1, 3), torch.zeros(1)), 2, 3, **wrong)


def test_no_outlier_class_is_rejected():
    with pytest.raises(ValueError, match="outlier_classes must be at least 1, not 0"):
        Hod(fixed_draw(torch.zeros(2, 3), torch.tensor([0, 1])), outlier_classes=0, num_features=3)


def test_an_outlier_class_out_of_range_is_rejected(identity_model):
    objective = Hod(fixed_draw(torch.zeros(2, 3), torch.tensor([0, 9])), outlier_classes=7, num_features=3)
    with pytest.raises(ValueError, match="an outlier has class 9, but with outlier_classes=7"):
        objective(identity_model, torch.randn(2, 3), torch.tensor([0, 1]), epoch=0)
