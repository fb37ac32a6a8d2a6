"""Scoring of sparse networks on a CPU through moon-runtime gives what PyTorch gives."""

import builtins
import logging

import moon_runtime
import numpy as np
import pytest
import torch
from torch import nn

from moon import Energy, Knn, Odin, Static, auroc, lenet, open_head, read, resnet18
from moon.data import BENCHMARKS, DataSet, evaluation_batches
from moon.nets import resnet8
from moon.run import sparse_reading
from moon.run.images import BenchmarkImages
from moon.run.sparse_reading import faster_model
from moon.score.cache import EvidenceCache
from moon.timing import noise

CIFAR, MNIST = BENCHMARKS["cifar10"], BENCHMARKS["mnist"]


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    """Tests evaluate few images."""
    monkeypatch.setattr(sparse_reading, "_MIN_FLOPS", 0)
    sparse_reading._tell.cache_clear()


def sparse(model, sparsity, images=None):
    """The model with random masks and, if there are images, their BatchNorm statistics."""
    Static(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity)
    if images is not None:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 1.0
        with torch.no_grad():
            model.train()(images)
    return model.eval()


def small_net(**changes):
    """A sparse network for MNIST."""
    torch.manual_seed(0)
    layers = {
        "conv": nn.Conv2d(1, 16, 3, stride=2), "norm": nn.BatchNorm2d(16), "relu": nn.ReLU(), "flatten": nn.Flatten(),
        "hidden": nn.Linear(16 * 13 * 13, 24), "silu": nn.SiLU(), "fc": nn.Linear(24, 10),
    }  # fmt: skip
    model = nn.Sequential()
    for name, layer in (layers | changes).items():
        model.add_module(name, layer)
    return sparse(model, 0.9)


def images_of(benchmark):
    return BenchmarkImages(benchmark, {}, {}, ())


def is_faster(model, shape=(1, 28, 28), images=10, **options):
    return faster_model(model, shape, images, **options) is not model


@pytest.mark.parametrize("with_open_head", [False, True])
def test_the_evidence_is_that_of_torch(with_open_head):
    data = noise(MNIST, 37)
    model = open_head(small_net()) if with_open_head else small_net()
    expected = read(model, evaluation_batches(data, MNIST, "cpu"))
    found = images_of(MNIST).evidence(model, data)
    assert is_faster(model)
    assert found.logits.dtype == torch.float64
    assert torch.allclose(found.logits.float(), expected.logits, atol=1e-5)
    assert torch.allclose(found.features, expected.features, atol=1e-5)
    assert torch.equal(found.labels, expected.labels)
    assert (found.num_known, found.is_open) == (10, with_open_head)
    assert all(map(torch.equal, found.head, expected.head))
    assert not torch.equal(found.features, expected.features)  # it was computed in another way


def test_perturbed_and_mirrored_images():
    data, model, images = noise(MNIST, 20), small_net(), images_of(MNIST)
    odin = Odin()
    expected = read(model, evaluation_batches(data, MNIST, "cpu"), odin.perturb)
    assert torch.allclose(images.evidence(model, data, odin.perturb).logits.float(), expected.logits, atol=1e-5)
    flipped = DataSet(np.ascontiguousarray(data.images[:, :, ::-1]), data.labels)
    plain, mirrored = images.evidence(model, data), images.evidence(model, flipped)
    found = images.evidence(model, data, mirrored=True)
    assert torch.allclose(found.logits, (plain.logits + mirrored.logits) / 2, atol=1e-6)


def test_the_present_weights_are_used_and_modes_are_restored():
    data, model, images = noise(MNIST, 4), small_net().train(), images_of(MNIST)
    model.relu.eval()
    before = images.evidence(model, data).features
    assert [module.training for module in (model, model.conv, model.relu)] == [True, True, False]
    model.hidden.weight.data *= 2
    after = images.evidence(model, data).features
    expected = read(model, evaluation_batches(data, MNIST, "cpu")).features
    assert torch.allclose(after, expected, atol=1e-5)
    assert not torch.allclose(after, before, atol=1e-2)


