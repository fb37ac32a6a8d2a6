"""The Triton kernels, on a GPU or else interpreted (tests/conftest.py), against torch in float64."""

import copy
from importlib.util import find_spec

import pytest
import torch
from torch import nn

if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from moon.fast import Flat, again, norm, norm_only, norm_relu, on_buffers

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    monkeypatch.setattr(norm, "_has_kernels", lambda x: True)


def close(found, expected, tolerance=2e-6):
    found, expected = found.detach().double(), expected.detach()
    return float((found - expected).abs().max() / expected.abs().max()) < tolerance


def images(*shape, shift=0.0):
    values = 3 * torch.randn(shape, device=DEVICE) + shift
    return values.to(memory_format=torch.channels_last).requires_grad_()


@pytest.mark.parametrize("shape", [(6, 64, 4, 4), (5, 128, 7, 3), (33, 64, 8, 8)])
@pytest.mark.parametrize("kind", ["relu", "plain", "residual"])
def test_batch_norm_is_torchs_forward_and_back(shape, kind):
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(shape[1]).to(DEVICE)
    nn.init.uniform_(layer.weight, 0.5, 2)
    nn.init.normal_(layer.bias)
    exact = copy.deepcopy(layer).double()
    flat = Flat(torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9), {}, None)
    x, residual, slope = images(*shape, shift=5.0), images(*shape), torch.randn(shape, device=DEVICE)
    x64, residual64 = (t.detach().double().requires_grad_() for t in (x, residual))
    for _ in range(2):  # counters and gradients start anew
        x.grad = residual.grad = x64.grad = residual64.grad = None
        with flat.step():
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


def test_a_mean_far_from_zero_does_not_spoil_the_variance():
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(64).to(DEVICE)
    flat = Flat(torch.optim.SGD(layer.parameters(), lr=0.1), {}, None)
    x = images(33, 64, 8, 8, shift=1000.0).detach()
    x[:, 0] = 77.0  # a constant
    x[:, 1] = 1e-3 * torch.randn(33, 8, 8, device=DEVICE)
    x[0, 1, 0, 0] = 3.0  # what comes first need not be near the mean
    with flat.step():
        y = norm_only(layer, x)
    exact = nn.BatchNorm2d(64).to(DEVICE).double()
    assert close(y, exact(x.double()), 1e-4)  # float32 has 1000.0 and its neighbours 6e-5 apart
    assert close(layer.running_var, exact.running_var, 1e-5)
    assert not y[:, 0].any()


def test_a_norm_used_twice_adds_its_gradients():
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(64).to(DEVICE)
    exact = copy.deepcopy(layer).double()
    flat = Flat(torch.optim.SGD(layer.parameters(), lr=0.1), {}, None)
    x = images(4, 64, 4, 4)
    factor = torch.arange(4, device=DEVICE)
    with flat.step(), flat.collecting():
        (norm_relu(layer, norm_relu(layer, x)) * factor).sum().backward()
    (exact(exact(x.detach().double()).relu()).relu() * factor).sum().backward()
    assert close(layer.weight.grad, exact.weight.grad, 1e-5)
    assert close(layer.bias.grad, exact.bias.grad, 1e-5)


def test_norms_may_share_a_weight_alone():
    torch.manual_seed(0)
    first, second = nn.BatchNorm2d(64).to(DEVICE), nn.BatchNorm2d(64).to(DEVICE)
    second.weight = first.weight
    exact = copy.deepcopy(nn.ModuleList([first, second])).double()
    assert exact[0].weight is exact[1].weight
    model = nn.ModuleList([first, second])
    flat = Flat(torch.optim.SGD(model.parameters(), lr=0.1), {}, None)
    factor = torch.arange(4, device=DEVICE)
    for _ in range(2):  # nothing of the first step is left
        x = images(4, 64, 4, 4)
        with flat.step(), flat.collecting():
            (norm_relu(second, norm_relu(first, x)) * factor).sum().backward()
        exact.zero_grad()
        (exact[1](exact[0](x.detach().double()).relu()).relu() * factor).sum().backward()
        for mine, other in zip(model.parameters(), exact.parameters(), strict=True):
            assert close(mine.grad, other.grad, 1e-5)


