"""The Triton kernels against torch in float64, on a GPU or interpreted (tests/conftest.py)."""

import copy
from importlib.util import find_spec

import pytest
import torch
from torch import nn

if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from moon.fast import FlatBuffers, batch_norm, layers_on_buffers, norm, norm_relu, second_use, write_addresses
from moon.fast.update import launch_update, sgd_update_overlapped

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Kernels read a few elements after the end of a tensor and ignore them; the interpreter warns if these overflow.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    monkeypatch.setattr(batch_norm, "_has_kernels", lambda x: True)


def close(found, expected, tolerance=2e-6):
    found, expected = found.detach().double(), expected.detach()
    return float((found - expected).abs().max() / expected.abs().max()) < tolerance


def images(*shape, shift=0.0):
    values = 3 * torch.randn(shape, device=DEVICE) + shift
    return values.to(memory_format=torch.channels_last).requires_grad_()


LARGE = pytest.param((33, 64, 8, 8), marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(6, 64, 4, 4), (5, 128, 7, 3), LARGE])
@pytest.mark.parametrize("kind", ["relu", "plain", "residual"])
def test_batch_norm_computes_the_same_as_torch(shape, kind):
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(shape[1]).to(DEVICE)
    nn.init.uniform_(layer.weight, 0.5, 2)
    nn.init.normal_(layer.bias)
    exact = copy.deepcopy(layer).double()
    buffers = FlatBuffers(torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9), {}, None)
    x, residual, grad = images(*shape, shift=5.0), images(*shape), torch.randn(shape, device=DEVICE)
    x64, residual64 = (t.detach().double().requires_grad_() for t in (x, residual))
    for _ in range(2):  # counters and gradients are reset
        x.grad = residual.grad = x64.grad = residual64.grad = None
        with buffers.step():
            y = norm(layer, x) if kind == "plain" else norm_relu(layer, x, residual if kind == "residual" else None)
            y.backward(grad)
        assert type(y.grad_fn).__name__ == "_NormFunctionBackward"
        exact.zero_grad()
        y64 = exact(x64) + (residual64 if kind == "residual" else 0)
        y64 = y64 if kind == "plain" else y64.relu()
        y64.backward(grad.double())
    assert close(y, y64)
    assert close(x.grad, x64.grad)
    assert close(layer.weight.grad, exact.weight.grad)
    assert close(layer.bias.grad, exact.bias.grad)
    assert close(layer.running_mean, exact.running_mean)
    assert close(layer.running_var, exact.running_var)
    assert layer.num_batches_tracked == 2
    if kind == "residual":
        assert close(residual.grad, residual64.grad)


def test_the_variance_is_exact_if_the_mean_is_far_from_zero():
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(64).to(DEVICE)
    buffers = FlatBuffers(torch.optim.SGD(layer.parameters(), lr=0.1), {}, None)
    x = images(33, 64, 8, 8, shift=1000.0).detach()
    x[:, 0] = 77.0  # constant
    x[:, 1] = 1e-3 * torch.randn(33, 8, 8, device=DEVICE)
    x[0, 1, 0, 0] = 3.0  # the first value is far from the mean
    with buffers.step():
        y = norm(layer, x)
    exact = nn.BatchNorm2d(64).to(DEVICE).double()
    assert close(y, exact(x.double()), 1e-4)  # neighbours of 1000.0 in float32 differ by 6e-5
    assert close(layer.running_var, exact.running_var, 1e-5)
    assert not y[:, 0].any()


def test_a_norm_used_twice_adds_its_gradients():
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(64).to(DEVICE)
    exact = copy.deepcopy(layer).double()
    buffers = FlatBuffers(torch.optim.SGD(layer.parameters(), lr=0.1), {}, None)
    x = images(4, 64, 4, 4)
    factor = torch.arange(4, device=DEVICE)
    with buffers.step(), buffers.collect_gradients():
        (norm_relu(layer, norm_relu(layer, x)) * factor).sum().backward()
    (exact(exact(x.detach().double()).relu()).relu() * factor).sum().backward()
    assert close(layer.weight.grad, exact.weight.grad, 1e-5)
    assert close(layer.bias.grad, exact.bias.grad, 1e-5)


def test_norms_may_share_only_their_weight():
    torch.manual_seed(0)
    first, second = nn.BatchNorm2d(64).to(DEVICE), nn.BatchNorm2d(64).to(DEVICE)
    second.weight = first.weight
    exact = copy.deepcopy(nn.ModuleList([first, second])).double()
    assert exact[0].weight is exact[1].weight
    model = nn.ModuleList([first, second])
    buffers = FlatBuffers(torch.optim.SGD(model.parameters(), lr=0.1), {}, None)
    factor = torch.arange(4, device=DEVICE)
    for _ in range(2):  # the first step has no effect on the second
        x = images(4, 64, 4, 4)
        with buffers.step(), buffers.collect_gradients():
            (norm_relu(second, norm_relu(first, x)) * factor).sum().backward()
        exact.zero_grad()
        (exact[1](exact[0](x.detach().double()).relu()).relu() * factor).sum().backward()
        for mine, other in zip(model.parameters(), exact.parameters(), strict=True):
            assert close(mine.grad, other.grad, 1e-5)


