"""Detectors, metrics and objectives against pytorch-ood: where the two agree, where they differ, and why.

Its scores are higher for outliers, ours for known inputs, so signs are flipped. It has no notion of a K+1-th output, so
most tests use models with K outputs; given K+1 outputs, it does what our `released=True` does. It computes in float32,
so relative tolerances are 1e-5 unless a test states another. It has no counterpart of our `Unknown`.
"""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2, ks_2samp, spearmanr
from torch import nn

from moon import Energy, Evidence, Klm, Knn, MaxLogit, Msp, Odin, open_head, read
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
from moon.metrics import accuracy, aupr, auroc, ece, fpr_at_tpr, nll
from moon.objectives.logitnorm import LogitNorm
from moon.objectives.outlier_exposure import OutlierExposure
from moon.objectives.vos import Vos

ood = pytest.importorskip("pytorch_ood", minversion="0.4")


def assert_negated(ours, theirs, rtol=1e-5):
    """Check that our score is the negative of theirs."""
    np.testing.assert_allclose(ours, -theirs.detach(), rtol=rtol, atol=rtol)


def linear_head(evidence):
    """Return the classifier of the known classes as a layer."""
    weight, bias = evidence.known_head
    layer = nn.Linear(weight.shape[1], weight.shape[0]).requires_grad_(False)
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)
    return layer


def map_head(evidence):
    """Return the same for features of shape (N, D, 1, 1): pytorch-ood shapes feature maps, here of one pixel."""
    return nn.Sequential(nn.Flatten(), linear_head(evidence))


def maps(evidence):
    return evidence.features[:, :, None, None]


# Detectors on logits


def test_msp_agrees(make_evidence):
    e = make_evidence()
    assert_negated(Msp().score(e), ood.detector.MaxSoftmax(None).predict_logits(e.logits))


def test_msp_differs_only_where_the_unknown_output_is_largest(make_evidence):
    """Theirs takes the maximum over all outputs, ours over the known ones: the unknown output is not confidence."""
    e = make_evidence(is_open=True)
    ours, theirs = Msp().score(e), -ood.detector.MaxSoftmax(None).predict_logits(e.logits)
    unknown_wins = e.logits.argmax(1) == e.num_known
    assert 0 < unknown_wins.sum() < len(e)
    torch.testing.assert_close(ours[~unknown_wins], theirs[~unknown_wins])
    assert (ours[unknown_wins] < theirs[unknown_wins]).all()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 10.0])
def test_energy_agrees(make_evidence, temperature):
    e = make_evidence()
    assert_negated(Energy(temperature).score(e), ood.detector.EnergyBased(None, t=temperature).predict_logits(e.logits))


def test_max_logit_agrees(make_evidence):
    e = make_evidence()
    assert_negated(MaxLogit().score(e), ood.detector.MaxLogit(None).predict_logits(e.logits))


def test_entropy_agrees(make_evidence):
    e = make_evidence()
    assert_negated(Entropy().score(e), ood.detector.Entropy(None).predict_logits(e.logits))


def test_energy_and_max_logit_as_released_agree_on_all_outputs_of_an_open_head(make_evidence):
    e = make_evidence(is_open=True)
    assert_negated(Energy(released=True).score(e), ood.detector.EnergyBased(None).predict_logits(e.logits))
    assert_negated(MaxLogit(released=True).score(e), ood.detector.MaxLogit(None).predict_logits(e.logits))


@pytest.mark.parametrize("top", [2, 5])
def test_gen_agrees_up_to_the_number_of_probabilities(make_evidence, top):
    """Theirs is the mean over the M largest probabilities, ours the sum, as in the paper: a factor of M. Tolerance
    1e-4, because 1 - p loses digits in float32.
    """
    e = make_evidence()
    inside = (e.known.amin(1) > 1e-7) & (e.known.amax(1) < 1 - 1e-7)
    assert inside.sum() > 300
    theirs = ood.detector.GEN(None, gamma=0.1, M=top).predict_logits(e.logits)
    assert_negated(Gen(gamma=0.1, top=top).score(e)[inside], top * theirs[inside], rtol=1e-4)


