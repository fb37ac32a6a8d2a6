"""Copies of networks for predictions: the same outputs, on a CPU, and by kernels (tests/conftest.py)."""

import copy
from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.nn.functional import relu
from torch.utils._python_dispatch import TorchDispatchMode

from moon import lenet, resnet18, resnet50
from moon.fast import inference, inference_copy, norm_relu
from moon.fast.inference import InferenceConv, InferenceNorm
from moon.nets import lenet_norm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BFLOAT16 = torch.bfloat16


class Odd(nn.Module):
    """What a network of others may do: groups, other paddings, shared weights, no autocast for a layer, hooks."""

    def __init__(self, num_classes=4, in_channels=3):
        super().__init__()
        self.first = nn.Conv2d(in_channels, 8, 3, padding="same", padding_mode="reflect")
        self.grouped = nn.Conv2d(8, 8, (1, 1), (2, 1), groups=2)
        self.norm = nn.BatchNorm2d(8, affine=False)
        self.plain = nn.BatchNorm2d(8, track_running_stats=False)
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)
        self.other.weight = self.one.weight
        self.hooked = nn.Linear(8, 8)
        self.hooked.register_forward_hook(lambda _module, _inputs, output: 2 * output)
        self.fc = nn.Linear(8, num_classes)

    def forward(self, x):
        x = relu(self.plain(self.norm(self.grouped(self.first(x)))))
        x = self.hooked(self.other(self.one(x.mean((2, 3)))))
        with torch.autocast(x.device.type, enabled=False):
            return self.fc(x.to(self.one.weight.dtype)) + self.one(x.to(self.one.weight.dtype)).mean()


def trained(make, dtype=torch.float32, **settings):
    """A network with statistics, weights and biases of BatchNorm as after training, and inputs."""
    torch.manual_seed(0)
    model = make(num_classes=4, in_channels=3, **settings).to(dtype).to(memory_format=torch.channels_last)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low, high in (
                (module.running_mean, -0.3, 0.3), (module.running_var, 0.3, 2), (module.weight, 0.5, 1.5),
                (module.bias, -0.3, 0.3),
            ):  # fmt: skip
                if tensor is not None:
                    nn.init.uniform_(tensor, low, high)
    return model, torch.randn(2, 3, 28, 28, dtype=dtype)


def outputs(model, x, precision):
    with torch.no_grad(), torch.autocast("cpu", BFLOAT16, enabled=precision == BFLOAT16):
        return model(x).double()


def narrow_resnet18(**settings):
    return resnet18(**settings, width=0.125)


def narrow_resnet50(**settings):
    return resnet50(**settings, width=0.125)


@pytest.mark.parametrize("make", [lenet, lenet_norm, narrow_resnet18, narrow_resnet50, Odd])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_the_copy_computes_the_same(make, dtype, tolerance):
    model, x = trained(make, dtype)
    state, is_training = copy.deepcopy(model.state_dict()), model.training
    for precision in (dtype, BFLOAT16):  # without autocast, low-precision weights are not used
        found = outputs(inference_copy(model, precision), x, dtype)
        expected = outputs(copy.deepcopy(model).eval(), x, dtype)
        assert (found - expected).abs().max() <= tolerance * expected.abs().max()
    assert model.training is is_training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert {type(module) for module in model.modules()}.isdisjoint({InferenceConv, InferenceNorm})


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16 warns once
@pytest.mark.parametrize("make", [lenet, lenet_norm, narrow_resnet18, narrow_resnet50, Odd])
@pytest.mark.parametrize("tensor_cores", [False, True])  # padded channels, strided 1x1 convolutions
def test_under_autocast_the_copy_computes_the_same_up_to_rounding(make, tensor_cores, monkeypatch):
    monkeypatch.setattr(inference, "_has_tensor_cores", lambda x: tensor_cores)
    model, x = trained(make)
    exact = outputs(copy.deepcopy(model).eval(), x, torch.float32)
    expected = outputs(model.eval(), x, BFLOAT16)
    found = outputs(inference_copy(model, BFLOAT16), x, BFLOAT16)
    rounding = (expected - exact).abs().max()
    assert rounding > 0  # it is low precision
    assert (found - expected).abs().max() <= 2 * rounding
    assert not torch.equal(found, exact)


class Conversions(TorchDispatchMode):
    """Counts conversions of tensors to another dtype."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def test_weights_are_converted_once():
    model, _ = trained(narrow_resnet18)
    x, counts = torch.randn(2, 8, 8, 8, dtype=BFLOAT16), []
    for layers in (model.eval().layer1, inference_copy(model, BFLOAT16).layer1):
        with torch.no_grad(), torch.autocast("cpu", BFLOAT16), Conversions() as conversions:
            layers(x)
        counts.append(conversions.count)
    assert counts == [4, 0]


def test_a_later_change_does_not_change_the_copy():
    model, x = trained(lenet_norm)
    predict = inference_copy(model, torch.float32)
    before = outputs(predict, x, torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(outputs(predict, x, torch.float32), before)


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT16])
@pytest.mark.parametrize("with_residual", [False, True])
def test_the_kernel_computes_the_same(dtype, with_residual, monkeypatch):
    monkeypatch.setattr(inference, "_has_kernels", lambda x: True)
    monkeypatch.setattr(nn.BatchNorm2d, "forward", None)  # the kernel does it all
    layer = nn.BatchNorm2d(128).to(DEVICE)
    with torch.no_grad():
        for tensor in (layer.weight, layer.bias, layer.running_mean):
            tensor.normal_()
        layer.running_var.uniform_(0.1, 2)
    x, residual = torch.randn(2, 3, 128, 5, 7, device=DEVICE).to(dtype).unbind()
    x, residual = (each.contiguous(memory_format=torch.channels_last) for each in (x, residual))
    predict = inference_copy(layer, dtype)
    shape = 1, -1, 1, 1
    scale = layer.weight.double() / (layer.running_var.double() + layer.eps).sqrt()
    expected = (x.double() - layer.running_mean.double().view(shape)) * scale.view(shape) + layer.bias.view(shape)
    precision = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2**-7, "atol": 1e-3}
    if not with_residual:
        torch.testing.assert_close(predict(x).double(), expected, **precision)
    found = norm_relu(predict, x, residual if with_residual else None)
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found.double(), relu(expected + residual * with_residual), **precision)


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_a_network_computes_the_same_by_kernels(monkeypatch):
    model, x = trained(resnet18)
    model, x = model.to(DEVICE).eval(), x[:, :, :8, :8].to(DEVICE)
    with torch.no_grad():
        expected, predict = model(x), inference_copy(model, torch.float32)
        monkeypatch.setattr(inference, "_has_kernels", lambda x: True)
        monkeypatch.setattr(nn.BatchNorm2d, "forward", None)
        torch.testing.assert_close(predict(x), expected, rtol=1e-4, atol=1e-4)
