"""Flat buffers: the weights, gradients, momentum buffers and masks of an optimizer in one tensor each.

One kernel then updates all weights in a single pass over memory. Parameters, their `.grad` and their momentum buffers
are views of the flat tensors, so other code sees ordinary parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from moon.fast.gradients import StepGradients
from moon.fast.layout import BLOCK, FlatLayout, have_same_strides
from moon.fast.optimizer_check import optimizer_obstacle
from moon.fast.side_stream import SideStream

_active: ContextVar[FlatBuffers | None] = ContextVar("_active", default=None)


def active_buffers() -> FlatBuffers | None:
    """The buffers whose `FlatBuffers.step` is running in this thread, or None outside of one."""
    return _active.get()


@contextmanager
def without_buffers() -> Iterator[None]:
    """Context in which layers do not use the flat buffers.

    Objectives use it to compute gradients with respect to anything but the weights, such as samples.
    """
    token = _active.set(None)
    try:
        yield
    finally:
        _active.reset(token)


class FlatBuffers:
    """The parameters of an SGD optimizer, see `optimizer_obstacle`, in flat buffers.

    After construction each parameter, its `.grad` and its momentum buffer are views of `weight`, `grad` and
    `momentum_buffer`. Within a step some gradients are elsewhere, see `StepGradients`; `gather` copies them. Parameters
    that do not require gradients are not moved. The given masks of the others are copied into `mask`.

    Attributes:
        weight, grad, momentum_buffer, mask: The flat buffers.
        low_precision: A copy of the weights that layers compute with, refreshed by every update; None for no copy.
        masks: The views of `mask`, by parameter; the caller uses them from then on.
        lr: The learning rate of the update, a tensor; on a GPU, minus infinity skips the update.
        collecting: Whether the backward pass of the loss is running.
    """

    def __init__(
        self, optimizer: Optimizer, masks: Mapping[nn.Parameter, Tensor], low_precision: torch.dtype | None
    ) -> None:
        if (obstacle := optimizer_obstacle(optimizer)) is not None:
            raise ValueError(f"the optimizer cannot use flat buffers: {obstacle}")
        self.optimizer = optimizer
        (self._group,) = optimizer.param_groups
        self.parameters: list[nn.Parameter] = [p for p in self._group["params"] if p.requires_grad]
        self._layout = layout = FlatLayout(self.parameters)
        like = self.parameters[0]
        self.weight, self.grad, self.momentum_buffer = (layout.zeros(like.dtype) for _ in range(3))
        self.mask = layout.zeros(torch.bool)
        self.low_precision = None if low_precision is None else layout.zeros(low_precision)
        for parameter in self.parameters:
            layout.view(self.mask, parameter).fill_(True)
        self.masks = {p: layout.view(self.mask, p).copy_(mask) for p, mask in masks.items() if p in layout}
        self.counter = torch.zeros(1024, device=like.device, dtype=torch.int32)  # finished programs, see kernels.py
        self.lr = torch.zeros((), device=like.device, dtype=like.dtype)
        self.collecting = False
        self._with_grad: set[nn.Parameter] = set()  # in this step
        self._bypassed_autograd: set[nn.Parameter] = set()  # have had a gradient from `add_grad` or `register_grad`
        self._gradients = StepGradients({}, [], torch.empty(0))
        self.latest: list[nn.Parameter] = []  # parameters whose gradients the side stream computes last
        self._hooks = [p.register_post_accumulate_grad_hook(self._with_grad.add) for p in self.parameters]
        self._hooks += [p.register_hook(partial(self._before_accumulate, p)) for p in self.parameters]
        self.side_stream = SideStream(like.device)
        self._second_uses = WeakTensorKeyDictionary()
        self._low_precision_of: dict[nn.Parameter, Tensor] = {}
        self._grad_of: dict[nn.Parameter, Tensor] = {}
        with torch.no_grad():
            for parameter in self.parameters:
                self._move(parameter)
            self.refresh()

    def _move(self, parameter: nn.Parameter) -> None:
        """Replace the memory of a parameter and its state by views of the flat buffers."""
        parameter.data = self._layout.view(self.weight, parameter).copy_(parameter)
        self._grad_of[parameter] = parameter.grad = self._layout.view(self.grad, parameter)
        state = self.optimizer.state[parameter]
        momentum_buffer = self._layout.view(self.momentum_buffer, parameter)
        if (old := state.get("momentum_buffer")) is not None:
            momentum_buffer.copy_(old)
        state["momentum_buffer"] = momentum_buffer
        if self.low_precision is not None:
            self._low_precision_of[parameter] = self._layout.view(self.low_precision, parameter)

    @property
    def hyperparameters(self) -> tuple[float, float, bool]:
        """Momentum, weight decay and whether to use Nesterov momentum. They are constants of a captured update."""
        return self._group["momentum"], self._group["weight_decay"], self._group["nesterov"]

    def blocks(self, parameter: nn.Parameter) -> slice:
        """The blocks of the flat buffers that belong to the parameter."""
        return self._layout.blocks(parameter)

    @torch.no_grad()
    def refresh(self) -> None:
        """Prepare for the next step after other code had access to weights, gradients and masks."""
        for parameter, grad in self._grad_of.items():
            parameter.grad = grad
        for buffer in (self.weight, self.momentum_buffer):
            buffer.masked_fill_(~self.mask, 0.0)  # the update kernel skips masked blocks
        self.refresh_low_precision()

    def refresh_low_precision(self) -> None:
        """Copy the weights to the low-precision buffer."""
        if self.low_precision is not None:
            self.low_precision.copy_(self.weight)

    def release(self) -> None:
        """Give each parameter its own memory again."""
        for hook in self._hooks:
            hook.remove()
        for parameter in self.parameters:
            parameter.data = parameter.data.clone(memory_format=torch.preserve_format)
            parameter.grad = None
            state = self.optimizer.state[parameter]
            state["momentum_buffer"] = state["momentum_buffer"].clone(memory_format=torch.preserve_format)

    @contextmanager
    def step(self, addresses: Tensor | None = None) -> Iterator[StepGradients]:
        """Context of one training step: layers inside use these buffers. Its gradients are complete at its end.

        `addresses`, from `allocate_addresses`, is memory for `StepGradients.addresses`; allocated if None. A captured
        step passes its own, because other graphs reuse the memory of a graph.
        """
        self._with_grad.clear()
        self.latest.clear()
        addresses = self.allocate_addresses() if addresses is None else addresses
        self._gradients = gradients = StepGradients({}, [], addresses)
        with self.on_side_stream():
            for parameter in self.parameters:
                if parameter not in self._bypassed_autograd:  # the others are overwritten, not added to
                    self._grad_of[parameter].zero_()
        token = _active.set(self)
        try:
            yield gradients
        finally:
            _active.reset(token)
            gradients.missing = [parameter for parameter in self.parameters if parameter not in self._with_grad]
            for parameter in gradients.missing:
                self._grad_of[parameter].zero_()
            self.side_stream.clear()
            self._second_uses.clear()

    @contextmanager
    def collect_gradients(self) -> Iterator[None]:
        """Context of the backward pass of the loss: the gradients of weights inside it are those of the step."""
        self.side_stream.wait()  # for the gradients to be set to zero
        self.collecting = True
        try:
            yield
        finally:
            self.collecting = False

    def _before_accumulate(self, parameter: nn.Parameter, grad: Tensor | None) -> None:
        """Before autograd adds to the gradient of a parameter, copy a separate gradient there, or set it to zero."""
        if grad is None:
            return
        self.side_stream.wait()
        self._copy_grad(parameter, self._gradients.separate.pop(parameter, None))
        if parameter in self._bypassed_autograd and parameter not in self._with_grad:
            self._grad_of[parameter].zero_()

    @contextmanager
    def on_side_stream(self, *uses: Tensor) -> Iterator[None]:
        """Context whose work runs on the side stream; `uses` are the tensors that it reads."""
        with self.side_stream.run(*uses):
            if self.weight.is_cuda:
                self.latest.clear()
            yield

    def holds(self, tensor: object) -> bool:
        """Whether this is a parameter in the buffers."""
        return isinstance(tensor, nn.Parameter) and tensor in self._layout

    def supports(self, *parameters: Tensor | None) -> bool:
        """Whether a layer with these parameters can use the buffers now."""
        is_right_dtype = self.low_precision is None or torch.is_autocast_enabled(self.weight.device.type)
        return is_right_dtype and all(p is None or self.holds(p) for p in parameters)

    def low_precision_of(self, parameter: Tensor) -> Tensor:
        """The copy of a parameter that layers compute with, or the parameter if there is none."""
        return self._low_precision_of.get(parameter, parameter)  # type: ignore[call-overload]

    def keep_second_use(self, x: Tensor, twin: Tensor) -> None:
        """Keep a second tensor with the values of `x`, which `second_use(x)` returns until the step ends."""
        self._second_uses[x] = twin

    def second_use(self, x: Tensor) -> Tensor:
        """The tensor kept by `keep_second_use`, or x itself."""
        twin: Tensor | None = self._second_uses.get(x)
        return x if twin is None else twin

    def register_grad(self, parameter: nn.Parameter) -> bool:
        """Record that a parameter has a gradient that bypasses autograd; return whether it is the first in this step.

        The first one overwrites `grad_of(parameter)`, later ones are added to it.
        """
        is_first = parameter not in self._with_grad
        self._with_grad.add(parameter)
        self._bypassed_autograd.add(parameter)
        return is_first

    def grad_of(self, parameter: nn.Parameter) -> Tensor:
        """The part of the flat gradient buffer that belongs to the parameter, even if `.grad` was replaced."""
        return self._grad_of[parameter]

    def add_grad(self, parameter: nn.Parameter, grad: Tensor) -> None:
        """Add to the gradient of a parameter.

        The first gradient in a step is not copied if it has the dtype and strides that the update kernel reads.
        """
        flat, separate = self._grad_of[parameter], self._gradients.separate
        self.latest.append(parameter)
        if self.register_grad(parameter):
            like = self.weight if self.low_precision is None else self.low_precision
            if grad.dtype == like.dtype and have_same_strides(grad, parameter):
                separate[parameter] = grad
            else:
                flat.copy_(grad)
        else:
            self._copy_grad(parameter, separate.pop(parameter, None))
            flat.add_(grad)

    def allocate_addresses(self) -> Tensor:
        """Memory for `StepGradients.addresses`."""
        return torch.empty(self.weight.numel() // BLOCK, dtype=torch.int64, device=self.weight.device)

    def gather(self, gradients: StepGradients) -> StepGradients:
        """Copy all gradients to the flat buffer, where other code can read and change them as `.grad`.

        Returns the same gradients, none of them separate.
        """
        for parameter, grad in gradients.separate.items():
            self._copy_grad(parameter, grad)
        return StepGradients({}, gradients.missing, gradients.addresses.clamp(max=0))

    def _copy_grad(self, parameter: nn.Parameter, grad: Tensor | None) -> None:
        if grad is not None:
            self._grad_of[parameter].copy_(grad)
