"""The Triton kernels, interpreted on a CPU, against torch in float64."""

import copy
import os
from importlib.util import find_spec

import pytest
import torch
from torch import nn

if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported

from moon.fast import Flat, kernels, norm, norm_only, norm_relu


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    monkeypatch.setattr(norm, "_has_kernels", lambda x: True)


def close(found, expected, tolerance=2e-6):
    found, expected = found.detach().double(), expected.detach()
    return float((found - expected).abs().max() / expected.abs().max()) < tolerance


def images(*shape, shift=0.0):
    return (3 * torch.randn(shape) + shift).to(memory_format=torch.channels_last).requires_grad_()


@pytest.mark.parametrize("shape", [(6, 64, 4, 4), (5, 128, 7, 3), (33, 64, 8, 8)])
@pytest.mark.parametrize("kind", ["relu", "plain", "residual"])
def test_batch_norm_is_torchs_forward_and_back(shape, kind):
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(shape[1])
    nn.init.uniform_(layer.weight, 0.5, 2)
    nn.init.normal_(layer.bias)
    exact = copy.deepcopy(layer).double()
    flat = Flat(torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9), {}, None)
    x, residual, slope = images(*shape, shift=5.0), images(*shape), torch.randn(shape)
    x64, residual64 = (t.detach().double().requires_grad_() for t in (x, residual))
    for _ in range(2):  # counters and gradients start anew
        x.grad = residual.grad = x64.grad = residual64.grad = None
        with flat.step(layer):
            y = (
                norm_only(layer, x)
                if kind == "plain"
                else norm_relu(layer, x, residual if kind == "residual" else None)
            )
            y.backward(slope)
        assert type(y.grad_fn).__name__ == "_NormBackward"
        exact.zero_grad()
        y64 = exact(x64) + (residual64 if kind == "residual" else 0)
        y64 = y64 if kind == "plain" else y64.relu()
        y64.backward(slope.double())
    assert close(y, y64)
    assert close(x.grad, x64.grad)
    assert close(layer.weight.grad, exact.weight.grad)
    assert close(layer.bias.grad, exact.bias.grad)
    assert close(layer.running_mean, exact.running_mean)
    assert close(layer.running_var, exact.running_var)
    assert layer.num_batches_tracked == 2
    if kind == "residual":
        assert close(residual.grad, residual64.grad)


def test_a_norm_used_twice_adds_its_gradients():
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(64)
    exact = copy.deepcopy(layer).double()
    flat = Flat(torch.optim.SGD(layer.parameters(), lr=0.1), {}, None)
    x = images(4, 64, 4, 4)
    with flat.step(layer):
        (norm_relu(layer, norm_relu(layer, x)) * torch.arange(4)).sum().backward()
    (exact(exact(x.detach().double()).relu()).relu() * torch.arange(4)).sum().backward()
    assert close(layer.weight.grad, exact.weight.grad, 1e-5)
    assert close(layer.bias.grad, exact.bias.grad, 1e-5)


@pytest.mark.parametrize("nesterov", [False, True])
def test_the_update_is_the_one_in_torch(nesterov):
    torch.manual_seed(0)
    layer = nn.Linear(30, 20)
    mask = torch.rand(20, 30) < 0.3
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9, nesterov=nesterov, weight_decay=0.01)
    flat = Flat(optimizer, {layer.weight: mask}, torch.bfloat16)
    flat.slope.normal_()
    flat.velocity.normal_()
    buffers = {name: getattr(flat, name).clone() for name in ("weight", "velocity", "low")}
    size = flat.weight.numel()
    kernels.launch(
        kernels.sgd, (2,), buffers["weight"], flat.slope, buffers["velocity"], flat.exists, buffers["low"], size,
        0.05, 0.9, 0.01, NESTEROV=nesterov, LOW=True, BLOCK=512,
    )  # fmt: skip
    flat.update(0.05)
    for name, tolerance in (("weight", 1e-6), ("velocity", 1e-6), ("low", 2**-7)):  # interpreted, it rounds down
        assert torch.allclose(buffers[name].float(), getattr(flat, name).float(), rtol=tolerance, atol=1e-7), name
    assert not layer.weight[~mask].any()
