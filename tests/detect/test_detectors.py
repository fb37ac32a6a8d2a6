"""The formulas of the detectors that the paper scores, on literals. Properties of all detectors are in laws/."""

import math

import pytest
import torch
from torch import nn

from moon import (
    Energy,
    Entropy,
    Evidence,
    GradNorm,
    Klm,
    Knn,
    MaxLogit,
    Msp,
    Odin,
    OpenMax,
    Scaled,
    TemperatureScaling,
    Unknown,
    auroc,
    open_head,
)
from moon.deploy.bank import CompactKnn
from moon.detect.knn import usual_k

# exp(logits): for the first input a known output is largest, for the second the unknown output.
OPEN = Evidence(torch.tensor([[6.0, 1.0, 1.0], [1.0, 2.0, 5.0]]).log(), torch.zeros(2, 4), 2)
CLOSED = Evidence(torch.tensor([[6.0, 2.0], [1.0, 3.0]]).log(), torch.zeros(2, 4), 2)


def close(scores, *expected):
    assert scores.tolist() == pytest.approx(list(expected), rel=1e-5, abs=1e-6)


def test_msp():
    close(Msp().score(OPEN), 0.75, 0.25)  # softmax over three, maximum over two
    close(Msp().score(CLOSED), 0.75, 0.75)


def test_energy():
    close(Energy().score(OPEN), math.log(7), math.log(3))
    close(Energy(released=True).score(OPEN), math.log(8), math.log(8))
    close(Energy(temperature=2.0).score(CLOSED), 2 * math.log(6**0.5 + 2**0.5), 2 * math.log(1 + 3**0.5))


def test_max_logit():
    close(MaxLogit().score(OPEN), math.log(6), math.log(2))
    close(MaxLogit(released=True).score(OPEN), math.log(6), math.log(5))


def test_unknown():
    close(Unknown().score(OPEN), -1 / 8, -5 / 8)
    with pytest.raises(ValueError, match="open head"):
        Unknown().score(CLOSED)


# Logits of an arbitrary, small scale: the first input has one large logit, the second equal ones with a higher mean.
SMALL = Evidence(0.01 * torch.tensor([[4.0, 0.0, 0.0, 1.0], [1.5, 1.5, 1.5, 1.0]]), torch.zeros(2, 4), 3)
ONE_HOT = torch.eye(4)[:3].repeat(4, 1)
VALIDATION = Evidence(0.04 * ONE_HOT, torch.zeros(12, 4), 3, torch.tensor([0, 1, 2] * 3 + [0, 1, 0]))


def test_at_a_small_scale_the_energy_ranks_by_the_mean_logit_and_at_the_fitted_one_by_the_largest():
    # With 11 of 12 predictions right, T minimises the loss where softmax(0.04 / T, 0, 0, 0)_0 = 11 / 12.
    temperature = TemperatureScaling().fit(VALIDATION).temperature
    assert temperature == pytest.approx(0.04 / math.log(33))
    known, unknown = Energy().score(SMALL).tolist()
    assert known - unknown == pytest.approx(0.04 / 3 - 0.015, abs=2e-4)  # about the difference of the means
    assert known < unknown
    known, unknown = Scaled(Energy()).fit(VALIDATION).score(SMALL).tolist()
    assert known == pytest.approx(math.log(33 + 2))
    assert unknown == pytest.approx(math.log(3) + 1.5 / 4 * math.log(33))
    assert known > unknown


@pytest.mark.parametrize(
    ("kind", "unscaled", "scaled"),
    [(Klm, 0.841, 0.985), (OpenMax, 0.578, 0.884), (GradNorm, 0.817, 0.988), (Entropy, 0.980, 0.988)],
)
def test_other_detectors_of_small_logits_with_many_classes(kind, unscaled, scaled):
    """As above, with 100 classes; all of them are predicted."""
    torch.manual_seed(0)

    def inputs(largest, others, count=4000):
        z = others + torch.randn(count, 101)
        z[range(count), torch.randint(100, (count,))] = largest + torch.randn(count)
        labels = torch.distributions.Categorical(logits=z[:, :-1]).sample()
        return Evidence(0.15 * z, torch.ones(count, 1), 100, labels)

    splits = {"train": inputs(8, 0, 20_000), "validation": inputs(8, 0)}
    known, unknown = inputs(8, 0), inputs(5, 0.2)
    for detector, expected in ((kind(), unscaled), (Scaled(kind()), scaled)):
        if wanted := detector.fits_on_splits:
            detector.fit(*(splits[split] for split in wanted))
        assert auroc(detector.score(known), detector.score(unknown)) == pytest.approx(expected, abs=0.02)


def test_odin_scores_at_its_temperature():
    roots = torch.tensor([[6.0, 1.0, 1.0], [1.0, 2.0, 5.0]]).sqrt()
    p = roots / roots.sum(1, keepdim=True)
    close(Odin(temperature=2.0).score(OPEN), p[0, 0].item(), p[1, 1].item())
    close(Odin(temperature=2.0, released=True).score(OPEN), p[0, 0].item(), p[1, 2].item())


