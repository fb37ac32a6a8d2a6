"""The detector `layers`: Gaussians over the statistics of inner layers, and KNN."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from moon import Evidence, Knn, Layers, lenet, read
from moon.detect.layers import ClassGaussians
from moon.evidence.layers import moments


def statistics(count, channels=3, seed=0):
    """Labels of two classes, and means and deviations of channels that depend on them."""
    rng, labels = torch.Generator().manual_seed(seed), torch.arange(count) % 2
    maps = torch.randn(count, channels, 4, 4, generator=rng) * (1 + labels.view(-1, 1, 1, 1))
    return moments(maps + torch.randn(count, 1, 1, 1, generator=rng)), labels  # the channels' means are correlated


def test_the_distance_is_mahalanobis_with_a_shrunk_covariance():
    (layer, labels), new = statistics(40), statistics(7, seed=1)[0]
    found = ClassGaussians().fit(layer, labels, 2, directions=6).distances(new)
    usual = layer.double()[:, 3:].mean(0)
    x, q = (torch.cat([s.double()[:, :3], (s.double()[:, 3:] + 0.03 * usual).log()], 1) for s in (layer, new))
    centres = torch.stack([x[labels == k].mean(0) for k in (0, 1)])
    residuals = x - centres[labels]
    scale = residuals.std(0, correction=0)
    residuals, centres, q = residuals / (1.001 * scale), centres / (1.001 * scale), q / (1.001 * scale)
    covariance = residuals.T @ residuals / 40
    mean = covariance.trace() / 6 * torch.eye(6)  # that of Ledoit and Wolf, towards which it is shrunk
    error = sum((torch.outer(r, r) - covariance).square().sum() for r in residuals) / 40**2
    share = error / (covariance - mean).square().sum()
    inverse = ((1 - share) * covariance + share * mean).inverse()
    d = torch.stack([((q - c) @ inverse * (q - c)).sum(1) for c in centres], 1).amin(1).log()
    assert 0.01 < share < 1
    torch.testing.assert_close(found[:, 0], d, rtol=0.01, atol=0.02)  # the scale is slightly different


def test_the_score_of_the_worst_layer_and_knn(evidence):
    train, validation, new = evidence(60), evidence(40, seed=1), evidence(5, seed=2)
    detector = Layers(k=5).fit(train, validation)
    d = {}
    for name, e in (("validation", validation), ("new", new)):
        parts = [
            ClassGaussians().fit(of_train, train.labels, 3, 32).distances(of_new)[:, 0]
            for of_train, of_new in zip(train.layers.split((4, 6), 1), e.layers.split((4, 6), 1), strict=True)
        ]
        d[name] = torch.stack([*parts, (-Knn(k=5).fit(train).score(e).double()).log()], 1)
    z = (d["new"] - d["validation"].mean(0)) / d["validation"].std(0)
    expected = -nn.functional.softplus(z[:, :2].amax(1)) - nn.functional.softplus(z[:, 2])
    torch.testing.assert_close(detector.score(new), expected.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_layers_that_are_not_finite_are_not_fitted(evidence, value):
    damaged = evidence(60)
    damaged.layers[3, 1] = value
    with pytest.raises(ValueError, match="Layers cannot be fitted: layers contain NaN or infinity"):
        Layers(k=5).fit(evidence(60), damaged)


def test_what_layers_needs(evidence):
    known, none = evidence(60), replace(evidence(60), layers=None)
    with pytest.raises(ValueError, match=r"call fit\(training, validation\)"):
        Layers(k=5).fit(known)
    with pytest.raises(ValueError, match="needs evidence of inner layers: read it with layers=True"):
        Layers(k=5).fit(none, none)
    with pytest.raises(ValueError, match="not fitted"):
        Layers().score(known)
    with pytest.raises(ValueError, match="directions=0 must be at least 1"):
        Layers(directions=0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    flat = read(model, [(torch.randn(60, 1, 8, 8), torch.arange(60) % 3)], layers=True)
    assert flat.layers.shape == (60, 0)
    with pytest.raises(ValueError, match="needs evidence of inner layers: the network has no convolutions"):
        Layers(k=5).fit(flat, flat)


def test_dead_and_constant_channels_give_finite_scores():
    model = lenet(10).eval()
    with torch.no_grad():
        for conv in (module for module in model.modules() if isinstance(module, nn.Conv2d)):
            conv.weight[::2] = 0
            conv.bias[::4] = 0
    known = read(model, [(torch.rand(100, 1, 28, 28), torch.arange(100) % 10)], layers=True)
    detector = Layers(k=5).fit(known, known)
    others = torch.stack([torch.zeros(1, 28, 28), torch.ones(1, 28, 28), 1e4 * torch.randn(1, 28, 28)])
    scores = detector.score(read(model, [others], layers=True))
    assert scores.isfinite().all()
    assert scores.max() < detector.score(known).min()
    dead = replace(known, layers=torch.zeros_like(known.layers))
    assert Layers(k=5).fit(dead, dead).score(known).isfinite().all()


def test_the_covariance_may_be_exact_in_fewer_directions():
    layer, labels = statistics(200)
    few, all_ = (ClassGaussians().fit(layer, labels, 2, n).distances(layer) for n in (2, 6))
    assert few.isfinite().all()
    assert not torch.allclose(few, all_)


def test_a_loaded_state_has_the_gaussians_and_the_neighbours(evidence):
    fitted = Layers(k=5, directions=2).fit(evidence(60), evidence(40, seed=1))
    state = fitted.state_dict()
    assert {"usual", "0.centres", "1.directions", "knn.bank"} <= state.keys()
    other = Layers(**fitted.options())
    other.load_state_dict(state)
    new: Evidence = evidence(5, seed=2)
    assert torch.equal(other.score(new), fitted.score(new))
