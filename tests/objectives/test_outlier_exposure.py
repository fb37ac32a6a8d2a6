import math

import pytest
import torch
from torch import nn

from moon.objectives import OutlierExposure


def same(image):
    """A `Draw` that returns copies of this image."""
    return lambda count: (image.repeat(count, *(1 for _ in image.shape[1:])), torch.zeros(count).long())


def test_formula_by_hand():
    # The image has p = 1/2, 1/4, 1/4 and label 0, the outliers 3/4, 1/8, 1/8.
    image, outlier = torch.tensor([[2.0, 1.0, 1.0]]).log(), torch.tensor([[6.0, 1.0, 1.0]]).log()
    terms = OutlierExposure(same(outlier)).terms(nn.Identity(), image, torch.tensor([0]), epoch=0)
    assert terms["cross_entropy"].item() == pytest.approx(math.log(2))
    assert terms["undecided"].item() == pytest.approx(-0.5 / 3 * (math.log(3 / 4) + 2 * math.log(1 / 8)))


def test_a_uniform_prediction_has_no_gradient():
    uniform = torch.zeros(1, 4, requires_grad=True)
    terms = OutlierExposure(same(uniform), weight=2.0).terms(
        nn.Identity(), torch.zeros(1, 4), torch.tensor([0]), epoch=0
    )
    assert terms["undecided"].item() == pytest.approx(2 * math.log(4))
    terms["undecided"].backward()
    torch.testing.assert_close(uniform.grad, torch.zeros(1, 4))


@pytest.mark.parametrize(("per_image", "drawn"), [(2.0, 12), (0.4, 2), (0.01, 1)])
def test_images_and_outliers_share_one_forward_pass(per_image, drawn, small_net):
    model, batches, counts = small_net(), [], []
    model.register_forward_pre_hook(lambda _, inputs: batches.append(inputs[0]))

    def draw(count):
        counts.append(count)
        return same(torch.ones(1, 1, 8, 8))(count)

    x = torch.randn(6, 1, 8, 8)
    OutlierExposure(draw, per_image=per_image)(model, x, torch.arange(6) % 4, epoch=0)
    assert counts == [drawn]
    assert [len(batch) for batch in batches] == [6 + drawn]
    assert torch.equal(batches[0][:6], x)


@pytest.mark.parametrize("wrong", [{"weight": -1.0}, {"weight": math.nan}, {"per_image": 0.0}])
def test_invalid_arguments_are_rejected(wrong):
    with pytest.raises(ValueError, match=r"must be at least 0, per_image=.* above 0, both finite"):
        OutlierExposure(same(torch.zeros(1, 3)), **wrong)
