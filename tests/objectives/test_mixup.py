import math

import pytest
import torch
from torch.distributions import Beta
from torch.nn.functional import cross_entropy

from moon.objectives import Mixup
from moon.objectives.mixing import blended, blended_cross_entropy


def fix_share(monkeypatch, share):
    monkeypatch.setattr(Beta, "sample", lambda _: torch.tensor(share))


def test_a_blend_is_of_two_images_with_one_share_per_batch():
    # The images are unit vectors, so a blend shows its two images and the share.
    y = torch.arange(6)
    blend, other, share = blended(torch.eye(6), y, 1.0)
    assert share.shape == ()
    assert 0 < share < 1
    assert torch.equal(other.sort().values, y)
    assert not torch.equal(other, y)
    torch.testing.assert_close(blend, share * torch.eye(6) + (1 - share) * torch.eye(6)[other])


@pytest.mark.parametrize("concentration", [0.2, 20.0])
def test_the_share_is_drawn_from_beta(concentration):
    x, y = torch.zeros(1, 1), torch.zeros(1).long()
    shares = torch.stack([blended(x, y, concentration)[2] for _ in range(2000)])
    assert shares.mean().item() == pytest.approx(0.5, abs=0.04)
    assert shares.std().item() == pytest.approx(0.5 / math.sqrt(2 * concentration + 1), rel=0.1)


def test_the_blended_loss_is_cross_entropy_with_soft_labels():
    logits, y, other = torch.randn(8, 5), torch.arange(8) % 5, torch.arange(1, 9) % 5
    soft = 0.3 * torch.eye(5)[y] + 0.7 * torch.eye(5)[other]
    torch.testing.assert_close(blended_cross_entropy(logits, y, other, torch.tensor(0.3)), cross_entropy(logits, soft))


@pytest.mark.parametrize("share", [1.0, 0.0])
def test_a_share_of_1_or_0_is_cross_entropy(share, monkeypatch, small_net):
    # With a share of 0 images and labels are only in another order.
    fix_share(monkeypatch, share)
    model = small_net().eval()
    x, y = torch.randn(8, 1, 8, 8), torch.arange(8) % 4
    torch.testing.assert_close(Mixup()(model, x, y, epoch=0), cross_entropy(model(x), y))


def test_the_model_gets_blends_only(monkeypatch, small_net):
    fix_share(monkeypatch, 0.5)
    model, batches = small_net(), []
    model.register_forward_pre_hook(lambda _, inputs: batches.append(inputs[0]))
    x = torch.eye(64).reshape(64, 1, 8, 8)
    Mixup()(model, x, torch.arange(64) % 4, epoch=0)
    assert [len(batch) for batch in batches] == [64]
    assert ((batches[0] == 0.5).sum((1, 2, 3)) == 2).float().mean() > 0.8  # few images are blended with themselves


def test_a_model_with_the_unknown_output(identity_model, monkeypatch):
    # p = 1/2, 1/4 | 1/4 for two equal images with labels 0 and 1, in any order.
    fix_share(monkeypatch, 0.25)
    x = torch.tensor([[2.0, 1.0, 1.0]]).log().repeat(2, 1)
    loss = Mixup()(identity_model, x, torch.tensor([0, 1]), epoch=0)
    assert loss.item() == pytest.approx((math.log(2) + math.log(4)) / 2)


@pytest.mark.parametrize("concentration", [0.0, -1.0, math.inf, math.nan])
def test_an_invalid_concentration_is_rejected(concentration):
    with pytest.raises(ValueError, match="concentration must be above 0 and finite"):
        Mixup(concentration)