def test_gen_differs_for_probabilities_beyond_1e_7_from_0_and_1():
    """Theirs clamps probabilities to [1e-7, 1 - 1e-7], so confident inputs tie; ours, in float64, still ranks them."""
    logits = torch.tensor([[20.0, 0.0, 0.0], [30.0, 0.0, 0.0]], dtype=torch.float64)
    ours = Gen().score(Evidence(logits, torch.zeros(2, 1), 3))
    theirs = ood.detector.GEN(None).predict_logits(logits)
    assert theirs[0] == theirs[1]
    assert ours[0] < ours[1]


def test_klm_agrees(make_evidence):
    """Both group validation inputs by prediction and take the nearest of all templates. Tolerance 1e-4."""
    known, query = make_evidence(), make_evidence(seed=1)
    theirs = ood.detector.KLMatching(None).fit_logits(known.logits, known.labels).predict_logits(query.logits)
    assert_negated(Klm().fit(known).score(query), theirs, rtol=1e-4)


def test_klm_as_released_agrees_on_all_outputs_of_an_open_head(make_evidence):
    known, query = make_evidence(is_open=True), make_evidence(seed=1, is_open=True)
    theirs = ood.detector.KLMatching(None).fit_logits(known.logits).predict_logits(query.logits)
    assert_negated(Klm(released=True).fit(known).score(query), theirs, rtol=1e-4)


def test_klm_differs_for_a_class_that_was_never_predicted(make_evidence):
    """Theirs leaves such a class out of the minimum, so its inputs look unknown; ours gives it a one-hot template, as
    OpenOOD v1.5 does.
    """
    sharp = [Evidence(6 * e.logits, e.features, 5) for e in (make_evidence(), make_evidence(seed=1))]
    known, query = sharp[0], sharp[1]
    kept = known.prediction != 2
    known = Evidence(known.logits[kept], known.features[kept], 5)
    theirs = ood.detector.KLMatching(None).fit_logits(known.logits).predict_logits(query.logits)
    ours, confident = Klm().fit(known).score(query), query.confidence > 0.9999
    of_it, others = confident & (query.prediction == 2), confident & (query.prediction != 2)
    assert of_it.sum() > 10
    assert (ours[of_it] > -theirs[of_it] + 1).all()
    assert_negated(ours[others], theirs[others], rtol=1e-4)


def test_openmax_agrees_when_the_tails_have_the_same_distribution(make_evidence):
    """With their Weibull parameters in place of ours, the revised probabilities are the same (float64, 1e-6).

    Theirs averages all inputs of a class, not only the correctly predicted ones, so it is fitted on the latter only.
    """
    known, query = make_evidence(1000).to(torch.float64), make_evidence(seed=1).to(torch.float64)
    correct = known.prediction == known.labels
    reference = ood.detector.OpenMax(None, tailsize=20, alpha=3).fit_logits(
        known.logits[correct], known.labels[correct]
    )
    detector = OpenMax(tail=20, top=3).fit(known)
    parts = [reference._openmax.distributions[k] for k in range(5)]
    centres = np.stack([reference._openmax.centers[k] for k in range(5)])
    np.testing.assert_allclose(detector.state_dict()["means"], centres, rtol=1e-9)
    detector.weibull = torch.tensor(
        [[float(m.min_val) - m.translation, float(m.c), float(m.scale)] for m in parts], dtype=torch.float64
    )
    assert_negated(detector.score(query), reference.predict_logits(query.logits), rtol=1e-6)


def test_openmax_with_its_own_tails_ranks_similarly(make_evidence):
    """Theirs shifts the tail by 10000 before it fits a Weibull distribution of location 0, as libMR does, and includes
    the smallest distance; that is almost a Gumbel distribution. Ours starts at the smallest distance, so an input
    closer than the tail loses nothing. The values differ; the rank correlation is about 0.9 here.
    """
    known, query = make_evidence(1000).to(torch.float64), make_evidence(seed=1).to(torch.float64)
    correct = known.prediction == known.labels
    reference = ood.detector.OpenMax(None, tailsize=20, alpha=3).fit_logits(
        known.logits[correct], known.labels[correct]
    )
    ours, theirs = OpenMax(tail=20, top=3).fit(known).score(query), -reference.predict_logits(query.logits)
    ranks: Any = spearmanr(ours, theirs)
    assert ranks.statistic > 0.85


