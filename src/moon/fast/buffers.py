"""Weights, gradients, momentum and masks in one buffer each, so that one pass over memory is a whole update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

_BLOCK = 2048  # elements that a program of the update takes: each parameter begins with a block of its own

_active: Flat | None = None


def active() -> Flat | None:
    """The buffers that the present step runs on; None outside of such a step."""
    return _active


@contextmanager
def plain() -> Iterator[None]:
    """What happens inside does not run on the buffers: for gradients of anything but the weights."""
    global _active
    before, _active = _active, None
    try:
        yield
    finally:
        _active = before


@dataclass
class Left:
    """What a step has left behind for the update.

    The gradient of a convolution or linear layer stays where it is: copying it would be a pass over memory for nothing.
    """

    slopes: dict[nn.Parameter, Tensor]  # that are not in the buffer
    idle: list[nn.Parameter]  # had no gradient, so an optimizer leaves them as they are
    places: Tensor  # of each block's gradient in memory; 0: in the buffer, -1: idle


class Flat:
    """The weights of an SGD optimizer, laid into one buffer; the parameters, their `.grad` and their momentum are
    views of it, so that everybody else finds them as ever; but all gradients are there only after `gather`.

    `masks` are those of the weights that have one; of trained weights they, too, become views, which the caller puts in
    place of his own.
    `low` is a narrower type that convolutions read the weights in, kept up to date by the update itself.
    """

    def __init__(self, optimizer: Optimizer, masks: Mapping[nn.Parameter, Tensor], low: torch.dtype | None) -> None:
        if (why := self.obstacle(optimizer)) is not None:
            raise ValueError(why)
        self.optimizer = optimizer
        (self.group,) = optimizer.param_groups
        self.parameters: list[nn.Parameter] = [p for p in self.group["params"] if p.requires_grad]
        starts, size = {}, 0
        for parameter in self.parameters:
            starts[parameter] = size
            size += -(-parameter.numel() // _BLOCK) * _BLOCK
        self._starts = starts
        like = self.parameters[0]
        self.weight, self.slope, self.velocity = (
            torch.zeros(size, device=like.device, dtype=like.dtype) for _ in range(3)
        )
        self.exists = torch.zeros(size, device=like.device, dtype=torch.bool)
        self.low = None if low is None else torch.zeros(size, device=like.device, dtype=low)
        for parameter in self.parameters:
            self._view(self.exists, parameter).fill_(True)
        self.masks = {p: self._view(self.exists, p).copy_(mask) for p, mask in masks.items() if p in starts}
        self.counter = torch.zeros(1024, device=like.device, dtype=torch.int32)  # of programs that have ended
        self._written: set[nn.Parameter] = set()  # have a gradient in this step
        self._direct: set[nn.Parameter] = set()  # have had one past autograd
        self._left = Left({}, [], torch.empty(0))
        self._last: list[nn.Parameter] = []  # whose gradients are computed beside, the last ones
        self._before_last: torch.Event | None = None
        self.rate = torch.zeros((), device=like.device, dtype=like.dtype)  # -inf: no update
        self._hooks = [p.register_post_accumulate_grad_hook(self._written.add) for p in self.parameters]
        self._hooks += [p.register_hook(partial(self._before_sum, p)) for p in self.parameters]
        self.collects = False
        self._held: list[Tensor] = []
        self._beside = torch.cuda.Stream(like.device) if like.is_cuda else None
        self._low_of: dict[nn.Parameter, Tensor] = {}
        self._slope_of: dict[nn.Parameter, Tensor] = {}
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.data = self._view(self.weight, parameter).copy_(parameter)
                self._slope_of[parameter] = parameter.grad = self._view(self.slope, parameter)
                state = optimizer.state[parameter]
                velocity = self._view(self.velocity, parameter)
                if (old := state.get("momentum_buffer")) is not None:
                    velocity.copy_(old)
                state["momentum_buffer"] = velocity
                if self.low is not None:
                    self._low_of[parameter] = self._view(self.low, parameter)
            self.resume()

    @staticmethod
    def obstacle(optimizer: Optimizer) -> str | None:
        """Why this optimizer's weights cannot be laid out flat, or None."""
        if type(optimizer) is not SGD or len(optimizer.param_groups) != 1:
            return "only SGD with one group of parameters is fused"
        group = optimizer.param_groups[0]
        parameters = [p for p in group["params"] if p.requires_grad]
        if group["dampening"] or group["maximize"] or isinstance(group["lr"], Tensor):
            return "SGD with dampening, maximize or a learning rate in a tensor is not fused"
        if len({(p.device, p.dtype) for p in parameters}) != 1:
            return "the weights are not of one type on one device"
        if any(1 + sum((n - 1) * s for n, s in zip(p.shape, p.stride(), strict=True)) != p.numel() for p in parameters):
            return "a weight has gaps in memory"
        if parameters[0].is_cuda and parameters[0].dtype != torch.float32:
            return f"the weights are {parameters[0].dtype}, not float32"
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            return "the optimizer has hooks"
        if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters):
            return "a weight has hooks"
        return None

    @property
    def fixed(self) -> tuple[float, float, bool]:
        """Momentum, weight decay and whether momentum is Nesterov's: a captured update has them inside."""
        return self.group["momentum"], self.group["weight_decay"], self.group["nesterov"]

    def _view(self, buffer: Tensor, parameter: nn.Parameter) -> Tensor:
        """The parameter's part of the buffer, laid out as the parameter is."""
        return buffer.as_strided(parameter.shape, parameter.stride(), self._starts[parameter])

    @torch.no_grad()
    def resume(self) -> None:
        """Go on after others had weights, gradients and masks in their hands."""
        for parameter, slope in self._slope_of.items():
            parameter.grad = slope
        for buffer in (self.weight, self.velocity):
            buffer.masked_fill_(~self.exists, 0.0)  # the update does not look where nothing exists
        self.refresh()

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """The backward pass inside is the loss's: what it finds of weights goes into the buffer."""
        self.join()  # gradients are zero now
        self.collects = True
        try:
            yield
        finally:
            self.collects = False

    def _before_sum(self, parameter: nn.Parameter, slope: Tensor | None) -> None:
        """A parameter that has gradients from autograd, too: what is there must be whole, or zero, to be added to."""
        if slope is None:
            return
        self.join()
        self._copy(parameter, self._left.slopes.pop(parameter, None))
        if parameter in self._direct and parameter not in self._written:
            self._slope_of[parameter].zero_()

    def refresh(self) -> None:
        """Take up weights that somebody else changed."""
        if self.low is not None:
            self.low.copy_(self.weight)

    def release(self) -> None:
        """Give the parameters memory of their own again."""
        for hook in self._hooks:
            hook.remove()
        for parameter in self.parameters:
            parameter.data = parameter.data.clone(memory_format=torch.preserve_format)
            parameter.grad = None
            state = self.optimizer.state[parameter]
            state["momentum_buffer"] = state["momentum_buffer"].clone(memory_format=torch.preserve_format)

    @contextmanager
    def step(self, places: Tensor | None = None) -> Iterator[Left]:
        """What happens inside runs on these buffers. What is given is complete in the end; `places` is memory for it
        (`room`), where that must not be a graph's."""
        global _active
        self._written.clear()
        self._last.clear()
        self._left = left = Left({}, [], self.room() if places is None else places)
        with self.beside():
            for parameter in self.parameters:
                if parameter not in self._direct:  # others are written, not added to
                    self._slope_of[parameter].zero_()
        _active = self
        try:
            yield left
        finally:
            _active = None
            left.idle = [parameter for parameter in self.parameters if parameter not in self._written]
            for parameter in left.idle:
                self._slope_of[parameter].zero_()
            self.join()
            self._held.clear()

    @contextmanager
    def beside(self, *uses: Tensor) -> Iterator[None]:
        """Work that may go on beside what follows; what it uses is kept until the step has ended."""
        if self._beside is None:
            yield
            return
        self._held.extend(uses)
        self._beside.wait_stream(torch.cuda.current_stream())
        self._last, self._before_last = [], self._beside.record_event()
        with torch.cuda.stream(self._beside):
            yield

    def join(self) -> None:
        """Wait, on the device, for what goes on beside."""
        if self._beside is not None:
            torch.cuda.current_stream().wait_stream(self._beside)

    def narrow(self, parameter: Tensor) -> Tensor:
        """The weight as a convolution reads it."""
        return self._low_of.get(parameter, parameter)  # type: ignore[call-overload]

    def holds(self, tensor: object) -> bool:
        return isinstance(tensor, nn.Parameter) and tensor in self._starts

    def is_first(self, parameter: nn.Parameter) -> bool:
        """Whether this is the parameter's first gradient in the step; those that follow are added."""
        first = parameter not in self._written
        self._written.add(parameter)
        self._direct.add(parameter)
        return first

    def slope_of(self, parameter: nn.Parameter) -> Tensor:
        """Where the parameter's gradient is summed up, whatever others have put in the place of `.grad`."""
        return self._slope_of[parameter]

    def put(self, parameter: nn.Parameter, slope: Tensor) -> None:
        """The parameter's gradient, or a part of it."""
        place, elsewhere = self._slope_of[parameter], self._left.slopes
        self._last.append(parameter)
        if self.is_first(parameter):
            like = self.weight if self.low is None else self.low
            if slope.dtype == like.dtype and _layout(slope) == _layout(parameter):
                elsewhere[parameter] = slope
            else:
                place.copy_(slope)
        else:
            self._copy(parameter, elsewhere.pop(parameter, None))
            place.add_(slope)

    def room(self) -> Tensor:
        """Memory for the places of a step's gradients."""
        return torch.empty(self.weight.numel() // _BLOCK, dtype=torch.int64, device=self.weight.device)

    def place(self, left: Left) -> None:
        """Write down where the update finds the gradients."""
        places = torch.zeros(left.places.shape, dtype=torch.int64)
        for parameter, slope in left.slopes.items():
            mine = self._blocks(parameter)
            places[mine] = slope.data_ptr() + slope.element_size() * _BLOCK * torch.arange(mine.stop - mine.start)
        for parameter in left.idle:
            places[self._blocks(parameter)] = -1
        left.places.copy_(places)

    def _blocks(self, parameter: nn.Parameter) -> slice:
        first = self._starts[parameter] // _BLOCK
        return slice(first, first - (-parameter.numel() // _BLOCK))

    def gather(self, left: Left) -> Left:
        """Have all gradients in the buffer, where others find and may change them; what is then left."""
        for parameter, slope in left.slopes.items():
            self._copy(parameter, slope)
        return Left({}, left.idle, left.places.clamp(max=0))

    def _copy(self, parameter: nn.Parameter, slope: Tensor | None) -> None:
        if slope is not None:
            self._slope_of[parameter].copy_(slope)

    @torch.no_grad()
    def update(self, left: Left) -> None:
        """SGD's step at this `rate`, of all weights at once; outside the masks weight and momentum stay zero."""
        if self.weight.is_cuda:
            self._launch(left, 0, len(left.places))
            return
        idle = [tensor for p in left.idle for tensor in (p.data, self.optimizer.state[p]["momentum_buffer"])]
        before = [tensor.clone() for tensor in idle]
        self.gather(left)
        momentum, decay, nesterov = self.fixed
        slope = self.slope.add(self.weight, alpha=decay)
        self.velocity.mul_(momentum).add_(slope)
        slope = slope.add_(self.velocity, alpha=momentum) if nesterov else self.velocity
        self.weight.sub_(slope * self.rate).masked_fill_(~self.exists, 0.0)
        self.velocity.masked_fill_(~self.exists, 0.0)
        for tensor, old in zip(idle, before, strict=True):
            tensor.copy_(old)
        self.refresh()

    def update_beside(self, left: Left) -> None:
        """The update, on a GPU in a step: while the last gradients are still computed, the others are used."""
        last = [self._blocks(parameter) for parameter in self._last]
        first, end = min((b.start for b in last), default=0), max((b.stop for b in last), default=0)
        if self._before_last is not None:
            torch.cuda.current_stream().wait_event(self._before_last)
        self._launch(left, end, len(left.places))
        self._launch(left, 0, first)
        self.join()
        self._launch(left, first, end)

    def _launch(self, left: Left, first: int, end: int) -> None:
        from moon.fast import kernels

        momentum, decay, nesterov = self.fixed
        if first < end:
            kernels.launch(
                kernels.sgd, (end - first,),
                self.weight, self.slope, left.places, self.velocity, self.exists,
                self.weight if self.low is None else self.low, self.rate, first, momentum, decay,
                NESTEROV=nesterov, LOW=self.low is not None, BLOCK=_BLOCK, num_warps=8,
            )  # fmt: skip

    def takes(self, *parameters: Tensor | None) -> bool:
        """Whether a layer with these parameters runs on the buffers as it stands."""
        narrow = self.low is None or torch.is_autocast_enabled(self.weight.device.type)
        return narrow and all(p is None or self.holds(p) for p in parameters)


def _layout(tensor: Tensor) -> list[tuple[int, int]]:
    return [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
