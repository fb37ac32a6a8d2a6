"""Fixtures of the cross-checks: random evidence and scores, with more classes and features than other tests need."""

import os

import pytest
import torch

from moon import Evidence

try:
    import torchvision  # noqa: F401  pytorch-ood imports it
except ImportError:  # not installed, so the tests against pytorch-ood are skipped
    pass
except RuntimeError:
    # A torchvision built for CUDA next to a CPU-only torch: its C++ operators cannot be loaded, and the import stops at
    # the first two it refers to. pytorch-ood calls neither, so declaring them is enough.
    _OPERATORS = torch.library.Library("torchvision", "DEF")  # unregistered when deleted, so it is kept
    _OPERATORS.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _OPERATORS.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

CLASSES, FEATURES = 5, 16


@pytest.fixture
def make_evidence():
    """A function that makes random evidence: 5 known classes, 16 non-negative features, about one in five wrong."""

    def make(count: int = 400, seed: int = 0, is_open: bool = False) -> Evidence:
        rng = torch.Generator().manual_seed(7)
        weight = 0.5 * torch.randn(CLASSES + 1, FEATURES, generator=rng)[: CLASSES + is_open]
        bias = 0.3 * torch.randn(CLASSES + 1, generator=rng)[: CLASSES + is_open] - 0.6 * weight.sum(1)
        rng = torch.Generator().manual_seed(seed)
        labels = torch.arange(count) % CLASSES
        noise = torch.randn(count, FEATURES, generator=rng)
        features = (noise + 1.5 * weight[labels] + 0.3).relu()
        return Evidence(features @ weight.T + bias, features, CLASSES, labels, (weight, bias))

    return make


@pytest.fixture
def make_scores():
    """A function that makes scores of known and of unknown inputs, with means `gap` apart and with or without ties."""

    def make(known: int, unknown: int, gap: float = 1.0, tied: bool = False, seed: int = 0):
        rng = torch.Generator().manual_seed(seed)
        scores = torch.randn(known + unknown, generator=rng, dtype=torch.float64)
        scores[:known] += gap
        if tied:
            scores = (3 * scores).round()
        return scores[:known].numpy(), scores[known:].numpy()

    return make


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail on skipped tests where all packages must be there, as in CI."""
    skipped = session.config.pluginmanager.get_plugin("terminalreporter").stats.get("skipped", [])
    if skipped and os.environ.get("MOON_NEEDS_CROSS_CHECKS"):
        print(f"{len(skipped)} cross-checks were skipped, but MOON_NEEDS_CROSS_CHECKS is set")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