def test_temperature_agrees_with_their_bisection(make_evidence):
    """`temperature_calibration` halves an interval until it is 1e-4 wide."""
    e = make_evidence()
    theirs = ood.utils.temperature_calibration(e.logits, e.labels)
    assert TemperatureScaling().fit(e).temperature == pytest.approx(theirs, abs=2e-4)


def test_temperature_has_a_lower_nll_than_that_of_their_detector(make_evidence):
    """Their detector takes 50 steps of L-BFGS with learning rate 0.01 from T = 1 and stops early; ours is the minimum.
    With the same temperature, the scores agree.
    """
    e = make_evidence()
    reference = ood.detector.TemperatureScaling(None).fit_logits(3 * e.logits, e.labels)
    wide = Evidence(3 * e.logits, e.features, 5, e.labels, e.head)
    scaling = TemperatureScaling().fit(wide)
    theirs = TemperatureScaling(reference.t.item())
    assert nll(scaling(wide).known, e.labels) < nll(theirs(wide).known, e.labels)
    assert_negated(Msp().score(theirs(wide)), reference.predict_logits(wide.logits))


# Detectors on features


@pytest.mark.parametrize("k", [1, 10, 50])
def test_knn_agrees_up_to_the_square(make_evidence, k):
    """Both use the k-th neighbour of normalised features. Theirs is the distance, ours its
    square, as in OpenOOD; the ranking is the same.
    """
    known, query = make_evidence(), make_evidence(seed=1)
    theirs = ood.detector.KNN(None, k=k).fit_features(known.features, known.labels).predict_features(query.features)
    assert_negated(Knn(k=k).fit(known).score(query), theirs**2)


def test_knn_differs_from_theirs_on_features_that_are_not_normalised(make_evidence):
    """Theirs can skip normalisation (`normalize=False`), ours cannot. Features of length 1 make no difference."""
    known, query = make_evidence(), make_evidence(seed=1)
    reference = ood.detector.KNN(None, k=10, normalize=False)
    theirs = reference.fit_features(known.features, known.labels).predict_features(query.features)
    ours = Knn(k=10).fit(known).score(query)
    assert not np.allclose(ours, -(theirs**2), rtol=0.1)
    unit = [nn.functional.normalize(e.features) for e in (known, query)]
    assert_negated(ours, reference.fit_features(unit[0], known.labels).predict_features(unit[1]) ** 2)


def test_mahalanobis_agrees_up_to_a_constant(make_evidence):
    """Theirs is half the distance, and its covariance is a sum, not a mean: a factor of 2 N. It adds 1e-6 to the sum's
    diagonal and inverts in float32; tolerance 1e-3.
    """
    known, query = make_evidence(), make_evidence(seed=1)
    theirs = ood.detector.Mahalanobis(None).fit_features(known.features, known.labels).predict_features(query.features)
    assert_negated(Mahalanobis().fit(known).score(query), 2 * len(known) * theirs, rtol=1e-3)


def test_rmds_agrees_up_to_a_constant(make_evidence):
    """Both of their covariances are sums: a factor of N. Tolerance 1e-3, as above."""
    known, query = make_evidence(), make_evidence(seed=1)
    theirs = ood.detector.RMD(None).fit_features(known.features, known.labels).predict_features(query.features)
    assert_negated(Rmds().fit(known).score(query), len(known) * theirs, rtol=1e-3)


def test_mahalanobis_differs_for_a_dead_feature(make_evidence):
    """Theirs gives a direction without variance 1e-6, so a small value in it is far away; ours leaves it out."""
    known, query = make_evidence(), make_evidence(seed=1)
    dead, awake = torch.zeros(len(known), 1), torch.full((len(query), 1), 0.1)
    reference = ood.detector.Mahalanobis(None).fit_features(torch.cat([known.features, dead], 1), known.labels)
    theirs = reference.predict_features(torch.cat([query.features, awake], 1))
    ours = Mahalanobis().fit(Evidence(known.logits, torch.cat([known.features, dead], 1), 5, known.labels))
    ours = ours.score(Evidence(query.logits, torch.cat([query.features, awake], 1), 5))
    torch.testing.assert_close(ours, Mahalanobis().fit(known).score(query), rtol=1e-4, atol=1e-4)
    assert (theirs > 0.5 * 0.1**2 / 1e-6 * 0.9).all()


