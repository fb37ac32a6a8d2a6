"""A sparse network is read by its weights that exist, and says what it says otherwise."""

import gc
import shutil
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from moon import Odin, Static, read
from moon.data import BENCHMARKS
from moon.fast import conv_norm, conv_norm_relu, reading, sparse_reading
from moon.nets import lenet, resnet18, resnet50
from moon.run.images import Bench
from moon.score.cache import Readings
from moon.timing import noise

pytestmark = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler")


def thinned(model, share, seed=0, images=None):
    """With so many of its weights, and other statistics than the first; those of the images if there are some."""
    chance = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            count = module.weight.numel()
            exists = torch.randperm(count, generator=chance) < share * count
            module.weight.data *= exists.view(module.weight.shape)
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low, high in (
                *((module.running_mean, -0.2, 0.2), (module.running_var, 0.5, 1.5)),
                *((module.weight.data, 0.5, 1.5), (module.bias.data, -0.2, 0.2)),
            ):
                tensor.copy_(low + (high - low) * torch.rand(tensor.shape, generator=chance))
            module.momentum = 1.0
    if images is not None:
        with torch.no_grad():
            model.train()(images)
    return model.eval()


class Layer(nn.Module):
    calls_conv_norm = True

    def __init__(self, conv, cut=True, with_residual=True):
        super().__init__()
        self.conv, self.norm = conv, nn.BatchNorm2d(conv.out_channels)
        self.cut, self.with_residual = cut, with_residual

    def forward(self, x):
        if not self.cut:
            return conv_norm(self.conv, self.norm, x)
        before = conv_norm(self.conv, self.norm, x) if self.with_residual else None
        return conv_norm_relu(self.conv, self.norm, x, before)


def both(model, x, half=False):
    """What it says with dense products, and by its weights that exist."""
    with torch.no_grad():
        expected = model(x)
        with sparse_reading(model, half) as is_sparse:
            assert is_sparse
            found = model(x)
    if isinstance(model, Layer):
        assert isinstance(found, reading.Maps)
        found = found.tensor()
    return expected, found


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def has_half():
    return not isinstance(reading._kernel(True), str)


needs_half = pytest.mark.skipif(not has_half(), reason="this CPU does not compute in float16")


SHAPES = [
    (size, kernel, padding)
    for size in (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 33)
    for kernel, padding in ((3, 1), (1, 0), (3, 0), (1, 1), (2, 1))
    if size + 2 * padding >= kernel
]


@pytest.mark.parametrize(("size", "kernel", "padding"), SHAPES)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_layers_of_every_shape_are_the_modules(size, kernel, padding, stride):
    for cut, with_residual, bias in ((True, True, False), (True, False, True), (False, False, False)):
        conv = nn.Conv2d(6, 5, kernel, stride, padding, bias=bias)
        model = thinned(Layer(conv, cut, with_residual), 0.2, seed=size)
        expected, found = both(model, torch.randn(7, 6, size, size + size % 3))
        assert found.shape == expected.shape
        assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("half", [False, pytest.param(True, marks=needs_half)])
@pytest.mark.parametrize("size", [3, 4, 7, 8, 11, 18])
def test_threads_share_the_rows(threads, size, half):
    model = thinned(Layer(nn.Conv2d(6, 5, 3, padding=1, bias=False)), 0.2)
    expected, found = both(model, torch.randn(2 * threads + 3, 6, size + 1, size), half)
    assert torch.allclose(found, expected, atol=0.02 if half else 1e-5)


def test_many_channels_are_read_in_parts():
    conv = nn.Conv2d(320, 32, 3, padding=1, bias=False)
    expected, found = both(thinned(Layer(conv), 0.24), torch.randn(9, 320, 9, 18))
    assert torch.allclose(found, expected, atol=1e-5)
    model = thinned(Layer(conv), 0.24)
    with torch.no_grad(), sparse_reading(model):
        model(torch.randn(1, 320, 9, 18))
        assert next(iter(reading._active.get()._lists.values())).parts > 1


