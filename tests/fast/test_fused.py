"""Functions that kernels compute in training steps on a GPU, against the functions themselves."""

from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from moon.fast import fused, losses
from moon.objectives import auto_weight, moon

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


@pytest.mark.parametrize(
    ("buffers", "expected"), [(None, "itself"), ("cpu", "itself"), ("cuda", "kernel")], ids=["no step", "CPU", "GPU"]
)
def test_the_kernel_replaces_a_function_in_steps_on_a_gpu(buffers, expected, monkeypatch):
    active = buffers and SimpleNamespace(weight=SimpleNamespace(is_cuda=buffers == "cuda"))
    monkeypatch.setitem(fused.__globals__, "active_buffers", lambda: active)
    function = fused(by=lambda x: ("kernel", x))(lambda x: ("itself", x))
    assert function(3) == (expected, 3)


def logits_and_labels(count, known, dtype=torch.float32):
    logits = (3 * torch.randn(count, known + 1, device=DEVICE)).to(dtype)
    logits[0, 1:3] = logits[0, 0] = 7.0  # a tie, for the prediction
    return logits.requires_grad_(), torch.arange(count, device=DEVICE) % known


SHAPES = [(128, 10), (80, 10), (3, 2), (5, 700), (300, 100)]


@needs_triton
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("w", [0.0, 0.7, torch.tensor(3.0)])
def test_the_loss_and_its_gradient_are_those_of_the_equation(shape, w):
    logits, y = logits_and_labels(*shape)
    w = w.to(DEVICE) if isinstance(w, torch.Tensor) else w
    exact = logits.detach().double().requires_grad_()
    expected, found = moon.moon_loss.__wrapped__(exact, y, w), losses.unknown_aware_loss(logits, y, w)
    (2 * expected).backward()
    (2 * found).backward()
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected.item(), rel=2e-6)
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=1e-4, atol=2e-7)


@needs_triton
def test_bfloat16_logits_get_bfloat16_gradients():
    logits, y = logits_and_labels(128, 10, torch.bfloat16)
    same = logits.detach().clone().requires_grad_()
    expected, found = moon.moon_loss.__wrapped__(same, y, 1.5), losses.unknown_aware_loss(logits, y, 1.5)
    expected.backward()
    found.backward()
    assert found.item() == pytest.approx(expected.item(), rel=2e-6)
    assert logits.grad.dtype == torch.bfloat16
    torch.testing.assert_close(logits.grad, same.grad, rtol=1e-2, atol=1e-6)


@needs_triton
@pytest.mark.parametrize("shape", SHAPES)
def test_the_observation_is_that_of_the_equation(shape):
    logits, y = logits_and_labels(*shape)
    expected = moon._observation.__wrapped__(logits.detach().double(), y)
    found = losses.observe_batch(logits.detach(), y)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6)


@needs_triton
@pytest.mark.parametrize("epoch", [0, 4, 5, 99])
@pytest.mark.parametrize("beta", [float("nan"), 2.0])
@pytest.mark.parametrize("count", [3, 128, 3000])
def test_the_moving_average_is_that_of_the_equation(epoch, beta, count):
    p_unknown, loss = torch.rand(2, count, device=DEVICE).unbind()
    values = torch.tensor(beta, device=DEVICE), p_unknown, loss, 0.05, torch.tensor(epoch, device=DEVICE), 5
    expected, found = auto_weight._updated.__wrapped__(*values), losses.move_average(*values)
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=0, equal_nan=True)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_moving_average_of_a_column_of_a_matrix(dtype):
    p_unknown, loss = torch.rand(128, 11, device=DEVICE).softmax(1).to(dtype)[:, -1], torch.rand(128, device=DEVICE)
    values = torch.tensor(2.0, device=DEVICE), p_unknown, loss, 0.05, torch.tensor(0, device=DEVICE), 5
    expected, found = auto_weight._updated.__wrapped__(*values), losses.move_average(*values)
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=0)


@needs_triton
@pytest.mark.parametrize("label", [-1, 11, -100])
def test_a_label_without_an_output_makes_the_loss_nan(label):
    logits, y = logits_and_labels(5, 10)
    y[3] = label
    assert losses.unknown_aware_loss(logits, y, 1.0).isnan()
    assert losses.observe_batch(logits.detach(), y)[1].isnan().tolist() == [False, False, False, True, False]


@needs_triton
@pytest.mark.parametrize("w", [torch.ones(5), torch.ones((), requires_grad=True)], ids=["vector", "needs a gradient"])
def test_a_weight_that_the_kernel_cannot_use_is_an_error(w):
    with pytest.raises(ValueError, match="w must be a scalar that needs no gradient"):
        losses.unknown_aware_loss(*logits_and_labels(5, 10), w.to(DEVICE))


@needs_triton
@pytest.mark.parametrize("epoch", [0, 4, 5, 52, 99])
@pytest.mark.parametrize("beta", [float("nan"), 2.0])
@pytest.mark.parametrize(("steps", "rises"), [(94, True), (0, True), (94, False)])
@pytest.mark.parametrize("as_tensor", [True, False])
def test_the_weight_is_that_of_the_equation(epoch, beta, steps, rises, as_tensor):
    number = torch.tensor(epoch, device=DEVICE) if as_tensor else epoch
    values = torch.tensor(beta, device=DEVICE), number, 5, steps, 64.0, 1.0, rises
    expected, found = auto_weight._weight.__wrapped__(*values), losses.schedule_weight(*values)
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=0)
