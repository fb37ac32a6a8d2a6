"""The SGD update of all weights in flat buffers: one kernel on a GPU, a few torch operations on a CPU."""

from __future__ import annotations

import torch

from moon.fast.buffers import FlatBuffers
from moon.fast.gradients import StepGradients
from moon.fast.layout import BLOCK


@torch.no_grad()
def sgd_update(buffers: FlatBuffers, gradients: StepGradients) -> None:
    """One step of SGD with the learning rate `buffers.lr`; outside the masks, weight and momentum buffer stay zero.

    On a GPU the addresses of the gradients must have been written.
    """
    if buffers.weight.is_cuda:
        launch_update(buffers, gradients, 0, len(gradients.addresses))
        return
    state = buffers.optimizer.state
    skipped = [tensor for p in gradients.missing for tensor in (p.data, state[p]["momentum_buffer"])]
    before = [tensor.clone() for tensor in skipped]
    buffers.gather(gradients)
    momentum, decay, nesterov = buffers.hyperparameters
    grad = buffers.grad.add(buffers.weight, alpha=decay)
    buffers.momentum_buffer.mul_(momentum).add_(grad)
    grad = grad.add_(buffers.momentum_buffer, alpha=momentum) if nesterov else buffers.momentum_buffer
    buffers.weight.sub_(grad * buffers.lr).masked_fill_(~buffers.mask, 0.0)
    buffers.momentum_buffer.masked_fill_(~buffers.mask, 0.0)
    for tensor, old in zip(skipped, before, strict=True):
        tensor.copy_(old)
    buffers.refresh_low_precision()


def sgd_update_overlapped(buffers: FlatBuffers, gradients: StepGradients) -> None:
    """The update inside a step on a GPU; the side stream computes the last gradients while the others are applied."""
    latest = [buffers.blocks(parameter) for parameter in buffers.latest]
    first, end = min((b.start for b in latest), default=0), max((b.stop for b in latest), default=0)
    if buffers.side_stream.before_latest is not None:
        torch.cuda.current_stream().wait_event(buffers.side_stream.before_latest)
    launch_update(buffers, gradients, end, len(gradients.addresses))
    launch_update(buffers, gradients, 0, first)
    buffers.side_stream.wait()
    launch_update(buffers, gradients, first, end)


def write_addresses(buffers: FlatBuffers, gradients: StepGradients) -> None:
    """Write the memory addresses of the gradients, which the update kernel reads."""
    addresses = torch.zeros(gradients.addresses.shape, dtype=torch.int64)
    for parameter, grad in gradients.separate.items():
        blocks = buffers.blocks(parameter)
        addresses[blocks] = grad.data_ptr() + grad.element_size() * BLOCK * torch.arange(blocks.stop - blocks.start)
    for parameter in gradients.missing:
        addresses[buffers.blocks(parameter)] = -1
    gradients.addresses.copy_(addresses)


def launch_update(buffers: FlatBuffers, gradients: StepGradients, first: int, end: int) -> None:
    """Launch the update kernel for the blocks [first, end)."""
    from moon.fast import kernels

    momentum, decay, nesterov = buffers.hyperparameters
    low_precision = buffers.low_precision
    if first < end:
        kernels.launch(
            kernels.sgd, (end - first,),
            buffers.weight, buffers.grad, gradients.addresses, buffers.momentum_buffer, buffers.mask,
            buffers.weight if low_precision is None else low_precision, buffers.lr, first, momentum, decay,
            NESTEROV=nesterov, LOW_PRECISION=low_precision is not None, BLOCK=BLOCK, num_warps=8,
        )  # fmt: skip
