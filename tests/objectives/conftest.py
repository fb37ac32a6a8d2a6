import pytest
import torch

from moon import OpenHead


@pytest.fixture
def identity_model():
    """A model whose logits and features are its input, K = 2."""
    head = OpenHead(3, 2)
    with torch.no_grad():
        head.weight.copy_(torch.eye(3))
        head.bias.zero_()
    return head
