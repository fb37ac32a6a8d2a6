"""The CPU kernel for sparse networks computes the same as torch."""

import gc
import shutil
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from moon import Odin, Static, read
from moon.data import BENCHMARKS, evaluation_batches
from moon.fast import FeatureMaps, c_library, conv_norm, conv_norm_relu, use_sparse_kernel
from moon.fast.sparse_inference import active_kernel
from moon.nets import lenet, resnet18, resnet50
from moon.run.images import BenchmarkImages
from moon.score.cache import EvidenceCache
from moon.timing import noise

pytestmark = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler")


def sparse(model, share, seed=0, images=None):
    """Set weights to zero at random, a share of them stays; draw BatchNorm parameters, or use those of the images."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            count = module.weight.numel()
            mask = torch.randperm(count, generator=generator) < share * count
            module.weight.data *= mask.view(module.weight.shape)
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low, high in (
                *((module.running_mean, -0.2, 0.2), (module.running_var, 0.5, 1.5)),
                *((module.weight.data, 0.5, 1.5), (module.bias.data, -0.2, 0.2)),
            ):
                tensor.copy_(low + (high - low) * torch.rand(tensor.shape, generator=generator))
            module.momentum = 1.0
    if images is not None:
        with torch.no_grad():
            model.train()(images)
    return model.eval()


class Layer(nn.Module):
    supports_sparse_kernel = True

    def __init__(self, conv, relu=True, with_residual=True):
        super().__init__()
        self.conv, self.norm = conv, nn.BatchNorm2d(conv.out_channels)
        self.relu, self.with_residual = relu, with_residual

    def forward(self, x):
        if not self.relu:
            return conv_norm(self.conv, self.norm, x)
        residual = conv_norm(self.conv, self.norm, x) if self.with_residual else None
        return conv_norm_relu(self.conv, self.norm, x, residual)


def small_layer():
    return sparse(Layer(nn.Conv2d(6, 5, 3, padding=1, bias=False)), 0.2)


def both(model, x, half=False):
    """The outputs of the model computed by torch and by the sparse kernel."""
    with torch.no_grad():
        expected = model(x)
        with use_sparse_kernel(model, half) as is_active:
            assert is_active
            found = model(x)
    if isinstance(model, Layer):
        assert isinstance(found, FeatureMaps)
        found = found.tensor()
    return expected, found


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def has_half():
    return not isinstance(c_library.load_library(True), str)


needs_half = pytest.mark.skipif(not has_half(), reason="this CPU does not support float16 arithmetic")


SHAPES = [
    (size, kernel, padding)
    for size in (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 33)
    for kernel, padding in ((3, 1), (1, 0), (3, 0), (1, 1), (2, 1))
    if size + 2 * padding >= kernel
]


@pytest.mark.parametrize(("size", "kernel", "padding"), SHAPES)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_layers_of_every_shape_compute_the_same_as_torch(size, kernel, padding, stride):
    for relu, with_residual, bias in ((True, True, False), (True, False, True), (False, False, False)):
        conv = nn.Conv2d(6, 5, kernel, stride, padding, bias=bias)
        model = sparse(Layer(conv, relu, with_residual), 0.2, seed=size)
        expected, found = both(model, torch.randn(7, 6, size, size + size % 3))
        assert found.shape == expected.shape
        assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("half", [False, pytest.param(True, marks=needs_half)])
@pytest.mark.parametrize("size", [3, 4, 7, 8, 11, 18])
def test_rows_are_divided_among_threads(threads, size, half):
    model = small_layer()
    expected, found = both(model, torch.randn(2 * threads + 3, 6, size + 1, size), half)
    assert torch.allclose(found, expected, atol=0.02 if half else 1e-5)


def test_many_channels_are_computed_in_parts():
    conv = nn.Conv2d(320, 32, 3, padding=1, bias=False)
    expected, found = both(sparse(Layer(conv), 0.24), torch.randn(9, 320, 9, 18))
    assert torch.allclose(found, expected, atol=1e-5)
    model = sparse(Layer(conv), 0.24)
    with torch.no_grad(), use_sparse_kernel(model):
        model(torch.randn(1, 320, 9, 18))
        assert next(iter(active_kernel().weights.values())).parts > 1


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3, 8, 17])
def test_a_residual_network_has_the_same_outputs(count):
    x = torch.randn(17, 3, 32, 32)
    expected, found = both(sparse(resnet18(10), 0.1, images=x), x[:count])
    assert count == 1 or expected.std(0).min() > 0.05
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.slow
def test_a_network_with_unsupported_layers_has_the_same_outputs():
    """The padding of the stem of ResNet-50 is too wide for the kernel, and a pooling layer follows."""
    x = torch.randn(3, 3, 70, 70)
    expected, found = both(sparse(resnet50(10), 0.1, images=x), x)
    assert expected.std(0).min() > 0.05
    assert torch.allclose(found, expected, atol=1e-3)


@needs_half
def test_float16_is_less_exact():
    x = torch.randn(9, 3, 32, 32)
    expected, found = both(sparse(resnet18(10), 0.1, images=x), x, half=True)
    assert torch.allclose(found, expected, atol=0.05 * expected.std())
    assert not torch.allclose(found, expected, atol=1e-5)


def test_nan_stays_nan():
    """Unlike in dense kernels, a NaN has no effect where the weight is zero."""
    x = torch.randn(2, 6, 8, 8)
    x[1, :, 4, 4] = torch.nan
    expected, found = both(sparse(Layer(nn.Conv2d(6, 5, 1, bias=False)), 0.2), x)
    assert found.isnan().any()
    assert not found[~expected.isnan()].isnan().any()


def test_torch_functions_see_feature_maps_as_tensors():
    x = torch.randn(3, 6, 8, 8)
    model = small_layer()
    expected, _ = both(model, x)
    with torch.no_grad(), use_sparse_kernel(model):
        maps = model(x)
        assert isinstance(maps, FeatureMaps)
        assert maps.shape == expected.shape
        assert torch.allclose(maps.mean((2, 3)), expected.mean((2, 3)), atol=1e-5)
        assert torch.allclose(expected + maps, 2 * expected, atol=1e-5)
        assert torch.allclose(nn.functional.max_pool2d(maps, 2), nn.functional.max_pool2d(expected, 2), atol=1e-5)
        kept = maps.tensor()
        first = kept.clone()
        del maps
        model(-x)  # uses the memory of the deleted maps
    assert torch.equal(kept, first)


@pytest.mark.slow
def test_the_kernel_is_not_used_for_dense_models_other_models_gradients_hooks_and_training():
    x = torch.randn(2, 3, 32, 32)
    for model in (resnet18(10).eval(), sparse(lenet(10), 0.1)):
        with use_sparse_kernel(model) as is_active:
            assert not is_active
    model = sparse(resnet18(10), 0.1)
    with use_sparse_kernel(model):
        model(x).sum().backward()  # gradients
        assert model.conv1.weight.grad is not None
        for part in (model.layer1[0].conv1, model.layer1[0].bn1):
            calls = []
            handle = part.register_forward_hook(lambda *_, calls=calls: calls.append(1))
            with torch.no_grad():
                model(x)
            handle.remove()
            assert calls == [1]
    handle = model.layer1.register_forward_hook(lambda *_: None)
    with use_sparse_kernel(model) as is_active:
        assert not is_active  # the hook gets tensors
    handle.remove()
    before = model.bn1.running_mean.clone()
    model.train()
    with torch.no_grad(), use_sparse_kernel(model):
        model(x)
    assert not torch.equal(model.bn1.running_mean, before)


def test_torch_computes_layers_that_the_kernel_does_not_support():
    model = sparse(Layer(nn.Conv2d(6, 5, 3, padding=1, bias=False), with_residual=False), 0.2)
    x = torch.randn(4, 6, 8, 8)
    with torch.no_grad(), use_sparse_kernel(model):
        with pytest.raises(RuntimeError, match="channels"):
            model(x[:, :1])
        broadcast = conv_norm_relu(model.conv, model.norm, x, torch.ones(4, 5, 1, 1))
        assert isinstance(broadcast, torch.Tensor)
        assert torch.allclose(broadcast, (model.norm(model.conv(x)) + 1).relu(), atol=1e-5)
        with torch.autocast("cpu", torch.bfloat16):
            assert isinstance(model(x), torch.Tensor)
        other = sparse(Layer(nn.Conv2d(6, 5, 1, bias=False)), 0.2)
        assert isinstance(other(x), torch.Tensor)  # not the model of the context
        assert model(x[:0]).shape == (0, 5, 8, 8)
        channels_last = model(x.contiguous(memory_format=torch.channels_last)).tensor()
        assert torch.allclose(channels_last, model(x).tensor(), atol=1e-5)
    with torch.inference_mode(), use_sparse_kernel(model):
        first = model(x).tensor()
        with torch.inference_mode(False), torch.no_grad():
            assert torch.equal(model(x).tensor(), first)


@pytest.mark.slow
def test_two_threads_use_their_own_kernels():
    models = [sparse(resnet18(10), 0.1, seed) for seed in range(2)]
    x = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        expected = [model(x) for model in models]

    def run_often(index):
        with torch.no_grad():
            for _ in range(3):
                with use_sparse_kernel(models[index]):
                    assert torch.allclose(models[index](x), expected[index], atol=1e-5)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run_often, range(2)))
    assert active_kernel() is None


@pytest.fixture
def without_compiler(monkeypatch):
    c_library.load_library.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler")
    yield
    c_library.load_library.cache_clear()


@pytest.mark.usefixtures("without_compiler")
def test_without_a_compiler_a_warning_is_shown():
    model, x = small_layer(), torch.randn(2, 6, 8, 8)

    def output():
        with torch.no_grad(), use_sparse_kernel(model) as is_active:
            assert not is_active
            return model(x)

    with pytest.warns(UserWarning, match=r"dense kernels, which is slower: .*no-such-compiler"):
        found = output()
    assert torch.equal(found, model(x))
    with pytest.raises(ValueError, match=r"float16: .*no-such-compiler"), use_sparse_kernel(model, half=True):
        pass


@pytest.mark.usefixtures("without_compiler")
def test_a_compiler_that_fails_runs_only_once(monkeypatch):
    calls = []
    monkeypatch.setattr(c_library.subprocess, "run", lambda command, **_: calls.append(command) or missing())
    for _ in range(3):
        model = small_layer()
        with pytest.warns(UserWarning, match="dense kernels"), use_sparse_kernel(model) as is_active:
            assert not is_active
    assert len(calls) == 1
    kept = weakref.ref(model)
    del model
    gc.collect()
    assert kept() is None


def missing():
    raise FileNotFoundError("no-such-compiler")


def test_an_error_of_the_compiler_is_in_the_message(monkeypatch, tmp_path):
    source = tmp_path / "broken.c"
    source.write_text("#error no\n")
    monkeypatch.setattr(c_library, "_SOURCE", source)
    with pytest.raises(OSError, match=r"cannot compile broken.c: .*#error no"):
        c_library.compile_library(False)


@pytest.mark.slow
def test_the_evidence_of_a_benchmark_is_the_same():
    benchmark = BENCHMARKS["cifar10"]
    images, data = BenchmarkImages(benchmark, {}, {}, ()), noise(benchmark, 18)

    def batches():
        return evaluation_batches(data, benchmark, "cpu")

    model = sparse(resnet18(10), 0.1, images=next(iter(batches()))[0])
    expected = read(model, batches())
    assert expected.logits.std(0).min() > 0.05
    found = images.evidence(model, data)
    assert torch.allclose(found.logits.float(), expected.logits, atol=1e-4)
    assert torch.allclose(found.features, expected.features, atol=1e-4)
    assert torch.equal(found.labels, expected.labels)
    odin = Odin()
    perturbed = read(model, batches(), odin.perturb)
    assert torch.allclose(images.evidence(model, data, odin.perturb).logits.float(), perturbed.logits, atol=1e-3)
    with pytest.raises(ValueError, match="float32 or float16, not bfloat16"):
        images.evidence(model, data, precision="bfloat16")


@needs_half
def test_kept_evidence_is_used_for_its_own_precision_only(tmp_path):
    benchmark = BENCHMARKS["cifar10"]
    model, data = sparse(resnet18(10), 0.1), noise(benchmark, 16)

    def evidence(**options):
        images = BenchmarkImages(benchmark, {}, {}, ())
        return EvidenceCache(images, model, "m", tmp_path, **options).get("set", data)

    half = evidence(keep=True, precision="float16")
    assert torch.equal(evidence(precision="float16").features, half.features)
    assert not torch.equal(evidence().features, half.features)


@pytest.mark.slow
def test_only_the_weights_that_a_topology_keeps_are_multiplied():
    model = resnet18(10)
    topology = Static(model, torch.optim.SGD(model.parameters(), lr=0.1), 0.95)
    with torch.no_grad(), use_sparse_kernel(model.eval()):
        model(torch.randn(1, 3, 32, 32))
        multiplied = sum(len(weights.value) for weights in active_kernel().weights.values())
    assert multiplied == sum(int(m.sum()) for n, m in topology.masks.items() if n != "fc.weight")