def test_the_gradients_of_two_uses_are_added():
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(64).to(DEVICE)
    exact = copy.deepcopy(layer).double()
    buffers = FlatBuffers(torch.optim.SGD(layer.parameters(), lr=0.1), {}, None)
    x = images(4, 64, 4, 4)
    x64 = x.detach().double().requires_grad_()
    factor = torch.arange(4, device=DEVICE)
    with buffers.step(), buffers.collect_gradients():
        y = norm_relu(layer, x)
        assert second_use(x) is x
        assert second_use(y) is not y
        assert second_use(y).data_ptr() == y.data_ptr()
        ((y * factor).sum() + second_use(y).square().sum()).backward()
    y64 = exact(x64).relu()
    ((y64 * factor).sum() + y64.square().sum()).backward()
    assert close(x.grad, x64.grad, 1e-5)
    assert close(layer.weight.grad, exact.weight.grad, 1e-5)
    assert close(layer.bias.grad, exact.bias.grad, 1e-5)
    assert second_use(y) is y  # the table is cleared when the step ends
    assert not vars(y)


def test_only_the_backward_pass_of_the_loss_collects_gradients():
    layer = nn.BatchNorm2d(64).to(DEVICE)
    exact = copy.deepcopy(layer).double()
    buffers = FlatBuffers(torch.optim.SGD(layer.parameters(), lr=0.1), {}, None)
    x = images(4, 64, 4, 4)
    factor = torch.arange(4, device=DEVICE)
    with buffers.step():
        loss = (norm_relu(layer, x) * factor).sum()
        of_x, of_weight = torch.autograd.grad(loss, [x, layer.weight])
    x64 = x.detach().double().requires_grad_()
    expected = torch.autograd.grad((exact(x64).relu() * factor).sum(), [x64, exact.weight])
    assert close(of_x, expected[0], 1e-5)
    assert close(of_weight, expected[1], 1e-5)
    assert not layer.weight.grad.any()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter is numpy
def test_relu_keeps_nan():
    layer = nn.BatchNorm2d(64).to(DEVICE)
    buffers = FlatBuffers(torch.optim.SGD(layer.parameters(), lr=0.1), {}, None)
    x = images(4, 64, 4, 4).detach()
    x[0, 3, 0, 0] = torch.inf
    with buffers.step():
        y = norm_relu(layer, x)
    assert y[:, 3].isnan().all()
    assert y[:, 4].isfinite().all()


def test_the_update_skips_parameters_without_gradient():
    layer = nn.Linear(70, 50).to(DEVICE)
    before = layer.weight.detach().clone()
    buffers = FlatBuffers(torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1), {}, None)
    with layers_on_buffers(layer), buffers.step() as gradients:
        buffers.add_grad(layer.bias, torch.ones(50, device=DEVICE))
    assert gradients.missing == [layer.weight]
    write_addresses(buffers, gradients)
    buffers.lr.fill_(0.1)
    launch_update(buffers, gradients, 0, 3)
    assert torch.equal(layer.weight, before)
    assert buffers.optimizer.state[layer.bias]["momentum_buffer"].all()


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("latest", ["weight", "bias"])
def test_the_update_computes_the_same_as_torch(nesterov, separate, latest):
    """Also if it is launched in parts, around the gradient that is computed last."""
    torch.manual_seed(0)
    layer = nn.Linear(70, 50)
    options = {"lr": 0.1, "momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.01}
    mask = torch.rand(50, 70) < 0.3
    with torch.no_grad():
        layer.weight.masked_fill_(~mask, 0.0)
    expected = copy.deepcopy(layer)
    optimizer = torch.optim.SGD(expected.parameters(), **options)
    masks = {layer.to(DEVICE).weight: mask.to(DEVICE)}
    buffers = FlatBuffers(torch.optim.SGD(layer.parameters(), **options), masks, torch.bfloat16)
    for lr in (0.05, 0.03):
        with layers_on_buffers(layer), buffers.step() as gradients, buffers.collect_gradients():
            for ours, theirs in zip(layer.parameters(), expected.parameters(), strict=True):
                theirs.grad = torch.randn_like(theirs).bfloat16().float()
                if separate:
                    ours.grad.fill_(torch.nan)  # not read
                    buffers.add_grad(ours, theirs.grad.to(DEVICE).bfloat16())
                else:
                    ours.grad.copy_(theirs.grad)
                    buffers.register_grad(ours)
        write_addresses(buffers, gradients)
        assert (gradients.addresses > 0).tolist() == [separate] * 3
        for value in (-torch.inf, lr):
            buffers.lr.fill_(value)
            buffers.latest = [getattr(layer, latest)]
            sgd_update_overlapped(buffers, gradients)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
        with torch.no_grad():
            expected.weight.masked_fill_(~mask, 0.0)
            optimizer.state[expected.weight]["momentum_buffer"].masked_fill_(~mask, 0.0)
    for ours, theirs in zip(layer.parameters(), expected.parameters(), strict=True):
        assert torch.allclose(ours.cpu(), theirs, rtol=1e-6, atol=1e-7)
        low_precision = buffers.low_precision_of(ours).float().cpu()
        assert torch.allclose(low_precision, theirs, rtol=2**-7, atol=0)  # the interpreter rounds down
    assert not layer.weight[~mask.to(DEVICE)].any()
