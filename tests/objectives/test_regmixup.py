import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from moon.objectives import RegMixup
from moon.objectives.mixing import blended


def test_both_terms_against_cross_entropy():
    model = nn.Linear(6, 4)
    x, y = torch.randn(8, 6), torch.arange(8) % 4
    torch.manual_seed(3)
    terms = RegMixup(concentration=2.0, weight=0.5).terms(model, x, y, epoch=0)
    torch.manual_seed(3)
    blend, other, share = blended(x, y, 2.0)
    soft = share * torch.eye(4)[y] + (1 - share) * torch.eye(4)[other]
    torch.testing.assert_close(terms["cross_entropy"], cross_entropy(model(x), y))
    torch.testing.assert_close(terms["blended"], 0.5 * cross_entropy(model(blend), soft))


def test_images_and_blends_share_one_forward_pass(small_net):
    model, batches = small_net(), []
    model.register_forward_pre_hook(lambda _, inputs: batches.append(inputs[0]))
    x = torch.randn(8, 1, 8, 8)
    RegMixup()(model, x, torch.arange(8) % 4, epoch=0)
    assert [len(batch) for batch in batches] == [16]
    assert torch.equal(batches[0][:8], x)


def test_the_default_shares_are_near_one_half():
    shares = [blended(torch.zeros(1), torch.zeros(1).long(), RegMixup().concentration)[2] for _ in range(500)]
    assert torch.stack(shares).std().item() == pytest.approx(0.5 / math.sqrt(41), rel=0.15)


def test_invalid_arguments_are_rejected():
    with pytest.raises(ValueError, match="concentration must be above 0 and finite"):
        RegMixup(concentration=0.0)
    for weight in (-1.0, math.nan):
        with pytest.raises(ValueError, match="weight must be at least 0"):
            RegMixup(weight=weight)