def test_odin_steps_towards_the_predicted_class():
    # f(x) = W x for x with 2 channels of one pixel: prediction 0, loss gradient known in sign.
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False))
    model[1].weight.data = torch.tensor([[1.0, -1.0], [0.0, 0.0]])
    x = torch.tensor([2.0, 1.0]).view(1, 2, 1, 1)
    moved = Odin(temperature=1.0, epsilon=0.1, std=(0.5, 0.25)).perturb(model, x)
    # The gradient of -log p_0 is negative in channel 0 and positive in channel 1; each step is epsilon / std.
    close(moved.flatten(), 2.0 + 0.1 / 0.5, 1.0 - 0.1 / 0.25)
    assert all(p.grad is None for p in model.parameters())


def test_odin_takes_the_sign_of_zero_as_plus_one():
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2, bias=False))
    model[1].weight.data.zero_()
    close(Odin(epsilon=0.5).perturb(model, torch.ones(1, 1, 1, 1)).flatten(), 0.5)


def test_odin_s_pseudo_label_is_a_known_class():
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 1, bias=False))
    model = open_head(model)
    model[1].weight.data = torch.tensor([[1.0], [5.0]])  # the unknown output is larger
    x = torch.ones(1, 1, 1, 1)
    # A step towards the known class is a step away from the unknown output: a smaller x. The released code does the
    # opposite.
    assert Odin(temperature=1.0, epsilon=0.1).perturb(model, x).item() < 1
    assert Odin(temperature=1.0, epsilon=0.1, released=True).perturb(model, x).item() > 1


def test_knn_in_literals():
    bank = Evidence(torch.zeros(3, 2), torch.tensor([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]]), 2)
    query = Evidence(torch.zeros(1, 2), torch.tensor([[5.0, 0.0]]), 2)
    close(Knn(k=1).fit(bank).score(query), 0.0)
    close(Knn(k=2).fit(bank).score(query), -2.0)
    close(Knn(k=3).fit(bank).score(query), -4.0)


def test_knn_against_all_distances(monkeypatch):
    monkeypatch.setattr("moon.detect.knn._SIMILARITIES", 100)  # several chunks
    bank, queries = torch.randn(60, 16), torch.randn(25, 16)
    unit = [t / t.norm(dim=1, keepdim=True) for t in (bank, queries)]
    expected = -torch.cdist(unit[1].double(), unit[0].double()).square().sort(1).values[:, 6]
    fitted = Knn(k=7).fit(Evidence(torch.zeros(60, 2), bank, 2))
    scores = fitted.score(Evidence(torch.zeros(25, 2), queries, 2))
    torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("inputs", "k"), [(100, 1), (2000, 2), (4000, 5), (40_000, 50), (60_000, 50)])
def test_the_usual_neighbour_of_knn_is_nearer_in_small_sets(inputs, k):
    assert usual_k(inputs) == k
    bank, query = (Evidence(torch.zeros(len(z), 2), z, 2) for z in (torch.randn(inputs, 3), torch.randn(10, 3)))
    for kind in (Knn, CompactKnn):
        assert torch.equal(kind().fit(bank).score(query), kind(k=k).fit(bank).score(query))
    assert not torch.equal(Knn().fit(bank).score(query), Knn(k=k + 1).fit(bank).score(query))


def test_klm_in_literals():
    fitted = Klm().fit(CLOSED)  # one template per class: the two rows themselves
    close(fitted.score(CLOSED), 0.0, 0.0)
    query = Evidence(torch.zeros(1, 2), torch.zeros(1, 4), 2)  # p = 1/2 1/2
    to_first = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    close(fitted.score(query), -to_first)


def test_klm_has_k_templates_and_a_one_hot_template_for_a_class_that_is_never_predicted():
    only_first = Evidence(torch.tensor([[6.0, 1.0, 1.0]]).log(), torch.zeros(1, 4), 2)
    assert Klm().fit(only_first).log_templates.shape == (2, 2)
    assert Klm(released=True).fit(only_first).log_templates.shape == (3, 3)
    templates = Klm().fit(only_first).log_templates.exp()
    torch.testing.assert_close(templates, torch.tensor([[6 / 7, 1 / 7], [0.0, 1.0]]))


def test_klm_groups_by_the_known_prediction():
    # The largest output of the second input is the unknown one; it still belongs to class 1.
    templates = Klm().fit(OPEN).log_templates.exp()
    torch.testing.assert_close(templates, torch.tensor([[6 / 7, 1 / 7], [1 / 3, 2 / 3]]))
    released = Klm(released=True).fit(OPEN).log_templates.exp()
    torch.testing.assert_close(released[2], torch.tensor([0.125, 0.25, 0.625]))


@pytest.mark.parametrize("detector", [Knn(), Klm()])
def test_an_unfitted_detector_is_an_error(detector):
    with pytest.raises(ValueError, match="not fitted"):
        detector.score(OPEN)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Odin(temperature=0), "temperature"),
        (lambda: Odin(epsilon=-1), "epsilon"),
        (lambda: Energy(temperature=-1), "temperature"),
        (lambda: Knn(k=0), "k must be"),
        (lambda: Knn(k=3).fit(OPEN), "needs 3 known features"),
    ],
)
def test_invalid_options_are_an_error(make, what):
    with pytest.raises(ValueError, match=what):
        make()
