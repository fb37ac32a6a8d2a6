"""Fisher's combination: its p-value is valid for dependent parts, and its parts can be chosen."""

import math

import pytest
import torch
from scipy.stats import chi2

from moon import Evidence, Fisher, Knn, RotPredScore, Scaled, auroc, p_values

DEPENDENT = ("msp", "mls", "entropy", "gen")


def known_inputs(count, seed):
    """Evidence of inputs of one distribution, with logits of which all detectors say almost the same."""
    rng = torch.Generator().manual_seed(seed)
    z = torch.randn(count, 4, generator=rng)
    z[:, 0] += 3 * torch.rand(count, generator=rng)
    return Evidence(z, z, 4, torch.zeros(count, dtype=torch.long), (torch.eye(4), torch.zeros(4)))


def test_p_values_of_dependent_parts_are_valid_and_those_of_fishers_test_are_not():
    trials, references = 150, 60
    ours, fishers = [], []
    for seed in range(trials):
        detector = Fisher(parts=DEPENDENT).fit(known_inputs(10, 10**6), known_inputs(references, seed))
        new = known_inputs(200, 10**5 + seed)
        ours.append(detector.p_values(new))
        fishers.append(torch.as_tensor(chi2.sf(-2 * detector.score(new).double().numpy(), 2 * len(DEPENDENT))))

    def false_alarms(p, level):
        """The share of known inputs that are rejected at a level, and its standard error."""
        rates = (torch.stack(p) <= level).double().mean(1)
        return float(rates.mean()), float(rates.std()) / trials**0.5

    for level in (0.02, 0.05, 0.1, 0.3):
        rate, error = false_alarms(ours, level)
        assert rate <= level + 2.5 * error
        assert rate >= 0.8 * level - 1 / (references + 1)  # the rest is lost because p-values are multiples of 1 / 61
        if level <= 0.1:
            rate, error = false_alarms(fishers, level)
            assert rate > level + 5 * error


def test_p_values_are_ranks_of_the_product_of_counts():
    train, reference, new = known_inputs(10, 0), known_inputs(30, 1), known_inputs(8, 2)
    detector = Fisher(k=3).fit(train, reference)
    parts = [part.score(reference) for part in detector.parts.values()]
    of_new = [part.score(new) for part in detector.parts.values()]
    products = [math.prod(int((part <= part[i]).sum()) for part in parts) for i in range(30)]
    for i, p in enumerate(detector.p_values(new).tolist()):
        product = math.prod(1 + int((part <= s[i]).sum()) for part, s in zip(parts, of_new, strict=True))
        assert p == pytest.approx((1 + sum(each <= product for each in products)) / 31)


def test_p_values_rank_inputs_as_the_score_does():
    detector = Fisher(k=5).fit(known_inputs(100, 0), known_inputs(500, 1))
    known, unknown = known_inputs(300, 2), known_inputs(300, 3)
    unknown = Evidence(unknown.logits / 3, unknown.features / 3 - 1, 4, None, unknown.head)
    scores, p = detector.score(known), detector.p_values(known)
    order = scores.argsort()
    assert (p[order].diff() >= 0).all()
    area = auroc(scores.numpy(), detector.score(unknown).numpy())
    assert auroc(p.numpy(), detector.p_values(unknown).numpy()) == pytest.approx(area, abs=0.01)  # more ties


def test_p_values_are_as_large_as_those_of_a_calibration_set():
    """Half of the inputs as reference and half for the calibration, as in `pack_run`, says the same."""
    train, new = known_inputs(100, 0), known_inputs(2000, 5)
    detector = Fisher(k=5).fit(train, known_inputs(1000, 1))
    expected = p_values(detector.score(new).double().numpy(), detector.score(known_inputs(1000, 2)).double().numpy())
    assert abs(detector.p_values(new).numpy() - expected).max() < 0.06


def test_p_values_of_nan_are_nan():
    odd = known_inputs(3, 2)
    odd.logits[1] = math.nan
    detector = Fisher(k=5).fit(known_inputs(20, 0), known_inputs(20, 1))
    assert detector.p_values(odd).isnan().tolist() == [False, True, False]
    with pytest.raises(ValueError, match="not fitted"):
        Fisher().p_values(odd)


def test_any_detectors_can_be_combined():
    train, reference, new = known_inputs(60, 0), known_inputs(40, 1), known_inputs(9, 2)
    detector = Fisher(k=7, parts=("knn", "gen"), scaled=True).fit(train, reference)
    assert isinstance(detector.parts["gen"], Scaled)
    assert isinstance(detector.parts["knn"], Knn)  # it does not depend on the scale of the logits
    assert detector.options() == {"k": 7, "parts": ["knn", "gen"], "scaled": True}
    again = Fisher(**detector.options())
    again.load_state_dict(detector.state_dict())
    assert torch.equal(again.score(new), detector.score(new))
    assert torch.equal(again.p_values(new), detector.p_values(new))
    expected = 0.0
    for part in (Knn(7).fit(train), Scaled(detector.parts["gen"].inner).fit(reference)):
        counts = (part.score(reference)[None] <= part.score(new)[:, None]).sum(1)
        expected = expected + ((1 + counts) / 41).log()
    torch.testing.assert_close(detector.score(new), expected)


def test_rotations_can_be_a_part():
    def turned(evidence, seed):
        rotations = torch.randn(len(evidence), 4, 4, generator=torch.Generator().manual_seed(seed))
        rotations += torch.eye(4)
        return Evidence(evidence.logits, evidence.features, 4, None, evidence.head, rotations=rotations)

    train, reference = known_inputs(60, 0), turned(known_inputs(40, 1), 1)
    detector = Fisher(k=5, parts=("msp", "fdbd", "knn", "rotpred"))
    assert detector.rotates
    assert detector.reading == {"rotate": True}
    assert not Fisher().rotates
    new = turned(known_inputs(9, 2), 2)
    without = Fisher(k=5).fit(train, reference).score(new)
    counts = (RotPredScore().score(reference)[None] <= RotPredScore().score(new)[:, None]).sum(1)
    torch.testing.assert_close(detector.fit(train, reference).score(new), without + ((1 + counts) / 41).log())
    with pytest.raises(ValueError, match="rotate=True"):
        Fisher(parts=("msp", "rotpred")).fit(train, known_inputs(40, 1))


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (("msp",), "combines two detectors or more"),
        ("msp", "combines two detectors or more"),
        ((), "combines two detectors or more"),
        (("msp", "odin"), "cannot combine 'odin'; choose from: msp, ebo"),
        (("msp", "klm"), "cannot combine 'klm'"),
        (("msp", "fisher"), "cannot combine 'fisher'"),
        (("knn", "msp", "knn"), "'knn' is named twice"),
    ],
)
def test_parts_that_cannot_be_combined_are_an_error(parts, reason):
    with pytest.raises(ValueError, match=reason):
        Fisher(parts=parts)
