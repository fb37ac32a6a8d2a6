import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from sklearn.metrics import auc, precision_recall_curve, roc_curve

from moon import aupr, auroc, fpr_at_tpr

# Few distinct values, so that ties are common.
scores = st.lists(st.integers(-4, 4).map(lambda n: n / 4), min_size=1, max_size=40)


def brute_force(known, unknown):
    pairs = [(k > u) + 0.5 * (k == u) for k in known for u in unknown]
    return sum(pairs) / len(pairs)


@given(scores, scores)
def test_auroc_is_mann_whitney(known, unknown):
    assert auroc(known, unknown) == pytest.approx(brute_force(known, unknown), abs=1e-12)


@given(scores, scores)
def test_auroc_with_swapped_arguments_is_its_complement(known, unknown):
    assert auroc(known, unknown) == pytest.approx(1 - auroc(unknown, known), abs=1e-12)


def test_auroc_of_many_ties_and_of_several_types():
    rng = np.random.default_rng(0)
    known, unknown = np.round(rng.normal(1, 1, 700), 1), np.round(rng.normal(0, 1, 300), 1)
    assert abs(auroc(known, unknown) - brute_force(known, unknown)) < 1e-12
    assert auroc(torch.tensor(known), list(unknown)) == auroc(known, unknown)
    assert auroc(torch.tensor([2.0, 3.0], dtype=torch.bfloat16), [1]) == 1.0


def test_fpr_in_literals():
    known, unknown = np.arange(1, 21), [0.5, 1.5, 2, 30]
    # At threshold 2, 19 of the 20 known scores are accepted, and of the unknown ones 2 and 30.
    assert fpr_at_tpr(known, unknown) == 0.5
    assert fpr_at_tpr(known, unknown, tpr=1.0) == 0.75
    # 95% of 4 unknown scores means all 4: rejecting everything up to 30 rejects all known ones.
    assert fpr_at_tpr(known, unknown, positive="unknown") == 1.0
    assert fpr_at_tpr(known, unknown, tpr=0.75, positive="unknown") == 0.1


@settings(max_examples=200)
@given(scores, scores, st.sampled_from([0.5, 0.8, 0.9, 0.95, 1.0]))
@pytest.mark.slow
def test_fpr_is_the_first_point_of_the_roc_curve(known, unknown, tpr):
    def first_point(positives, negatives):
        truth = [1] * len(positives) + [0] * len(negatives)
        fprs, tprs, _ = roc_curve(truth, [*positives, *negatives], drop_intermediate=False)
        return fprs[np.argmax(tprs >= tpr)]

    assert fpr_at_tpr(known, unknown, tpr) == pytest.approx(first_point(known, unknown), abs=1e-12)
    swapped = first_point([-u for u in unknown], [-k for k in known])
    assert fpr_at_tpr(known, unknown, tpr, positive="unknown") == pytest.approx(swapped, abs=1e-12)


@given(scores, scores)
def test_aupr_is_the_trapezoid_of_the_curve(known, unknown):
    def area(positives, negatives):
        truth = [1] * len(positives) + [0] * len(negatives)
        precision, recall, _ = precision_recall_curve(truth, [*positives, *negatives])
        return auc(recall, precision)

    assert aupr(known, unknown) == pytest.approx(area(known, unknown), abs=1e-12)
    swapped = area([-u for u in unknown], [-k for k in known])
    assert aupr(known, unknown, positive="unknown") == pytest.approx(swapped, abs=1e-12)


@pytest.mark.parametrize("metric", [auroc, fpr_at_tpr, aupr])
@pytest.mark.parametrize(
    ("known", "unknown", "what"),
    [
        ([], [1.0], "known_scores is empty"),
        ([1.0], [], "unknown_scores is empty"),
        ([1.0, float("nan")], [1.0], r"known_scores has 1 value.* the first at \(1,\)"),
        ([1.0], [float("-inf")], "unknown_scores has 1 value"),
        ([[1.0]], [1.0], "dimension"),
        (["a"], [1.0], "must be numbers"),
    ],
)
def test_invalid_scores_are_an_error(metric, known, unknown, what):
    with pytest.raises(ValueError, match=what):
        metric(known, unknown)


def test_invalid_options_are_an_error():
    with pytest.raises(ValueError, match="tpr must be"):
        fpr_at_tpr([1], [0], tpr=0)
    with pytest.raises(ValueError, match="positive must be"):
        aupr([1], [0], positive="ood")