@pytest.mark.parametrize("count", [1, 3, 8, 17])
def test_a_residual_network_says_the_same(count):
    x = torch.randn(17, 3, 32, 32)
    expected, found = both(thinned(resnet18(10), 0.1, images=x), x[:count])
    assert count == 1 or expected.std(0).min() > 0.05
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_network_with_other_layers_between_says_the_same():
    """ResNet-50 pools after its stem, whose padding is too wide for the kernel: those get a tensor."""
    x = torch.randn(3, 3, 70, 70)
    expected, found = both(thinned(resnet50(10), 0.1, images=x), x)
    assert expected.std(0).min() > 0.05
    assert torch.allclose(found, expected, atol=1e-3)


@needs_half
def test_half_is_less_exact():
    x = torch.randn(9, 3, 32, 32)
    expected, found = both(thinned(resnet18(10), 0.1, images=x), x, half=True)
    assert torch.allclose(found, expected, atol=0.05 * expected.std())
    assert not torch.allclose(found, expected, atol=1e-5)


def test_nan_stays_nan():
    """But where the weight is zero, it does not come in at all."""
    x = torch.randn(2, 6, 8, 8)
    x[1, :, 4, 4] = torch.nan
    expected, found = both(thinned(Layer(nn.Conv2d(6, 5, 1, bias=False)), 0.2), x)
    assert found.isnan().any()
    assert not found[~expected.isnan()].isnan().any()


def test_maps_are_tensors_to_everybody_else():
    x = torch.randn(3, 6, 8, 8)
    model = thinned(Layer(nn.Conv2d(6, 5, 3, padding=1, bias=False)), 0.2)
    expected, _ = both(model, x)
    with torch.no_grad(), sparse_reading(model):
        maps = model(x)
        assert isinstance(maps, reading.Maps)
        assert maps.shape == expected.shape
        assert torch.allclose(maps.mean((2, 3)), expected.mean((2, 3)), atol=1e-5)
        assert torch.allclose(expected + maps, 2 * expected, atol=1e-5)
        assert torch.allclose(nn.functional.max_pool2d(maps, 2), nn.functional.max_pool2d(expected, 2), atol=1e-5)
        kept = maps.tensor()
        first = kept.clone()
        del maps
        model(-x)  # in the memory that is free again
    assert torch.equal(kept, first)


def test_what_is_not_sparse_ours_or_at_rest_is_read_as_ever():
    x = torch.randn(2, 3, 32, 32)
    for model in (resnet18(10).eval(), thinned(lenet(10), 0.1)):
        with sparse_reading(model) as is_sparse:
            assert not is_sparse
    model = thinned(resnet18(10), 0.1)
    with sparse_reading(model):
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
    with sparse_reading(model) as is_sparse:
        assert not is_sparse  # it gets tensors, all of them
    handle.remove()
    before = model.bn1.running_mean.clone()
    model.train()
    with torch.no_grad(), sparse_reading(model):
        model(x)
    assert not torch.equal(model.bn1.running_mean, before)


def test_layers_that_do_not_fit_are_left_to_torch():
    model = thinned(Layer(nn.Conv2d(6, 5, 3, padding=1, bias=False), with_residual=False), 0.2)
    x = torch.randn(4, 6, 8, 8)
    with torch.no_grad(), sparse_reading(model):
        with pytest.raises(RuntimeError, match="channels"):
            model(x[:, :1])
        narrow = conv_norm_relu(model.conv, model.norm, x, torch.ones(4, 5, 1, 1))
        assert isinstance(narrow, torch.Tensor)
        assert torch.allclose(narrow, (model.norm(model.conv(x)) + 1).relu(), atol=1e-5)
        with torch.autocast("cpu", torch.bfloat16):
            assert isinstance(model(x), torch.Tensor)
        other = thinned(Layer(nn.Conv2d(6, 5, 1, bias=False)), 0.2)
        assert isinstance(other(x), torch.Tensor)  # not the model that is read
        assert model(x[:0]).shape == (0, 5, 8, 8)
        wide = model(x.contiguous(memory_format=torch.channels_last)).tensor()
        assert torch.allclose(wide, model(x).tensor(), atol=1e-5)
    with torch.inference_mode(), sparse_reading(model):
        first = model(x).tensor()
        with torch.inference_mode(False), torch.no_grad():
            assert torch.equal(model(x).tensor(), first)


