import copy
import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from moon import look, open_head
from moon.objectives import LogitNorm, Vos


def column(*values):
    return torch.tensor(values, dtype=torch.float32)[:, None]


def filled(classes, size, counts, **options):
    """A VOS whose queues hold `counts` random features per class, and these features by class."""
    objective = Vos(classes, size, epochs=10, **options)
    shape = torch.randn(size, size)  # gives a covariance that is far from isotropic
    features = [torch.randn(count, size) @ shape + 3 * torch.randn(size) for count in counts]
    for label, part in enumerate(features):
        if len(part):
            objective.enqueue(part, torch.full((len(part),), label))
    return objective, [part.double().numpy() for part in features]


def pooled_covariance(features):
    """The covariance of features around the mean of their class, with 1e-4 added to the diagonal."""
    centred = np.concatenate([part - part.mean(0) for part in features])
    return np.cov(centred.T, bias=True) + 1e-4 * np.eye(centred.shape[1])


def test_a_full_queue_overwrites_its_oldest_feature():
    objective = Vos(2, 1, epochs=10, queue=3)
    objective.enqueue(column(1, 2, 3), torch.tensor([0, 1, 0]))
    assert objective.queues.squeeze(2).tolist() == [[1, 3, 0], [2, 0, 0]]
    objective.enqueue(column(4, 5), torch.tensor([0, 0]))
    assert objective.queues.squeeze(2).tolist() == [[5, 3, 4], [2, 0, 0]]
    objective.enqueue(column(6, 7, 8), torch.tensor([0, 1, 0]))
    assert objective.queues.squeeze(2).tolist() == [[5, 6, 8], [2, 7, 0]]
    assert objective.seen.tolist() == [6, 2]


def test_draws_have_the_class_s_mean_and_the_shared_covariance():
    # All draws are selected here, so they are an ordinary sample. The queues are filled partly and unequally.
    objective, features = filled(2, 3, [4, 7], queue=20, draws=100_000, select=100_000)
    draws = objective.virtual_outliers().double().numpy().reshape(2, -1, 3)
    expected = pooled_covariance(features)
    for part, drawn in zip(features, draws, strict=True):
        scale = np.sqrt(np.diag(expected))
        np.testing.assert_allclose(drawn.mean(0) / scale, part.mean(0) / scale, atol=0.02)
        np.testing.assert_allclose(
            np.cov(drawn.T) / np.outer(scale, scale), expected / np.outer(scale, scale), atol=0.02
        )


def test_equal_features_have_the_covariance_of_the_diagonal():
    objective = Vos(1, 4, epochs=10, queue=8, draws=20_000, select=20_000)
    objective.enqueue(torch.full((8, 4), 2.0), torch.zeros(8).long())
    assert (objective.virtual_outliers() - 2).std().item() == pytest.approx(0.01, rel=0.02)


@pytest.mark.parametrize("select", [1, 3])
def test_virtual_outliers_are_the_least_likely_draws(select):
    # The squared Mahalanobis distance of a draw is chi-square with D degrees; the largest of 200 are taken.
    objective, features = filled(40, 6, [9] * 40, queue=10, draws=200, select=select)
    inverse = np.linalg.inv(pooled_covariance(features))
    means = np.stack([part.mean(0) for part in features])
    found = []
    for _ in range(40):
        away = objective.virtual_outliers().double().numpy().reshape(40, select, 6) - means[:, None]
        found.append(np.einsum("ksd,de,kse->ks", away, inverse, away))
    largest = np.sort(np.random.default_rng(0).chisquare(6, (5000, 200)))[:, : -select - 1 : -1]
    np.testing.assert_allclose(np.concatenate(found).mean(0), largest.mean(0), rtol=0.02)


def test_a_class_without_features_repeats_the_outliers_of_another():
    objective, _ = filled(3, 4, [5, 0, 5], queue=8)
    outliers = objective.virtual_outliers()
    assert outliers.isfinite().all()
    assert torch.equal(outliers[1], outliers[0])
    assert not torch.equal(outliers[2], outliers[0])


