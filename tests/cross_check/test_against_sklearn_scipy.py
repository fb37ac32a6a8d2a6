"""Metrics, detectors and objectives against scikit-learn and SciPy: the same numbers, computed in another way.

Relative tolerances are 1e-12 for metrics, 1e-9 for scores in float64 and 1e-6 for objectives, unless a test states
another.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize, special, stats
from scipy.spatial.distance import cdist
from torch import nn

from moon import Energy, Evidence, Klm, Knn, MaxLogit, Msp
from moon.detect import (
    Ash,
    Dice,
    Entropy,
    Fdbd,
    Gen,
    GradNorm,
    Mahalanobis,
    NnGuide,
    OpenMax,
    React,
    Rmds,
    Scale,
    She,
    TemperatureScaling,
    Vim,
)  # fmt: skip
from moon.metrics import accuracy, aupr, auroc, brier, ece, fpr_at_tpr, nll
from moon.objectives.label_smoothing import LabelSmoothing
from moon.objectives.logitnorm import LogitNorm
from moon.objectives.mixing import blended_cross_entropy
from moon.objectives.outlier_exposure import OutlierExposure

calibration = pytest.importorskip("sklearn.calibration")
covariance = pytest.importorskip("sklearn.covariance")
metrics = pytest.importorskip("sklearn.metrics")
neighbors = pytest.importorskip("sklearn.neighbors")
preprocessing = pytest.importorskip("sklearn.preprocessing")

SCORES = [
    (333, 217, 1.0, False),
    (333, 217, 0.0, False),
    (200, 40, 2.0, True),
    (20, 100, 1.0, True),
    (1, 1, 1.0, False),
]


def double(evidence) -> Any:
    """The evidence in float64, with its logits computed again in float64."""
    weight, bias = head = tuple(part.double() for part in evidence.head)
    features = evidence.features.double()
    return Evidence(features @ weight.T + bias, features, evidence.num_known, evidence.labels, head)


def numpy(evidence):
    """Features, known logits, and weight and bias of the known classes, as arrays."""
    weight, bias = evidence.known_head
    return evidence.features.numpy(), evidence.known_logits.numpy(), weight.numpy(), bias.numpy()


def close(ours, expected, rtol=1e-9):
    np.testing.assert_allclose(np.asarray(ours), np.asarray(expected), rtol=rtol, atol=rtol)


def as_positive(known, unknown, positive):
    """(is positive, score that is higher for positives) of all inputs."""
    scores = np.concatenate([known, unknown])
    is_known = np.arange(len(scores)) < len(known)
    return (is_known, scores) if positive == "known" else (~is_known, -scores)


# Metrics


@pytest.mark.parametrize(("known", "unknown", "gap", "tied"), SCORES)
def test_auroc_is_that_of_scikit_learn_and_the_u_statistic(make_scores, known, unknown, gap, tied):
    k, u = make_scores(known, unknown, gap, tied)
    close(auroc(k, u), metrics.roc_auc_score(*as_positive(k, u, "known")), 1e-12)
    close(auroc(k, u), stats.mannwhitneyu(k, u).statistic / (known * unknown), 1e-12)


@pytest.mark.parametrize("positive", ["known", "unknown"])
@pytest.mark.parametrize(("known", "unknown", "gap", "tied"), SCORES)
def test_aupr_is_the_trapezoid_area_of_scikit_learn_s_curve(make_scores, known, unknown, gap, tied, positive):
    k, u = make_scores(known, unknown, gap, tied)
    precision, recall, _ = metrics.precision_recall_curve(*as_positive(k, u, positive))
    close(aupr(k, u, positive), metrics.auc(recall, precision), 1e-12)


@pytest.mark.parametrize("positive", ["known", "unknown"])
def test_aupr_is_close_to_average_precision_but_not_equal(make_scores, positive):
    """Average precision is the area under steps; ours uses trapezoids, as OpenOOD and the published tables do."""
    k, u = make_scores(500, 400)
    step = metrics.average_precision_score(*as_positive(k, u, positive))
    assert 0 < abs(aupr(k, u, positive) - step) < 2e-3


@pytest.mark.parametrize("positive", ["known", "unknown"])
@pytest.mark.parametrize("tpr", [0.5, 0.8, 0.95, 1.0])
@pytest.mark.parametrize(("known", "unknown", "gap", "tied"), SCORES)
def test_fpr_at_tpr_is_the_first_point_of_the_roc_curve_that_reaches_it(
    make_scores, known, unknown, gap, tied, tpr, positive
):
    k, u = make_scores(known, unknown, gap, tied)
    fpr, reached, _ = metrics.roc_curve(*as_positive(k, u, positive), drop_intermediate=False)
    close(fpr_at_tpr(k, u, tpr, positive), fpr[reached >= tpr][0], 1e-12)


def test_accuracy_nll_and_brier_are_those_of_scikit_learn(make_evidence):
    """scikit-learn has the Brier score of more than two classes since 1.7."""
    pytest.importorskip("sklearn", minversion="1.7")
    e = double(make_evidence())
    p, y, classes = e.known.numpy(), e.labels.numpy(), np.arange(e.num_known)
    close(accuracy(e.prediction, e.labels), metrics.accuracy_score(y, p.argmax(1)), 1e-12)
    close(nll(p, y), metrics.log_loss(y, p, labels=classes), 1e-12)
    close(brier(p, y), metrics.brier_score_loss(y, p, labels=classes, scale_by_half=False), 1e-12)


def test_nll_and_brier_of_an_open_head_count_the_unknown_output_as_a_class_that_is_never_correct(make_evidence):
    pytest.importorskip("sklearn", minversion="1.7")
    e = double(make_evidence(is_open=True))
    p, y, classes = e.logits.softmax(1).numpy(), e.labels.numpy(), np.arange(e.num_known + 1)
    close(nll(e.known, y), metrics.log_loss(y, p, labels=classes), 1e-12)
    close(brier(e.known, y), metrics.brier_score_loss(y, p, labels=classes, scale_by_half=False), 1e-12)


@pytest.mark.parametrize("bins", [1, 5, 15])
def test_ece_is_the_weighted_gap_of_scikit_learn_s_calibration_curve(make_evidence, bins):
    e = double(make_evidence())
    confidence, correct = e.confidence.numpy(), (e.prediction == e.labels).numpy()
    share_correct, mean = calibration.calibration_curve(correct, confidence, n_bins=bins)
    count = np.histogram(confidence, bins, (0, 1))[0]
    close(ece(confidence, correct, bins), (count[count > 0] * np.abs(share_correct - mean)).sum() / len(e), 1e-12)


def test_ece_puts_an_edge_into_the_bin_below_as_scikit_learn_does():
    confidence, correct = np.array([0.25, 0.3, 0.5, 0.6, 0.75, 1.0]), np.array([0, 1, 0, 1, 1, 1])
    share_correct, mean = calibration.calibration_curve(correct, confidence, n_bins=4)
    count = np.array([1, 2, 2, 1])  # (0, 0.25], (0.25, 0.5], ...
    close(ece(confidence, correct, 4), (count * np.abs(share_correct - mean)).sum() / 6, 1e-12)


# Detectors on logits


def test_scores_of_logits_are_scipy_s(make_evidence):
    e = double(make_evidence(is_open=True))
    f, p = e.known_logits.numpy(), special.softmax(e.known_logits.numpy(), 1)
    close(Msp().score(e), special.softmax(e.logits.numpy(), 1)[:, :-1].max(1))
    close(MaxLogit().score(e), f.max(1))
    close(Energy().score(e), special.logsumexp(f, 1))
    close(Energy(temperature=2.5).score(e), 2.5 * special.logsumexp(f / 2.5, 1))
    close(Entropy().score(e), -stats.entropy(p, axis=1))
    p = np.sort(p, 1)[:, ::-1][:, :3]
    close(Gen(gamma=0.3, top=3).score(e), -(p**0.3 * (1 - p) ** 0.3).sum(1))


def test_klm_is_scipy_s_relative_entropy_to_the_nearest_template(make_evidence):
    known, query = double(make_evidence()), double(make_evidence(seed=1))
    p, q = (special.softmax(e.known_logits.numpy(), 1) for e in (known, query))
    templates = np.stack([p[p.argmax(1) == k].mean(0) for k in range(known.num_known)])
    expected = [min(stats.entropy(row, template) for template in templates) for row in q]
    close(Klm().fit(known).score(query), -np.array(expected))


def test_openmax_is_that_of_scipy_s_weibull(make_evidence):
    """SciPy fits the Weibull distribution of the tail to about 1e-4, so the tolerance is 1e-3."""
    known, query = double(make_evidence(1000)), double(make_evidence(seed=1))
    f, y, v = known.known_logits.numpy(), known.labels.numpy(), query.known_logits.numpy()
    top, correct = 3, f.argmax(1) == y
    means = np.stack([f[correct & (y == k)].mean(0) for k in range(5)])
    outside = np.empty_like(v)
    for k, mean in enumerate(means):
        tail = np.sort(np.linalg.norm(f[correct & (y == k)] - mean, axis=1))[-20:]
        shape, _, scale = stats.weibull_min.fit(tail[1:] - tail[0], floc=0)
        outside[:, k] = stats.weibull_min.cdf(np.linalg.norm(v - mean, axis=1), shape, tail[0], scale)
    rank = (-v).argsort(1).argsort(1)
    lost = v * outside * np.clip((top - rank) / top, 0, None)
    expected = special.softmax(np.column_stack([v - lost, lost.sum(1)]), 1)[:, -1]
    close(OpenMax(tail=20, top=top).fit(known).score(query), -expected, 1e-3)


def test_temperature_is_the_minimum_scipy_finds(make_evidence):
    """Tolerance 1e-5: a search that compares losses finds a minimum only to the square root of the rounding error."""
    e = double(make_evidence(is_open=True))
    f, y = e.logits.numpy(), e.labels.numpy()

    def loss(log_b):
        return -special.log_softmax(np.exp(log_b) * f, 1)[np.arange(len(y)), y].mean()

    found: Any = optimize.minimize_scalar(loss, bounds=(-4.0, 4.0), method="bounded", options={"xatol": 1e-12})
    close(TemperatureScaling().fit(e).temperature, np.exp(-found.x), 1e-5)


def test_temperature_is_that_of_scikit_learn(make_evidence):
    """scikit-learn has temperature scaling since 1.8; it minimises over log(1 / T). Tolerance 1e-4."""
    pytest.importorskip("sklearn", minversion="1.8")
    base, frozen = pytest.importorskip("sklearn.base"), pytest.importorskip("sklearn.frozen")
    e = double(make_evidence())

    class Logits(base.ClassifierMixin, base.BaseEstimator):
        classes_ = np.arange(e.num_known)

        def __sklearn_is_fitted__(self):
            return True

        def fit(self, x, y):
            return self

        def predict(self, x):
            return x.argmax(1)

        def decision_function(self, x):
            return x

    model = calibration.CalibratedClassifierCV(frozen.FrozenEstimator(Logits()), method="temperature", ensemble=False)
    model.fit(e.known_logits.numpy(), e.labels.numpy())
    scaled = TemperatureScaling().fit(e)(e)
    close(scaled.known, model.predict_proba(e.known_logits.numpy()), 1e-4)


# Detectors on features


@pytest.mark.parametrize("k", [1, 10, 50])
def test_knn_is_the_squared_distance_scikit_learn_finds(make_evidence, k):
    known, query = double(make_evidence()), double(make_evidence(seed=1))
    bank, z = (preprocessing.normalize(e.features.numpy()) for e in (known, query))
    distance = neighbors.NearestNeighbors(n_neighbors=k).fit(bank).kneighbors(z)[0][:, -1]
    close(Knn(k=k).fit(known).score(query), -(distance**2))


def test_mahalanobis_distances_are_scikit_learn_s(make_evidence):
    known, query = double(make_evidence()), double(make_evidence(seed=1))
    z, y, q = known.features.numpy(), known.labels.numpy(), query.features.numpy()
    means = neighbors.NearestCentroid().fit(z, y).centroids_
    one = covariance.EmpiricalCovariance(assume_centered=True).fit(z - means[y])
    to_class = np.min([one.mahalanobis(q - mean) for mean in means], axis=0)
    to_all = covariance.EmpiricalCovariance().fit(z).mahalanobis(q)
    close(Mahalanobis().fit(known).score(query), -to_class)
    close(Rmds().fit(known).score(query), to_all - to_class)


@pytest.mark.parametrize("dim", [3, 8, 12])
def test_vim_is_what_a_singular_value_decomposition_gives(make_evidence, dim):
    known, query = double(make_evidence()), double(make_evidence(seed=1))
    z, f, weight, bias = numpy(known)
    origin = np.linalg.lstsq(weight, -bias)[0]
    main = np.linalg.svd(z - origin, full_matrices=False)[2][:dim]

    def outside(features):
        centred = features - origin
        return np.linalg.norm(centred - centred @ main.T @ main, axis=1)

    alpha = f.max(1).mean() / outside(z).mean()
    expected = special.logsumexp(query.known_logits.numpy(), 1) - alpha * outside(query.features.numpy())
    close(Vim(dim=dim).fit(known).score(query), expected)


def test_she_is_the_inner_product_with_scikit_learn_s_centroid(make_evidence):
    known, query = double(make_evidence()), double(make_evidence(seed=1))
    correct = (known.prediction == known.labels).numpy()
    assert not correct.all()
    patterns = (
        neighbors.NearestCentroid().fit(known.features.numpy()[correct], known.labels.numpy()[correct]).centroids_
    )
    expected = np.einsum("nd,nd->n", query.features.numpy(), patterns[query.prediction.numpy()])
    close(She().fit(known).score(query), expected)


def test_nnguide_is_the_energy_times_the_mean_of_scaled_cosines(make_evidence):
    known, query = double(make_evidence()), double(make_evidence(seed=1))
    cosine = metrics.pairwise.cosine_similarity(query.features.numpy(), known.features.numpy())
    scaled = cosine * special.logsumexp(known.known_logits.numpy(), 1)
    expected = special.logsumexp(query.known_logits.numpy(), 1) * np.sort(scaled, 1)[:, -10:].mean(1)
    close(NnGuide(k=10, share=1.0).fit(known).score(query), expected)


def test_fdbd_is_the_distance_to_the_nearest_points_on_the_boundaries(make_evidence):
    """The distance to a boundary is the distance of a point to its projection, found by least squares."""
    known, query = double(make_evidence()), double(make_evidence(20, seed=1))
    z, f, weight, _ = numpy(query)
    expected = []
    for logits in f:
        c, steps = logits.argmax(), []
        for k in set(range(len(logits))) - {c}:
            normal, height = weight[c] - weight[k], logits[c] - logits[k]
            steps.append(np.linalg.norm(np.linalg.lstsq(normal[None], [-height])[0]))
        expected.append(np.mean(steps))
    expected /= cdist(z, known.features.numpy().mean(0, keepdims=True)).squeeze(1)
    close(Fdbd().fit(known).score(query), expected)


def test_gradnorm_is_the_norm_of_a_numerical_gradient(make_evidence):
    """Tolerance 1e-5, the accuracy of the finite differences."""
    e = double(make_evidence(10))
    z, _, weight, bias = numpy(e)

    def divergence(flat, features):
        p = special.softmax(flat.reshape(weight.shape) @ features + bias)
        return stats.entropy(np.full(len(p), 1 / len(p)), p)

    gradients = [np.asarray(optimize.approx_fprime(weight.ravel(), divergence, 1e-7, row)) for row in z]
    close(GradNorm().score(e), np.abs(gradients).sum(1), 1e-5)


def test_shaped_energies_are_those_of_features_shaped_in_numpy(make_evidence):
    """Inputs with fewer positive features than ASH keeps are left out: which of the zeros variant "b" then fills is not
    defined.
    """
    known, query = double(make_evidence()), double(make_evidence(seed=1))
    enough = (query.features > 0).sum(1) >= 4
    assert enough.sum() > 300
    query = replace(query, logits=query.logits[enough], features=query.features[enough], labels=query.labels[enough])
    z, _, weight, bias = numpy(query)

    def energy(features, w=weight):
        return special.logsumexp(features @ w.T + bias, 1)

    close(React(85).fit(known).score(query), energy(np.minimum(z, np.percentile(known.features.numpy(), 85))))
    contribution = weight * known.features.numpy().mean(0)
    close(
        Dice(70).fit(known).score(query), energy(z, np.where(contribution > np.percentile(contribution, 70), weight, 0))
    )
    rank = (-z).argsort(1, kind="stable").argsort(1)  # 16 features, of which 25% are kept
    kept = np.where(rank < 4, z, 0)
    total, part = z.sum(1, keepdims=True), kept.sum(1, keepdims=True)
    close(Ash(75, "p").score(query), energy(kept))
    close(Ash(75, "b").score(query), energy(np.where(rank < 4, total / 4, 0)))
    close(Ash(75, "s").score(query), energy(kept * np.exp(total / part)))
    close(Scale(75).score(query), energy(z * np.exp(total / part)))


# Objectives


@pytest.fixture
def linear():
    """A linear model of 5 classes, a batch for it, its labels and its logits as an array."""
    model = nn.Linear(8, 5)
    x, y = 3 * torch.randn(64, 8), torch.randint(5, (64,))
    return model, x, y, model(x).detach().double().numpy()


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5, 1.0])
def test_label_smoothing_is_the_cross_entropy_of_a_softened_one_hot(linear, smoothing):
    model, x, y, f = linear
    target = (1 - smoothing) * np.eye(5)[y.numpy()] + smoothing / 5
    expected = -(target * special.log_softmax(f, 1)).sum(1).mean()
    close(LabelSmoothing(smoothing)(model, x, y, epoch=0).item(), expected, 1e-6)


def test_logitnorm_is_the_log_loss_of_normalised_logits(linear):
    model, x, y, f = linear
    p = special.softmax(preprocessing.normalize(f) / 0.04, 1)
    close(LogitNorm(0.04)(model, x, y, epoch=0).item(), metrics.log_loss(y.numpy(), p, labels=range(5)), 1e-5)


def test_mixup_is_the_log_loss_of_both_labels_weighted_by_their_shares(linear):
    _, _, y, f = linear
    other, share = y.roll(7), 0.3
    ours = blended_cross_entropy(torch.tensor(f), y, other, torch.tensor(share))
    p = special.softmax(f, 1)
    both, weights = np.concatenate([y, other]), np.repeat([share, 1 - share], len(y))
    expected = metrics.log_loss(both, np.concatenate([p, p]), sample_weight=weights, labels=range(5))
    close(ours.item(), expected, 1e-6)


def test_outlier_exposure_is_the_log_loss_plus_the_divergence_from_uniform(linear):
    """Cross-entropy from uniform is the relative entropy plus log K."""
    model, x, y, f = linear
    outliers = torch.randn(128, 8)
    q = special.softmax(model(outliers).detach().double().numpy(), 1)
    ours = OutlierExposure(lambda n: (outliers[:n], torch.zeros(n)), weight=0.5)(model, x, y, epoch=0).item()
    uniformity = (stats.entropy(np.full_like(q, 1 / 5), q, axis=1) + np.log(5)).mean()
    close(ours, metrics.log_loss(y.numpy(), special.softmax(f, 1), labels=range(5)) + 0.5 * uniformity, 1e-6)