def test_readings_of_two_threads_do_not_mix():
    models = [thinned(resnet18(10), 0.1, seed) for seed in range(2)]
    x = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        expected = [model(x) for model in models]

    def read_often(index):
        with torch.no_grad():
            for _ in range(3):
                with sparse_reading(models[index]):
                    assert torch.allclose(models[index](x), expected[index], atol=1e-5)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(read_often, range(2)))
    assert reading._active.get() is None


@pytest.fixture
def without_compiler(monkeypatch):
    reading._kernel.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler")
    yield
    reading._kernel.cache_clear()


@pytest.mark.usefixtures("without_compiler")
def test_without_a_compiler_a_line_says_so():
    model = thinned(resnet18(10), 0.1)
    with pytest.warns(UserWarning, match=r"dense products, which is slower: .*no-such-compiler"):
        found = Bench(BENCHMARKS["cifar10"], {}, {}, ()).read(model, noise(BENCHMARKS["cifar10"], 2))
    assert len(found) == 2
    with pytest.raises(ValueError, match=r"float16: .*no-such-compiler"), sparse_reading(model, half=True):
        pass


@pytest.mark.usefixtures("without_compiler")
def test_a_compiler_that_fails_is_asked_once(monkeypatch):
    asked = []
    monkeypatch.setattr(reading.subprocess, "run", lambda command, **_: asked.append(command) or missing())
    for _ in range(3):
        model = thinned(resnet18(10), 0.1)
        with pytest.warns(UserWarning, match="dense products"), sparse_reading(model) as sparse:
            assert not sparse
    assert len(asked) == 1
    kept = weakref.ref(model)
    del model
    gc.collect()
    assert kept() is None


def missing():
    raise FileNotFoundError("no-such-compiler")


def test_what_cannot_be_compiled_is_told(monkeypatch, tmp_path):
    source = tmp_path / "reading.c"
    source.write_text("#error no\n")
    monkeypatch.setattr(reading, "_SOURCE", source)
    with pytest.raises(OSError, match=r"does not compile reading.c: .*#error no"):
        reading._compiled(False)


def test_a_bench_reads_so_and_says_the_same():
    row = BENCHMARKS["cifar10"]
    bench, data = Bench(row, {}, {}, ()), noise(row, 18)
    (images, _), *_ = bench.batches(data, "cpu")
    model = thinned(resnet18(10), 0.1, images=images)
    expected = read(model, bench.batches(data, "cpu"))
    assert expected.logits.std(0).min() > 0.05
    found = bench.read(model, data)
    assert torch.allclose(found.logits.float(), expected.logits, atol=1e-4)
    assert torch.allclose(found.features, expected.features, atol=1e-4)
    assert torch.equal(found.labels, expected.labels)
    odin = Odin()
    perturbed = read(model, bench.batches(data, "cpu"), odin.perturb)
    assert torch.allclose(bench.read(model, data, odin.perturb).logits.float(), perturbed.logits, atol=1e-3)
    with pytest.raises(ValueError, match="float32 or float16, not bfloat16"):
        bench.read(model, data, precision="bfloat16")


@needs_half
def test_evidence_of_another_precision_is_not_taken(tmp_path):
    row = BENCHMARKS["cifar10"]
    model, bench, data = thinned(resnet18(10), 0.1), Bench(row, {}, {}, ()), noise(row, 16)
    half = Readings(bench, model, "m", tmp_path, keep=True, precision="float16").of("set", data)
    again = Readings(bench, model, "m", tmp_path, precision="float16").of("set", data)
    exact = Readings(bench, model, "m", tmp_path).of("set", data)
    assert torch.equal(again.features, half.features)
    assert not torch.equal(exact.features, half.features)


def test_weights_that_a_topology_keeps_at_zero_are_not_read():
    model = resnet18(10)
    topology = Static(model, torch.optim.SGD(model.parameters(), lr=0.1), 0.95)
    with torch.no_grad(), sparse_reading(model.eval()):
        model(torch.randn(1, 3, 32, 32))
        read_ones = sum(len(lists.value) for lists in reading._active.get()._lists.values())
    assert read_ones == sum(int(m.sum()) for n, m in topology.masks.items() if n != "fc.weight")