@pytest.mark.parametrize("dim", [3, 8, 12])
def test_vim_agrees(make_evidence, dim):
    """Tolerance 1e-4: theirs finds the eigenvectors in float32."""
    known, query = make_evidence(), make_evidence(seed=1)
    reference = ood.detector.ViM(None, dim, *known.known_head).fit_features(known.features, known.labels)
    assert_negated(Vim(dim=dim).fit(known).score(query), reference.predict_features(query.features), rtol=1e-4)


@pytest.mark.parametrize("percentile", [50, 90, 99])
def test_react_agrees(make_evidence, percentile):
    known, query = make_evidence(), make_evidence(seed=1)
    reference = ood.detector.ReAct(None, map_head(known), percentile=percentile / 100)
    reference.fit_feature_maps(maps(known), known.labels)
    assert_negated(React(percentile).fit(known).score(query), reference.predict_feature_maps(maps(query)))


@pytest.mark.parametrize("percentile", [50, 70, 90])
def test_dice_agrees(make_evidence, percentile):
    known, query = make_evidence(), make_evidence(seed=1)
    reference = ood.detector.DICE(None, *known.known_head, p=percentile / 100).fit_features(
        known.features, known.labels
    )
    assert_negated(Dice(percentile).fit(known).score(query), reference.predict_features(query.features))


def test_dice_differs_by_one_weight_where_the_percentile_falls_between_two(make_evidence):
    """Theirs keeps weights strictly above an interpolated percentile, so even at 0 it drops the smallest weight; ours
    rounds the number of weights to drop down.
    """
    known = make_evidence()
    reference = ood.detector.DICE(None, *known.known_head, p=0.0).fit_features(known.features, known.labels)
    weight, _ = Dice(0).fit(known).classifier(known)
    assert (reference.masked_w != 0).sum() == weight.numel() - 1
    assert (weight != 0).all()


@pytest.mark.parametrize("variant", ["b", "p", "s"])
@pytest.mark.parametrize("percentile", [50, 65, 90])
def test_ash_agrees(make_evidence, variant, percentile):
    e = make_evidence()
    reference = ood.detector.ASH(None, map_head(e), variant=f"ash-{variant}", percentile=percentile / 100)
    assert_negated(Ash(percentile, variant).score(e), reference.predict_feature_maps(maps(e)))


@pytest.mark.parametrize("percentile", [50, 65, 85])
def test_scale_agrees(make_evidence, percentile):
    e = make_evidence()
    reference = ood.detector.SCALE(None, map_head(e), percentile=percentile / 100)
    assert_negated(Scale(percentile).score(e), reference.predict_feature_maps(maps(e)))


def test_ash_and_scale_differ_where_no_feature_would_remain(make_evidence):
    """At 99%, none of 16 features remains in theirs: only the bias is left, or a division by 0; ours keeps one feature.
    For all-zero features theirs is NaN and ours the energy of the bias.
    """
    e = make_evidence()
    reference = ood.detector.ASH(None, map_head(e), variant="ash-p", percentile=0.99)
    bias_only = e.known_head[1].logsumexp(0).expand(len(e))
    assert_negated(bias_only, reference.predict_feature_maps(maps(e)))
    assert (Ash(99, "p").score(e) != bias_only).any()
    zeros = Evidence(e.logits[:1], torch.zeros(1, 16), 5, None, e.head)
    for ours, name in ((Ash(65, "s"), "ASH"), (Scale(65), "SCALE")):
        reference = getattr(ood.detector, name)(None, map_head(e), percentile=0.65)
        assert reference.predict_feature_maps(maps(zeros)).isnan().all()
        torch.testing.assert_close(ours.score(zeros), bias_only[:1])


def test_she_agrees(make_evidence):
    known, query = make_evidence(), make_evidence(seed=1)
    reference = ood.detector.SHE(None, linear_head(known)).fit_features(known.features, known.labels)
    assert_negated(She().fit(known).score(query), reference.predict_features(query.features))


def test_she_differs_for_a_class_that_is_never_predicted_correctly(make_evidence):
    """Theirs raises an error in `fit`; ours uses all inputs of the class."""
    known = make_evidence()
    wrong = (known.labels != 2) | (known.prediction != 2)
    z, y = known.features[wrong], known.labels[wrong]
    with pytest.raises(ValueError, match="No correct predictions for class 2"):
        ood.detector.SHE(None, linear_head(known)).fit_features(z, y)
    patterns = She().fit(Evidence(known.logits[wrong], z, 5, y, known.head)).state_dict()["patterns"]
    torch.testing.assert_close(patterns[2], z[y == 2].mean(0))