def test_torch_computes_dense_models_models_with_hooks_and_small_sets(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    assert not is_faster(lenet())
    model = small_net()
    handle = model.conv.register_forward_hook(lambda *_: None)
    assert not is_faster(model)
    handle.remove()
    assert is_faster(model)
    monkeypatch.setattr(sparse_reading, "_MIN_FLOPS", 1e11)
    assert not is_faster(model, images=100)
    assert is_faster(model, images=10**6)
    with torch.device("meta"):
        on_other_device = sparse_reading._reason_for_torch(lenet(), (1, 28, 28), 1)
    assert on_other_device == "it is not on a CPU"
    assert not caplog.records


class Cumsum(nn.Module):
    def forward(self, x):
        return x.cumsum(1)


def test_a_network_that_the_runtime_does_not_support_is_named_once(caplog):
    caplog.set_level(logging.INFO)
    data, model = noise(MNIST, 4), small_net(silu=Cumsum())
    expected = read(model, evaluation_batches(data, MNIST, "cpu"))
    for _ in range(2):
        assert torch.equal(images_of(MNIST).evidence(model, data).features, expected.features)
    (record,) = caplog.records
    assert "Sequential is evaluated with dense products, which is slower: 'silu': the operator" in record.message
    assert "cumsum" in record.message


class TwoHeads(nn.Module):
    """Returns the outputs of two layers; the second is the classifier."""

    def __init__(self):
        super().__init__()
        self.body, self.other, self.fc = (
            nn.Sequential(nn.Flatten(), nn.Linear(784, 8)),
            nn.Linear(8, 3),
            nn.Linear(8, 4),
        )

    def forward(self, x):
        h = self.body(x)
        return self.other(h), self.fc(h)


def test_the_classifier_is_the_one_that_read_uses(caplog):
    caplog.set_level(logging.INFO)
    model = sparse(TwoHeads(), 0.9)
    vars(model.fc)["_is_classifier"] = True  # as `read(classifier="fc")` does
    assert not is_faster(model)
    assert "its output is that of 'other', not of its classifier 'fc'" in caplog.text


@pytest.fixture
def without_runtime(monkeypatch):
    actual = builtins.__import__

    def missing(name, *arguments):
        if name == "moon_runtime":
            raise ModuleNotFoundError("No module named 'moon_runtime'", name="moon_runtime")
        return actual(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", missing)


@pytest.mark.usefixtures("without_runtime")
def test_without_the_runtime_torch_computes_and_a_message_says_so_once(caplog):
    caplog.set_level(logging.INFO)
    data, model = noise(MNIST, 4), small_net()
    expected = read(model, evaluation_batches(data, MNIST, "cpu"))
    for _ in range(2):
        assert torch.equal(images_of(MNIST).evidence(model, data).features, expected.features)
    (record,) = caplog.records
    assert "slower: moon-runtime is not installed (pip install moon-runtime" in record.message
    with pytest.raises(ValueError, match=r"cannot run in float16: moon-runtime is not installed"):
        images_of(MNIST).evidence(model, data, precision="float16")


class HalfNetwork(moon_runtime.Network):
    """A network that rounds its results, as one that computes in float16."""

    def __init__(self, source, threads=1, precision="float32", limit=1):
        super().__init__(source, threads)
        self.precision = precision

    def __call__(self, images):
        outputs = super().__call__(images)
        if self.precision == "float32":
            return outputs
        return {name: values.astype(np.float16).astype(np.float32) for name, values in outputs.items()}


def test_float16_is_computed_by_the_runtime_or_an_error(monkeypatch):
    data, model = noise(MNIST, 16), small_net()
    monkeypatch.setattr(sparse_reading, "_MIN_FLOPS", 1e18)  # it is used for few images, too
    monkeypatch.setattr(moon_runtime, "Network", HalfNetwork)
    exact, half = (images_of(MNIST).evidence(model, data, precision=p).features for p in ("float32", "float16"))
    assert torch.allclose(half, exact, atol=1e-2)
    assert not torch.allclose(half, exact, atol=1e-5)
    with pytest.raises(ValueError, match="the network cannot run in float16: it is not sparse"):
        images_of(MNIST).evidence(lenet(), data, precision="float16")
    with pytest.raises(ValueError, match="float32 or float16, not bfloat16"):
        images_of(MNIST).evidence(model, data, precision="bfloat16")


def test_a_network_is_traced_once_for_all_sets(monkeypatch):
    calls, actual = [], sparse_reading.checked_graph
    monkeypatch.setattr(sparse_reading, "checked_graph", lambda *a: calls.append(a) or actual(*a))
    model = small_net()
    cache = EvidenceCache(images_of(MNIST), model)
    for seed in range(3):
        data = noise(MNIST, 5, seed)
        expected = read(model, evaluation_batches(data, MNIST, "cpu"))
        assert torch.allclose(cache.get(f"set {seed}", data).logits.float(), expected.logits, atol=1e-5)
    assert len(calls) == 1


def test_kept_evidence_is_used_for_its_own_precision_only(tmp_path, monkeypatch):
    monkeypatch.setattr(moon_runtime, "Network", HalfNetwork)
    model, data = small_net(), noise(MNIST, 16)

    def evidence(**options):
        return EvidenceCache(images_of(MNIST), model, "m", tmp_path, **options).get("set", data)

    half = evidence(keep=True, precision="float16")
    assert torch.equal(evidence(precision="float16").features, half.features)
    assert not torch.equal(evidence().features, half.features)


@pytest.mark.slow
def test_scores_of_a_residual_network_do_not_change():
    known, unknown, bank = noise(CIFAR, 60), noise(CIFAR, 60, 1), noise(CIFAR, 60, 2)
    # Darker images, so that the scores differ.
    unknown = unknown._replace(images=unknown.images - unknown.images // 16)
    torch.manual_seed(0)
    first = next(iter(evaluation_batches(known, CIFAR, "cpu")))[0]
    model = sparse(open_head(resnet18(10)), 0.95, images=first)
    images = images_of(CIFAR)
    of_torch = [read(model, evaluation_batches(data, CIFAR, "cpu")) for data in (bank, known, unknown)]
    found = [images.evidence(model, data) for data in (bank, known, unknown)]
    assert is_faster(model, (3, 32, 32))
    assert of_torch[1].logits.std(0).min() > 0.05
    for one, other in zip(found, of_torch, strict=True):
        assert torch.allclose(one.logits.float(), other.logits, atol=1e-4)
        assert not torch.equal(one.features, other.features)
    for detector in (Energy(), Knn(k=5)):
        areas = []
        for training, test, other in (of_torch, found):
            detector.fit(training)
            areas.append(auroc(detector.score(test), detector.score(other)))
        assert areas[0] == pytest.approx(areas[1], abs=5e-5)
        assert 0.02 < areas[0] < 0.98


def normal_net():
    """A sparse network with BatchNorm for CIFAR-10, whose inner layers differ from image to image."""
    torch.manual_seed(0)
    return sparse(open_head(resnet8(10)), 0.8, images=torch.randn(16, 3, 32, 32))


def test_inner_layers_are_those_of_torch():
    model, data = normal_net(), noise(CIFAR, 12)
    expected = read(model, evaluation_batches(data, CIFAR, "cpu"), layers=True)
    found = images_of(CIFAR).evidence(model, data, layers=True)
    assert is_faster(model, (3, 32, 32), layers=True)
    assert found.layer_sizes == expected.layer_sizes
    assert torch.allclose(found.layers, expected.layers, rtol=1e-4, atol=1e-5)
    assert torch.allclose(found.features, expected.features, atol=1e-5)
    assert not torch.equal(found.layers, expected.layers)  # they were computed in another way


@pytest.mark.parametrize("make", [normal_net, lambda: sparse(nn.Sequential(nn.Flatten(), nn.Linear(3072, 9)), 0.9)])
def test_kept_evidence_has_the_layers_if_they_are_needed(make, tmp_path, monkeypatch):
    model, data = make(), noise(CIFAR, 12)

    def cache(layers):
        return EvidenceCache(images_of(CIFAR), model, "m", tmp_path, keep=True, layers=layers)

    assert cache(False).get("set", data).layers is None
    found = cache(True).get("set", data)  # replaces the file, which has none
    monkeypatch.setattr(EvidenceCache, "_compute", lambda *_: pytest.fail("evidence is computed again"))
    for layers in (True, False):
        kept = cache(layers).get("set", data)
        assert torch.equal(kept.layers, found.layers)
        assert kept.layer_sizes == found.layer_sizes
