"""Flat buffers on a CPU; the kernels that use them are in test_kernels.py."""

from threading import Thread

import pytest
import torch
from torch import nn

from moon.fast import FlatBuffers, active_buffers, layers_on_buffers, sgd_update, without_buffers


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


def test_parameters_gradients_and_momentum_buffers_are_views():
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2))
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = sgd(model, momentum=0.9)
    buffers = FlatBuffers(optimizer, {}, None)
    for parameter, weight in zip(model.parameters(), weights, strict=True):
        assert torch.equal(parameter, weight)
        for view, flat in (
            (parameter, buffers.weight),
            (parameter.grad, buffers.grad),
            (optimizer.state[parameter]["momentum_buffer"], buffers.momentum_buffer),
        ):
            assert view.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
    buffers.release()
    for parameter, weight in zip(model.parameters(), weights, strict=True):
        assert torch.equal(parameter, weight)
        assert parameter.untyped_storage().nbytes() == 4 * parameter.numel()


def test_an_optimizer_that_is_not_supported_is_rejected():
    layer = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="cannot use flat buffers: only SGD"):
        FlatBuffers(torch.optim.AdamW(layer.parameters()), {}, None)


def test_buffers_are_active_inside_their_step_only():
    buffers = FlatBuffers(sgd(nn.Linear(3, 2)), {}, None)
    in_thread = []
    assert active_buffers() is None
    with buffers.step():
        assert active_buffers() is buffers
        with without_buffers():
            assert active_buffers() is None
        assert active_buffers() is buffers
        thread = Thread(target=lambda: in_thread.append(active_buffers()))
        thread.start()
        thread.join()
    assert active_buffers() is None
    assert in_thread == [None]  # other threads are not affected


def test_low_precision_weights_follow_every_update():
    layer = nn.Linear(8, 4)
    buffers = FlatBuffers(sgd(layer), {}, torch.bfloat16)
    buffers.lr.fill_(0.5)
    with layers_on_buffers(layer), torch.autocast("cpu", torch.bfloat16), buffers.step() as gradients:
        loss = layer(torch.ones(2, 8)).float().sum()
        with buffers.collect_gradients():
            loss.backward()
    before = layer.weight.detach().clone()
    sgd_update(buffers, gradients)
    assert torch.equal(layer.weight, before - 1.0)  # lr 0.5, and 2 images of ones
    assert torch.equal(buffers.low_precision_of(layer.weight), layer.weight.bfloat16())