@pytest.mark.parametrize("k", [1, 10, 100])
def test_nnguide_agrees_on_a_bank_of_all_inputs(make_evidence, k):
    """Theirs stores every input it is fitted on, ours a random share by default. Tolerance 1e-4."""
    known, query = make_evidence(), make_evidence(seed=1)
    reference = ood.detector.NNGuide(None, linear_head(known), k=k).fit_features(known.features, known.labels)
    assert_negated(
        NnGuide(k=k, share=1.0).fit(known).score(query), reference.predict_features(query.features), rtol=1e-4
    )


def test_fdbd_agrees(make_evidence):
    known, query = make_evidence(), make_evidence(seed=1)
    reference = ood.detector.fDBD(None, linear_head(known)).fit_features(known.features)
    assert_negated(Fdbd().fit(known).score(query), reference.predict_features(query.features))


def test_gradnorm_agrees_for_the_gradient_in_the_weight_only(make_evidence):
    """Theirs uses autograd, by default for all parameters; the paper and ours use the classifier's weight. Tolerance
    1e-4.
    """
    e = make_evidence()
    reference = ood.detector.GradNorm(linear_head(e), param_filter=lambda name: name == "weight")
    assert_negated(GradNorm().score(e), reference.predict(e.features), rtol=1e-4)
    with_bias = ood.detector.GradNorm(linear_head(e))
    extra = (e.logits.softmax(1) - 1 / 5).abs().sum(1)
    assert_negated(GradNorm().score(e) + extra, with_bias.predict(e.features), rtol=1e-4)


# ODIN


@pytest.fixture
def image_net():
    """A net for 3x6x6 images and 4 classes whose gradient is nowhere zero."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 4)).eval()


@pytest.mark.parametrize("std", [None, [0.2, 0.25, 0.5]])
@pytest.mark.parametrize("temperature", [1.0, 10.0, 1000.0])
def test_odin_agrees(image_net, temperature, std):
    """Same step, sign, epsilon and temperature, and the same meaning of `std`."""
    x = torch.rand(32, 3, 6, 6)
    ours, theirs = Odin(temperature, 0.01, std), ood.detector.ODIN(image_net, None, 0.01, temperature, std)
    moved = ood.detector.odin_preprocessing(image_net, x, eps=0.01, temperature=temperature, norm_std=std)
    torch.testing.assert_close(ours.perturb(image_net, x), moved, rtol=1e-6, atol=1e-7)
    assert_negated(ours.score(read(image_net, [x], ours.perturb)), theirs.predict(x))


def test_odin_as_released_agrees_on_all_outputs_of_an_open_head(image_net):
    """Theirs steps towards the unknown output where that is largest; ours does so only if `released`."""
    model, x = open_head(image_net), torch.rand(64, 3, 6, 6)
    released, theirs = Odin(released=True), ood.detector.ODIN(model)
    assert_negated(released.score(read(model, [x], released.perturb)), theirs.predict(x))
    assert (Odin().perturb(model, x) != released.perturb(model, x)).any()


def test_odin_differs_for_a_pixel_with_zero_gradient(image_net):
    """In theirs the sign of 0 is 0, so the pixel stays; in ours it is +1, as in the authors' code, so it moves."""
    with torch.no_grad():
        image_net[0].weight[:, 2] = 0
    x = torch.rand(8, 3, 6, 6)
    theirs = ood.detector.odin_preprocessing(image_net, x, eps=0.01)
    ours = Odin(epsilon=0.01).perturb(image_net, x)
    assert torch.equal(theirs[:, 2], x[:, 2])
    torch.testing.assert_close(ours[:, 2], x[:, 2] - 0.01)
    torch.testing.assert_close(ours[:, :2], theirs[:, :2])


# Metrics

SCORES = [(333, 217, 1.0, False), (333, 217, 0.0, False), (200, 40, 2.0, True), (20, 100, 1.0, True)]


def as_theirs(known, unknown, positive="unknown"):
    """Return outlier scores and labels. If "known" is the positive class, known inputs take the role of outliers."""
    scores = torch.tensor(np.concatenate([known, unknown]))
    labels = torch.cat([torch.zeros(len(known)), torch.full((len(unknown),), -1)]).long()
    return (-scores, labels) if positive == "unknown" else (scores, -1 - labels)


