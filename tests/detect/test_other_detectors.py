"""The detectors that the paper does not score, against numbers computed by hand or with another library."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import mahalanobis
from scipy.stats import combine_pvalues, entropy, weibull_min

from moon import Energy, Evidence, Knn, Msp
from moon.detect import (
    Ash,
    Dice,
    Entropy,
    Fdbd,
    Fisher,
    Gen,
    GradNorm,
    Mahalanobis,
    NnGuide,
    OpenMax,
    React,
    Rmds,
    Scale,
    Scaled,
    She,
    TemperatureScaling,
    Vim,
)  # fmt: skip
from moon.detect.openmax import fit_weibull

HEAD = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [9.0, 9.0, 9.0, 9.0]]), torch.tensor([0.5, 0.0, 9.0])


def evidence_of(*features, labels=None):
    """Evidence of a model with two known classes, an unknown output and four features."""
    z = torch.tensor(features)
    return Evidence(z @ HEAD[0].T + HEAD[1], z, 2, None if labels is None else torch.tensor(labels), HEAD)


def close(scores, *expected):
    assert scores.tolist() == pytest.approx(list(expected), rel=1e-4, abs=1e-6)


def energy(*logits):
    return math.log(sum(math.exp(f) for f in logits))


def test_entropy(evidence):
    p = evidence().known_logits.softmax(1).numpy()
    close(Entropy().score(evidence()), *(-entropy(row) for row in p))


def test_gen():
    e = Evidence(torch.tensor([[0.5, 0.3, 0.2, 5.0]]).log(), torch.zeros(1, 2), 3)
    close(Gen(gamma=0.5, top=2).score(e), -(math.sqrt(0.25) + math.sqrt(0.21)))
    close(Gen(gamma=0.5, top=100).score(e), -(math.sqrt(0.25) + math.sqrt(0.21) + math.sqrt(0.16)))


def test_mahalanobis(evidence):
    known, query = evidence(200), evidence(5, seed=1)
    z, y = known.features.numpy().astype(float), known.labels.numpy()
    means = np.stack([z[y == k].mean(0) for k in range(3)])
    precision = np.linalg.pinv(np.cov((z - means[y]).T, bias=True))
    q = query.features.numpy()
    expected = [-min(mahalanobis(row, mean, precision) ** 2 for mean in means) for row in q]
    close(Mahalanobis().fit(known).score(query), *expected)
    precision = np.linalg.pinv(np.cov(z.T, bias=True))
    background = [mahalanobis(row, z.mean(0), precision) ** 2 for row in q]
    close(Rmds().fit(known).score(query), *(e + b for e, b in zip(expected, background, strict=True)))


def test_mahalanobis_leaves_out_dead_features(evidence):
    known, query = evidence(200), evidence(5, seed=1)
    dead = [Evidence(e.logits, torch.cat([e.features, torch.zeros(len(e), 2)], 1), 3, e.labels) for e in (known, query)]
    expected = Mahalanobis().fit(known).score(query)
    torch.testing.assert_close(Mahalanobis().fit(dead[0]).score(dead[1]), expected, rtol=1e-3, atol=1e-3)


def test_vim_in_literals():
    # W o = -b at o = (-0.5, 0, 0, 0). Centred there, the training features vary mostly in the first two directions.
    known = evidence_of([1.5, 0.0, 0.0, 0.0], [-0.5, 2.0, 0.0, 0.0], [-0.5, 0.0, 0.1, 0.0], [-0.5, 0.0, 0.0, 0.1])
    detector = Vim(dim=2).fit(known)
    largest = [2.0, 2.0, 0.0, 0.0]
    alpha = np.mean(largest) / np.mean([0.0, 0.0, 0.1, 0.1])
    query = evidence_of([1.0, 0.0, 0.3, 0.4])
    close(detector.score(query), energy(1.5, 0.0) - alpha * 0.5)


def test_vim_without_a_residual_is_an_error(evidence):
    e = evidence(100)
    flat = torch.cat([e.features[:, :2], torch.zeros(100, 6)], 1)
    with pytest.raises(ValueError, match="vary in 4 directions at most"):
        Vim(dim=4).fit(Evidence(e.logits, flat, 3, e.labels, (e.head[0], 0 * e.head[1])))


def test_react():
    known = evidence_of([0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 10.0])
    detector = React(percentile=50).fit(known)
    assert detector.threshold == pytest.approx(np.percentile(known.features.numpy(), 50))
    close(detector.score(evidence_of([9.0, 2.0, 0.0, 0.0])), energy(3.5 + 0.5, 2.0))


def test_dice():
    # Contributions W * mean: class 0 has 2 at the first feature, class 1 has 1 at the second, all others are 0.
    detector = Dice(percentile=87.5).fit(evidence_of([2.0, 1.0, 5.0, 5.0]))
    close(detector.score(evidence_of([3.0, 7.0, 0.0, 0.0])), energy(3.5, 0.0))
    everything = Dice(percentile=0).fit(evidence_of([2.0, 1.0, 5.0, 5.0]))
    query = evidence_of([3.0, 7.0, 0.0, 0.0])
    close(everything.score(query), *Energy().score(query).tolist())


def test_ash():
    query = evidence_of([4.0, 2.0, 1.0, 1.0])
    close(Ash(50, "p").score(query), energy(4.5, 2.0))
    close(Ash(50, "b").score(query), energy(4.0 + 0.5, 4.0))
    close(Ash(75, "s").score(query), energy(4 * math.exp(8 / 4) + 0.5, 0.0))


def test_scale():
    query = evidence_of([4.0, 2.0, 1.0, 1.0])
    factor = math.exp(8 / 6)
    close(Scale(50).score(query), energy(4 * factor + 0.5, 2 * factor))


@pytest.mark.parametrize("kind", [Ash, Dice, Scale])
def test_a_default_percentile_that_is_not_for_so_few_features_is_warned_about_once(kind, caplog):
    def score(detector, width):
        z = torch.rand(4, width)
        evidence = Evidence(z, z, width, head=(torch.eye(width), torch.zeros(width)))
        detector.fit(evidence).score(evidence)
        detector.score(evidence)

    score(kind(), 512)
    score(kind(percentile=65.0), 100)
    assert not caplog.records
    score(kind(), 100)
    score(kind(), 100)
    (record,) = caplog.records
    assert f"compare a lower one, such as {kind.__name__.lower()}:percentile=65" in record.getMessage()


def test_she():
    # Class 0: the first input is predicted correctly, the second is not. Class 1: no input is, so all count.
    known = evidence_of([4.0, 0.0, 1.0, 0.0], [0.0, 9.0, 9.0, 9.0], [5.0, 1.0, 0.0, 2.0], labels=[0, 0, 1])
    detector = She().fit(known)
    close(detector.score(evidence_of([1.0, 0.0, 2.0, 0.0], [0.0, 3.0, 0.0, 1.0])), 4.0 + 2.0, 3.0 + 2.0)


def test_nnguide():
    known = evidence_of([1.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0], [0.0, 0.0, 3.0, 0.0])
    energies = [energy(1.5, 0.0), energy(0.5, 2.0)]
    query = evidence_of([3.0, 4.0, 0.0, 0.0])
    guidance = (0.6 * energies[0] + 0.8 * energies[1]) / 2
    close(NnGuide(k=2, share=1.0).fit(known).score(query), energy(3.5, 4.0) * guidance)


def test_fdbd():
    # |w_0 - w_1| = sqrt 2; the boundary is where z_0 + 0.5 = z_1.
    detector = Fdbd().fit(evidence_of([1.0, 1.0, 0.0, 0.0]))
    close(detector.score(evidence_of([4.0, 1.0, 0.0, 4.0])), (3.5 / math.sqrt(2)) / 5)


def test_gradnorm_is_the_norm_of_the_gradient(evidence):
    e = evidence(6)
    weight, bias = e.known_head
    expected = []
    for z in e.features:
        w = weight.clone().requires_grad_()
        loss = -(w @ z + bias).log_softmax(0).mean()  # KL(uniform || p) up to a constant
        expected.append(torch.autograd.grad(loss, w)[0].abs().sum().item())
    close(GradNorm().score(e), *expected)


def test_all_zero_features_have_a_finite_score():
    for detector in (Ash(variant="s"), Ash(variant="b"), Scale()):
        assert detector.score(evidence_of([0.0, 0.0, 0.0, 0.0])).isfinite().all()


def test_weibull_fit_is_maximum_likelihood():
    x = weibull_min.rvs(1.7, scale=3.0, size=400, random_state=0)
    shape, scale = fit_weibull(torch.tensor(x))
    expected = weibull_min.fit(x, floc=0)
    assert (shape.item(), scale.item()) == pytest.approx((expected[0], expected[2]), rel=1e-3)


def test_openmax_in_literals():
    detector = OpenMax(tail=3, top=1)
    detector.means = torch.tensor([[4.0, 0.0], [0.0, 4.0]])
    detector.weibull = torch.tensor([[1.0, 1.0, 2.0], [1.0, 1.0, 2.0]])
    e = Evidence(torch.tensor([[4.0, 3.0]]), torch.zeros(1, 2), 2)
    outside = 1 - math.exp(-(3 - 1) / 2)
    f = [4 * (1 - outside), 3.0, 4 * outside]
    close(detector.score(e), -math.exp(f[2]) / sum(map(math.exp, f)))


def test_the_distances_of_openmax_do_not_depend_on_the_scale_but_its_softmax_does(evidence):
    """At T the revised logits, which are those of T = 1 divided by T, have another softmax."""
    known, new = (TemperatureScaling(5.0)(some) for some in (evidence(300), evidence(20, seed=1)))
    detector, scaled = OpenMax().fit(known), Scaled(OpenMax()).fit(known, known)
    temperature = float(scaled.temperature)
    torch.testing.assert_close(scaled.inner.means, detector.means / temperature)
    location, shape, scale = detector.weibull.unbind(1)
    expected = torch.stack([location / temperature, shape, scale / temperature], 1)
    torch.testing.assert_close(scaled.inner.weibull, expected, rtol=1e-3, atol=1e-3)
    assert temperature < 0.3
    assert not torch.allclose(scaled.score(new), detector.score(new), atol=1e-3)


def test_openmax_scores_far_inputs_lower(evidence):
    known = evidence(300)
    detector = OpenMax().fit(known)
    far = Evidence(known.logits.abs() * 0 + torch.tensor([30.0, 30.0, 30.0, 0.0]), known.features, 3)
    assert detector.score(known).mean() > detector.score(far).mean()


def test_temperature_scaling_minimises_the_negative_log_likelihood():
    torch.manual_seed(0)
    logits = torch.randn(2000, 5)
    labels = torch.distributions.Categorical(logits=logits).sample()
    e = Evidence(logits * 3, torch.zeros(2000, 2), 5, labels)
    scaling = TemperatureScaling().fit(e)
    assert scaling.temperature == pytest.approx(3, abs=0.25)

    def nll(t):
        return torch.nn.functional.cross_entropy(e.logits.double() / t, labels).item()

    assert nll(scaling.temperature) <= min(nll(scaling.temperature * f) for f in (0.99, 1.01))
    torch.testing.assert_close(scaling(e).logits, e.logits / scaling.temperature)


def test_temperature_scaling_stays_in_its_bounds():
    logits = torch.eye(3).repeat(4, 1) * 5
    deviation = 5 * 2**0.5 / 3  # of all logits
    right = Evidence(logits, torch.zeros(12, 2), 3, torch.arange(12) % 3)
    assert 0.01 * deviation <= TemperatureScaling().fit(right).temperature < 0.2
    wrong = Evidence(logits, torch.zeros(12, 2), 3, (torch.arange(12) + 1) % 3)
    assert TemperatureScaling().fit(wrong).temperature == pytest.approx(100 * deviation)
    constant = Evidence(torch.zeros(12, 3), torch.zeros(12, 2), 3, torch.arange(12) % 3)
    assert TemperatureScaling().fit(constant).no_optimum


@pytest.mark.parametrize("scale", [1e-6, 0.001, 0.1, 1.0, 5.0, 30.0, 1e3, 1e9])
def test_temperature_scaling_does_not_depend_on_the_unit_of_the_logits(scale):
    logits, labels = torch.eye(3).repeat(40, 1) * scale, torch.arange(120) % 3
    for shift in (0, 1):  # all are right, none is
        e = Evidence(logits, torch.zeros(120, 2), 3, (labels + shift) % 3)
        assert TemperatureScaling().fit(e).no_optimum
    labels[0] = 1  # one of 120 is wrong
    scaling = TemperatureScaling().fit(Evidence(logits, torch.zeros(120, 2), 3, labels))
    assert not scaling.no_optimum
    assert scaling.temperature == pytest.approx(scale / math.log(2 * 119), rel=1e-6)  # p of the label is 119 / 120


def test_temperature_scaling_keeps_predictions_and_scales_the_head(evidence):
    e = evidence(100)
    scaled = TemperatureScaling().fit(e)(e)
    assert torch.equal(scaled.prediction, e.prediction)
    weight, bias = scaled.known_head
    torch.testing.assert_close(scaled.features @ weight.T + bias, scaled.known_logits)


def test_fisher_is_the_sum_of_log_p_values(evidence):
    train, validation, query = evidence(80), evidence(40, seed=1), evidence(15, seed=2)
    scores = Fisher(k=5).fit(train, validation).score(query)
    parts = [detector.fit(train) for detector in (Msp(), Fdbd(), Knn(k=5))]
    for i, found in enumerate(scores.double().tolist()):
        p = [(1 + sum(float(known <= part.score(query)[i]) for known in part.score(validation))) / 41 for part in parts]
        assert found == pytest.approx(-combine_pvalues(p, "fisher").statistic / 2, rel=1e-5)


def test_fisher_of_inputs_that_score_below_all_known_ones_is_finite_and_lowest(evidence):
    known = evidence(40)
    detector = Fisher(k=5).fit(evidence(80, seed=1), known)
    odd = Evidence(known.logits[:1] * 0, -known.features.mean(0, keepdim=True) * 50, 3, None, known.head)
    assert detector.score(odd).item() == pytest.approx(3 * math.log(1 / 41))
    assert (detector.score(odd) <= detector.score(known)).all()


def test_fisher_reuses_given_scores(evidence):
    query = evidence(15, seed=2)
    detector = Fisher(k=5).fit(evidence(80), evidence(40, seed=1))
    expected, knn = detector.score(query), detector.parts["knn"].score(query)
    detector.parts["knn"].score = None  # must not be called
    assert torch.equal(detector.score_given(query, {"knn": knn}), expected)


def test_fisher_needs_inputs_that_were_not_trained_on(evidence):
    with pytest.raises(ValueError, match="not trained on"):
        Fisher().fit(evidence(80))
    with pytest.raises(ValueError, match="not fitted"):
        Fisher().score(evidence())


@pytest.mark.parametrize("kind", [Mahalanobis, Rmds, She, OpenMax, TemperatureScaling])
def test_missing_labels_are_an_error(kind, evidence):
    e = evidence()
    with pytest.raises(ValueError, match="needs the labels"):
        kind().fit(Evidence(e.logits, e.features, 3))


@pytest.mark.parametrize("detector", [React(), Dice(), Ash(), Scale(), Vim(), Fdbd()])
def test_a_missing_head_is_an_error(detector, evidence):
    e = evidence()
    e = Evidence(e.logits, e.features, 3, e.labels)
    with pytest.raises(ValueError, match="has no head"):
        detector.fit(e).score(e)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gen(gamma=0),
        lambda: Vim(dim=0),
        lambda: React(percentile=100),
        lambda: Dice(percentile=-1),
        lambda: Ash(variant="x"),
        lambda: Scale(percentile=200),
        lambda: NnGuide(k=0),
        lambda: OpenMax(tail=2),
    ],
)
def test_invalid_options_are_an_error(make):
    with pytest.raises(ValueError, match="must be"):
        make()


def test_a_class_without_inputs_is_an_error(evidence):
    e = evidence()
    e = Evidence(e.logits, e.features, 3, e.labels.clamp(max=1), e.head)
    for detector in (Mahalanobis(), She()):
        with pytest.raises(ValueError, match="of class 2"):
            detector.fit(e)