def test_energy_and_logistic_regression_by_hand():
    # v = (2, -1) counts as (2, 0): the energies are log(2 * 3 + 0) and log(2 * 1 + 0), the odds of an image their exp.
    objective = Vos(2, 4, epochs=10)
    with torch.no_grad():
        objective.energy_weight.copy_(torch.tensor([2.0, -1.0]))
        objective.logistic.weight.copy_(column(0, 1))
        objective.logistic.bias.zero_()
    known, virtual = torch.tensor([[math.log(3), 5.0]]), torch.tensor([[0.0, 7.0]])
    expected = (-math.log(6 / 7) - math.log(1 / 3)) / 2
    assert objective.energy_loss(known, virtual).item() == pytest.approx(expected)


def test_the_term_is_weighted_and_uses_the_model_s_classifier(small_net, monkeypatch):
    model, objective = small_net().eval(), Vos(4, 16, epochs=10, weight=0.3)
    x, y, features = torch.randn(8, 1, 8, 8), torch.arange(8) % 4, torch.randn(4, 16)
    monkeypatch.setattr(objective, "virtual_outliers", lambda: features)
    terms = objective.terms(model, x, y, epoch=9)
    torch.testing.assert_close(terms["cross_entropy"], cross_entropy(model(x), y))
    expected = 0.3 * objective.energy_loss(model(x), model[6](features))
    torch.testing.assert_close(terms["virtual_outliers"], expected)
    weights = [model[0].weight, model[6].weight]  # images reach both, virtual outliers the classifier only
    found = torch.autograd.grad(terms["virtual_outliers"], weights)
    torch.testing.assert_close(found, torch.autograd.grad(expected, weights))


def test_the_second_term_starts_in_its_epoch_and_the_queues_fill_before(small_net):
    model, objective = small_net(), Vos(4, 16, epochs=10, start_share=0.4)
    x, y = torch.randn(8, 1, 8, 8), torch.arange(8) % 4
    assert set(objective.terms(model, x, y, epoch=3)) == {"cross_entropy"}
    features = look(model, x).features
    torch.testing.assert_close(objective.queues[:, :2].transpose(0, 1).flatten(0, 1), features.detach())
    assert not objective.queues.requires_grad
    assert set(objective.terms(model, x, y, epoch=4)) == {"cross_entropy", "virtual_outliers"}
    assert objective.terms(model, x, y, epoch=torch.tensor(3))["virtual_outliers"] == 0


def test_the_energy_ignores_the_unknown_output(small_net):
    model, objective = open_head(small_net()).eval(), Vos(4, 16, epochs=10)
    x, y = torch.randn(8, 1, 8, 8), torch.arange(8) % 4

    def term():
        torch.manual_seed(1)
        return copy.deepcopy(objective).terms(model, x, y, epoch=9)["virtual_outliers"]

    before = term()
    with torch.no_grad():
        model[6].bias[-1] += 5
    assert torch.equal(term(), before)


def test_a_batch_longer_than_the_queues_is_rejected():
    objective = Vos(2, 1, epochs=10, queue=3)
    with pytest.raises(ValueError, match="a batch of 4 does not fit in queues of 3; set queue=4 or more"):
        objective.enqueue(column(1, 2, 3, 4), torch.zeros(4).long())


@pytest.mark.parametrize(
    "wrong",
    [
        {"weight": -0.1},
        {"weight": math.nan},
        {"start_share": 1.1},
        {"start_share": -0.1},
        {"queue": 1},
        {"select": 0},
        {"draws": 5, "select": 6},
    ],
)
def test_invalid_arguments_are_rejected(wrong):
    with pytest.raises(ValueError, match="must be at least 0, start_share="):
        Vos(4, 16, 10, **wrong)


def test_it_cannot_be_an_inner_objective(small_net):
    with pytest.raises(ValueError, match="cannot be an inner objective"):
        LogitNorm(inner=Vos(4, 16, epochs=2))(small_net(), torch.randn(4, 1, 8, 8), torch.arange(4), epoch=0)