def test_two_uses_of_an_output_add_their_slopes():
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(64).to(DEVICE)
    exact = copy.deepcopy(layer).double()
    flat = Flat(torch.optim.SGD(layer.parameters(), lr=0.1), {}, None)
    x = images(4, 64, 4, 4)
    x64 = x.detach().double().requires_grad_()
    factor = torch.arange(4, device=DEVICE)
    with flat.step(), flat.collecting():
        y = norm_relu(layer, x)
        assert again(y) is not y
        assert again(y).data_ptr() == y.data_ptr()
        ((y * factor).sum() + again(y).square().sum()).backward()
    y64 = exact(x64).relu()
    ((y64 * factor).sum() + y64.square().sum()).backward()
    assert close(x.grad, x64.grad, 1e-5)
    assert close(layer.weight.grad, exact.weight.grad, 1e-5)
    assert close(layer.bias.grad, exact.bias.grad, 1e-5)
    assert again(x) is x


def test_only_the_losss_own_backward_pass_leaves_gradients_behind():
    layer = nn.BatchNorm2d(64).to(DEVICE)
    exact = copy.deepcopy(layer).double()
    flat = Flat(torch.optim.SGD(layer.parameters(), lr=0.1), {}, None)
    x = images(4, 64, 4, 4)
    factor = torch.arange(4, device=DEVICE)
    with flat.step():
        loss = (norm_relu(layer, x) * factor).sum()
        of_x, of_weight = torch.autograd.grad(loss, [x, layer.weight])
    x64 = x.detach().double().requires_grad_()
    expected = torch.autograd.grad((exact(x64).relu() * factor).sum(), [x64, exact.weight])
    assert close(of_x, expected[0], 1e-5)
    assert close(of_weight, expected[1], 1e-5)
    assert not layer.weight.grad.any()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter is numpy
def test_a_nan_is_not_cut_off():
    layer = nn.BatchNorm2d(64).to(DEVICE)
    flat = Flat(torch.optim.SGD(layer.parameters(), lr=0.1), {}, None)
    x = images(4, 64, 4, 4).detach()
    x[0, 3, 0, 0] = torch.inf
    with flat.step():
        y = norm_relu(layer, x)
    assert y[:, 3].isnan().all()
    assert y[:, 4].isfinite().all()


def test_the_update_leaves_idle_parameters_alone():
    layer = nn.Linear(70, 50).to(DEVICE)
    before = layer.weight.detach().clone()
    flat = Flat(torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1), {}, None)
    with on_buffers(layer), flat.step() as left:
        flat.put(layer.bias, torch.ones(50, device=DEVICE))
    assert left.idle == [layer.weight]
    flat.place(left)
    flat.rate.fill_(0.1)
    flat._launch(left, 0, 3)
    assert torch.equal(layer.weight, before)
    assert flat.optimizer.state[layer.bias]["momentum_buffer"].all()


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("last", ["weight", "bias"])
def test_the_update_is_the_one_of_torch(nesterov, elsewhere, last):
    """Also where it is made in parts, around the gradient that is the last to be ready."""
    torch.manual_seed(0)
    layer = nn.Linear(70, 50)
    rest = {"lr": 0.1, "momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.01}
    mask = torch.rand(50, 70) < 0.3
    with torch.no_grad():
        layer.weight.masked_fill_(~mask, 0.0)
    plain = copy.deepcopy(layer)
    optimizer = torch.optim.SGD(plain.parameters(), **rest)
    flat = Flat(torch.optim.SGD(layer.to(DEVICE).parameters(), **rest), {layer.weight: mask.to(DEVICE)}, torch.bfloat16)
    for rate in (0.05, 0.03):
        with on_buffers(layer), flat.step() as left:
            for mine, other in zip(layer.parameters(), plain.parameters(), strict=True):
                other.grad = torch.randn_like(other).bfloat16().float()
                if elsewhere:
                    mine.grad.fill_(torch.nan)  # nobody looks there
                    flat.put(mine, other.grad.to(DEVICE).bfloat16())
                else:
                    mine.grad.copy_(other.grad)
                    flat.is_first(mine)
        flat.place(left)
        assert (left.places > 0).tolist() == [elsewhere] * 3
        for speed in (-torch.inf, rate):
            flat.rate.fill_(speed)
            flat._last = [getattr(layer, last)]
            flat.update_beside(left)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        with torch.no_grad():
            plain.weight.masked_fill_(~mask, 0.0)
            optimizer.state[plain.weight]["momentum_buffer"].masked_fill_(~mask, 0.0)
    for mine, other in zip(layer.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine.cpu(), other, rtol=1e-6, atol=1e-7)
        narrow = flat.narrow(mine).float().cpu()
        assert torch.allclose(narrow, other, rtol=2**-7, atol=0)  # interpreted, it rounds down
    assert not layer.weight[~mask.to(DEVICE)].any()
