"""The kept scores of single images: AUROC from their levels is that of the metrics, detector by detector."""

import pytest

from moon.metrics import auroc


@pytest.mark.parametrize(
    ("network", "runs"),
    [
        *((f"cifar10-open/rigl95/{training}", 3) for training in ("quick", "quick@300", "control@300")),
        ("cifar10-open/rigl99/quick@300", 3),
        ("cifar10-search-2/rigl95/quick", 1),
    ],
)
def test_levels_belong_to_the_detectors_they_are_named_after(kept, network, runs):
    found = kept.runs(network)
    assert len(found) == runs
    for run in found.values():
        levels = kept.levels(run)
        assert levels["correct"].mean() == pytest.approx(run.summary["known"]["accuracy"])
        for name in (*run.summary["near"], *run.summary["far"]):
            expected = run.summary["detectors"]["fisher"]["sets"][name]["auroc"]
            assert auroc(levels["fisher/known"], levels[f"fisher/{name}"]) == pytest.approx(expected, abs=5e-4), name
