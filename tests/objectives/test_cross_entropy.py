import math

import pytest
import torch
from torch import nn

from moon import CrossEntropy


def test_formula_by_hand():
    logits = torch.tensor([[1.0, 3.0], [1.0, 1.0]]).log()
    loss = CrossEntropy()(nn.Identity(), logits, torch.tensor([1, 0]), epoch=0)
    assert loss.item() == pytest.approx((-math.log(0.75) - math.log(0.5)) / 2)