@pytest.mark.parametrize(("known", "unknown", "gap", "tied"), SCORES)
def test_auroc_and_aupr_agree(make_scores, known, unknown, gap, tied):
    """Tolerance 1e-12. Both compute AUPR with trapezoids."""
    k, u = make_scores(known, unknown, gap, tied)
    functional = ood.metrics.functional
    assert auroc(k, u) == pytest.approx(functional.auroc(*as_theirs(k, u)).item(), rel=1e-12)
    assert aupr(k, u, "known") == pytest.approx(functional.aupr(*as_theirs(k, u), "id").item(), rel=1e-12)
    assert aupr(k, u, "unknown") == pytest.approx(functional.aupr(*as_theirs(k, u), "ood").item(), rel=1e-12)


@pytest.mark.parametrize("tpr", [0.5, 0.8, 0.95, 1.0])
@pytest.mark.parametrize(("known", "unknown", "gap", "tied"), SCORES)
def test_fpr_at_tpr_agrees(make_scores, known, unknown, gap, tied, tpr):
    """In theirs unknown is the positive class, as in OpenOOD v1.5; in ours known is by default, as in the paper and in
    OpenOOD v1. With the roles swapped, theirs gives that as well. Tolerance 1e-12.
    """
    k, u = make_scores(known, unknown, gap, tied)
    for positive in ("known", "unknown"):
        theirs = ood.metrics.functional.fpr_at_tpr(*as_theirs(k, u, positive), tpr).item()
        assert fpr_at_tpr(k, u, tpr, positive) == pytest.approx(theirs, rel=1e-12)


def test_their_summary_of_metrics_agrees(make_scores):
    k, u = make_scores(333, 217)
    theirs = ood.metrics.OODMetrics().update(*as_theirs(k, u)).compute()
    ours = {
        "AUROC": auroc(k, u),
        "AUPR-IN": aupr(k, u, "known"),
        "AUPR-OUT": aupr(k, u, "unknown"),
        "FPR95TPR": fpr_at_tpr(k, u, positive="unknown"),
    }
    assert {name: theirs[name] for name in ours} == pytest.approx(ours, rel=1e-12)


def test_accuracy_agrees(make_evidence):
    e = make_evidence()
    assert accuracy(e.prediction, e.labels) == pytest.approx(
        ood.metrics.functional.accuracy(e.prediction, e.labels).item(), rel=1e-12
    )


