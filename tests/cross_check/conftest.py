"""What the cross-checks share: random evidence with more classes and features than the other tests need."""

import pytest
import torch

from moon import Evidence

CLASSES, FEATURES = 5, 16


@pytest.fixture
def seen():
    """A function that makes random evidence: 5 known classes, 16 features that are not negative, one in five wrong."""

    def make(count: int = 400, seed: int = 0, is_open: bool = False) -> Evidence:
        chance = torch.Generator().manual_seed(7)
        weight = 0.5 * torch.randn(CLASSES + 1, FEATURES, generator=chance)[: CLASSES + is_open]
        bias = 0.3 * torch.randn(CLASSES + 1, generator=chance)[: CLASSES + is_open] - 0.6 * weight.sum(1)
        chance = torch.Generator().manual_seed(seed)
        labels = torch.arange(count) % CLASSES
        noise = torch.randn(count, FEATURES, generator=chance)
        features = (noise + 1.5 * weight[labels] + 0.3).relu()
        return Evidence(features @ weight.T + bias, features, CLASSES, labels, (weight, bias))

    return make


@pytest.fixture
def two_scores():
    """A function that makes scores of known and of unknown inputs: far apart or not, with ties or without."""

    def make(known: int, unknown: int, gap: float = 1.0, tied: bool = False, seed: int = 0):
        chance = torch.Generator().manual_seed(seed)
        scores = torch.randn(known + unknown, generator=chance, dtype=torch.float64)
        scores[:known] += gap
        if tied:
            scores = (3 * scores).round()
        return scores[:known].numpy(), scores[known:].numpy()

    return make
