"""Metrics, and the detectors that can be written with its functions, against torchmetrics.

It computes in float32, so tolerances are 1e-5 unless a test states another. It treats scores outside [0, 1] as logits
and applies a sigmoid, so these tests pass ranks where only the order counts.
"""

import numpy as np
import pytest
import torch
from scipy.stats import rankdata

from moon import Klm, Knn
from moon.detect import NnGuide
from moon.metrics import accuracy, aupr, auroc, brier, ece, fpr_at_tpr, nll

torchmetrics = pytest.importorskip("torchmetrics", minversion="1.4")
classification = pytest.importorskip("torchmetrics.functional.classification")

SCORES = [(333, 217, 1.0, False), (333, 217, 0.0, False), (200, 40, 2.0, True), (20, 100, 1.0, True)]


def as_theirs(known, unknown, positive="known"):
    """(score in [0, 1], is positive) of all inputs, in the order of the scores."""
    scores = np.concatenate([known, unknown])
    is_known = np.arange(len(scores)) < len(known)
    sign, target = (1, is_known) if positive == "known" else (-1, ~is_known)
    return torch.tensor(rankdata(sign * scores, "dense") / (len(scores) + 1)), torch.tensor(target).long()


@pytest.mark.parametrize(("known", "unknown", "gap", "tied"), SCORES)
def test_auroc_agrees(make_scores, known, unknown, gap, tied):
    k, u = make_scores(known, unknown, gap, tied)
    assert auroc(k, u) == pytest.approx(classification.binary_auroc(*as_theirs(k, u)).item(), abs=1e-5)


def test_auroc_differs_for_large_raw_scores():
    """torchmetrics applies a sigmoid, which maps all large scores to 1, so they tie; ours uses the raw scores."""
    k, u = np.array([50.0, 60.0, 70.0], np.float32), np.array([40.0, 45.0], np.float32)
    theirs = classification.binary_auroc(torch.tensor(np.concatenate([k, u])), torch.tensor([1, 1, 1, 0, 0]))
    assert auroc(k, u) == 1
    assert theirs.item() == 0.5


@pytest.mark.parametrize("positive", ["known", "unknown"])
@pytest.mark.parametrize(("known", "unknown", "gap", "tied"), SCORES)
def test_aupr_is_the_trapezoid_area_of_their_curve(make_scores, known, unknown, gap, tied, positive):
    """Their own summary is average precision, the area under steps; ours uses trapezoids, as OpenOOD does."""
    k, u = make_scores(known, unknown, gap, tied)
    precision, recall, _ = classification.binary_precision_recall_curve(*as_theirs(k, u, positive))
    area = torch.trapezoid(precision.flip(0), recall.flip(0)).item()
    assert aupr(k, u, positive) == pytest.approx(area, abs=1e-5)
    step = classification.binary_average_precision(*as_theirs(k, u, positive)).item()
    assert step == pytest.approx(area, abs=0.05)
    assert step != pytest.approx(area, abs=1e-5)


@pytest.mark.parametrize("positive", ["known", "unknown"])
@pytest.mark.parametrize("tpr", [0.5, 0.8, 0.95])
@pytest.mark.parametrize(("known", "unknown", "gap", "tied"), SCORES)
def test_fpr_at_tpr_is_one_minus_their_best_specificity(make_scores, known, unknown, gap, tied, tpr, positive):
    k, u = make_scores(known, unknown, gap, tied)
    specificity, _ = classification.binary_specificity_at_sensitivity(*as_theirs(k, u, positive), min_sensitivity=tpr)
    assert fpr_at_tpr(k, u, tpr, positive) == pytest.approx(1 - specificity.item(), abs=1e-5)


def test_accuracy_agrees_with_their_micro_average(make_evidence):
    e = make_evidence()
    theirs = classification.multiclass_accuracy(e.known, e.labels, e.num_known, average="micro")
    assert accuracy(e.prediction, e.labels) == pytest.approx(theirs.item(), abs=1e-6)


@pytest.mark.parametrize("bins", [1, 5, 15])
def test_ece_agrees(make_evidence, bins):
    e = make_evidence()
    theirs = classification.multiclass_calibration_error(e.known, e.labels, e.num_known, bins, norm="l1")
    assert ece(e.confidence, e.prediction == e.labels, bins) == pytest.approx(theirs.item(), abs=1e-5)


def test_ece_differs_at_the_edges_of_bins():
    """Their bins are closed on the left, ours on the right, as in Guo et al.: of two bins, 0.5 falls into our first and
    their second. A confidence of exactly 1 has a bin of its own in theirs, and float32 rounds many confidences to 1.
    """
    confidence, correct = torch.tensor([0.3, 0.5, 0.9, 1.0]), torch.tensor([0, 1, 0, 1])
    theirs = classification.binary_calibration_error(confidence, correct, n_bins=2, norm="l1")
    assert theirs.item() == pytest.approx((0.3 + abs(0.5 + 0.9 - 1) + 0) / 4)
    assert ece(confidence, correct, 2) == pytest.approx((abs(0.8 - 1) + abs(1.9 - 1)) / 4)


def test_nll_is_the_log_of_their_perplexity(make_evidence):
    e = make_evidence(is_open=True)
    perplexity = pytest.importorskip("torchmetrics.functional.text").perplexity
    assert nll(e.known, e.labels) == pytest.approx(perplexity(e.logits[None], e.labels[None]).log().item(), abs=1e-5)


def test_brier_is_their_squared_error_summed_over_outputs(make_evidence):
    """Their mean squared error averages over all entries, so it is multiplied by the number of outputs."""
    e = make_evidence(is_open=True)
    target = torch.nn.functional.one_hot(e.labels, e.num_known + 1).float()
    theirs = torchmetrics.functional.mean_squared_error(e.logits.softmax(1).flatten(), target.flatten())
    assert brier(e.known, e.labels) == pytest.approx((e.num_known + 1) * theirs.item(), abs=1e-5)


def test_klm_is_their_divergence_from_the_nearest_template(make_evidence):
    """Tolerance 1e-4."""
    known, query = make_evidence(), make_evidence(seed=1)
    p, q = known.known, query.known
    templates = torch.stack([p[p.argmax(1) == k].mean(0) for k in range(known.num_known)])
    each = [torchmetrics.functional.kl_divergence(q, d.expand_as(q), reduction="none") for d in templates]
    torch.testing.assert_close(Klm().fit(known).score(query), -torch.stack(each).amin(0), rtol=1e-4, atol=1e-4)


def test_knn_and_nnguide_follow_from_their_pairwise_functions(make_evidence):
    """Tolerance 1e-4: their distance is computed in float32 by expanding the square."""
    known, query = make_evidence(), make_evidence(seed=1)
    functional = torchmetrics.functional
    unit = [torch.nn.functional.normalize(e.features) for e in (query, known)]
    distance = functional.pairwise_euclidean_distance(*unit).sort(1).values[:, 9]
    torch.testing.assert_close(Knn(k=10).fit(known).score(query), -distance.square(), rtol=1e-4, atol=1e-4)
    cosine = functional.pairwise_cosine_similarity(query.features, known.features)
    guidance = (cosine * known.logits.logsumexp(1)).topk(10, 1).values.mean(1)
    ours = NnGuide(k=10, share=1.0).fit(known).score(query)
    torch.testing.assert_close(ours, query.logits.logsumexp(1) * guidance, rtol=1e-4, atol=1e-4)