def test_ece_agrees_where_there_is_one_bin_and_differs_where_there_are_more():
    """Their bins hold equally many inputs, ours have equal width, as in Guo et al. Theirs squares gaps by default."""
    confidence, correct = torch.rand(500, dtype=torch.float64) ** 2, torch.rand(500) < 0.3
    theirs = ood.metrics.functional.calibration_error
    assert ece(confidence, correct, bins=1) == pytest.approx(theirs(confidence, correct, "1", 500), rel=1e-9)
    assert ece(confidence, correct, bins=4) != pytest.approx(theirs(confidence, correct, "1", 500 // 4), rel=1e-2)


# Objectives


@pytest.fixture
def linear():
    """A linear model of 5 classes, a batch for it and its labels."""
    return nn.Linear(8, 5), 3 * torch.randn(32, 8), torch.randint(5, (32,))


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_outlier_exposure_agrees_when_each_part_is_averaged_separately(linear, weight):
    """Theirs averages over images and outliers together, so more outliers in a batch give its images less weight; ours
    averages each separately, as the authors' code does. Their terms, averaged separately, equal ours. So does their
    mean, if the weight is divided by the number of outliers per image and the mean is rescaled to the images.
    """
    model, x, y = linear
    outliers = torch.randn(64, 8)
    ours = OutlierExposure(lambda n: (outliers[:n], torch.zeros(n)), weight=weight, per_image=2.0)(model, x, y, epoch=0)
    logits, labels = model(torch.cat([x, outliers])), torch.cat([y, torch.full((64,), -1)])
    each = ood.loss.OutlierExposureLoss(alpha=weight, reduction="none")(logits, labels)
    torch.testing.assert_close(ours, each[:32].mean() + each[32:].mean())
    together = ood.loss.OutlierExposureLoss(alpha=weight / 2)(logits, labels)
    torch.testing.assert_close(ours, together * (32 + 64) / 32)


def test_the_uniformity_term_agrees_with_their_entropic_open_set_loss(linear):
    """It is the same loss with a weight of 1, under another name."""
    model, x, y = linear
    outliers = torch.randn(64, 8)
    ours = OutlierExposure(lambda n: (outliers[:n], torch.zeros(n)), weight=1.0)(model, x, y, epoch=0)
    labels = torch.cat([y, torch.full((64,), -1)])
    each = ood.loss.EntropicOpenSetLoss(reduction="none")(model(torch.cat([x, outliers])), labels)
    torch.testing.assert_close(ours, each[:32].mean() + each[32:].mean())


@pytest.mark.parametrize("temperature", [0.01, 0.04, 1.0])
def test_logitnorm_and_its_gradient_agree(linear, temperature):
    """The default temperature is 0.04 in ours and 1 in theirs; both add 1e-7 to the norm."""
    model, x, y = linear
    ours = LogitNorm(temperature)(model, x, y, epoch=0)
    theirs = ood.loss.LogitNorm(t=temperature)(model(x), y)
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(loss, model.weight)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients)


def test_the_energy_regularisation_of_vos_agrees(linear):
    """Their energy has the opposite sign, so the weight of the logistic regression has, too; its labels are the same.
    In both, the loss is cross-entropy plus 0.1 times this term.
    """
    model, x, y = linear
    vos = Vos(5, 8, epochs=1)
    logistic, weights = nn.Linear(1, 2), nn.Linear(5, 1)
    with torch.no_grad():
        logistic.weight.copy_(-vos.logistic.weight)
        logistic.bias.copy_(vos.logistic.bias)
        weights.weight.copy_(vos.energy_weight - 0.2)  # some below 0
        vos.energy_weight.sub_(0.2)
    known, outliers = model(x), model(torch.randn(10, 8))
    reference = ood.loss.VOSRegLoss(logistic, weights, alpha=0.1)
    theirs = reference(torch.cat([known, outliers]), torch.cat([y, torch.full((10,), -1)]))
    ours = nn.functional.cross_entropy(known, y) + vos.weight * vos.energy_loss(known, outliers)
    torch.testing.assert_close(ours, theirs)


def test_virtual_outliers_of_vos_have_the_same_distribution():
    """The queues, means and covariance are the same. Theirs draws all candidates and keeps the least likely; ours draws
    only their Mahalanobis lengths, which decide. So single draws differ, but the lengths have the same distribution.
    Theirs waits until all queues are full, ours for a share of the epochs.
    """
    select, queue, draws = 2, 40, 500
    y = torch.arange(3 * queue) % 3
    z = torch.randn(3 * queue, 6) * torch.linspace(0.5, 2, 6) + y[:, None]
    vos = Vos(3, 6, epochs=1, queue=queue, draws=draws, select=select)
    reference = ood.loss.VirtualOutlierSynthesizingRegLoss(
        nn.Linear(1, 2), nn.Linear(3, 1), nn.Linear(6, 3), sample_number=queue, sample_from=draws, select=select
    )
    for part in range(0, len(z), queue):
        vos.enqueue(z[part : part + queue], y[part : part + queue])
        reference._update_queues(z[part : part + queue], y[part : part + queue])
    assert torch.equal(vos.queues, reference.data_dict)
    assert reference._queues_full()
    means = vos.queues.mean(1)
    centred = (vos.queues - means[:, None]).flatten(0, 1)
    precision = torch.linalg.inv(centred.T @ centred / len(centred) + 1e-4 * torch.eye(6))
    centre = means.repeat_interleave(select, 0)

    def lengths(draw):
        gaps = torch.cat([draw() - centre for _ in range(200)])
        return ((gaps @ precision) * gaps).sum(1).numpy()

    ours, theirs = lengths(vos.virtual_outliers), lengths(reference._sample_virtual_outliers)
    test: Any = ks_2samp(ours, theirs)
    assert test.pvalue > 0.01
    assert ours.mean() == pytest.approx(theirs.mean(), rel=0.03)
    assert np.median(ours) == pytest.approx(chi2.ppf(1 - select / draws, 6), rel=0.1)
