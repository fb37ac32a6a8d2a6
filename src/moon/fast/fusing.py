"""Replace functions of many small operations by kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from moon.fast.buffers import active_buffers

P = ParamSpec("P")
R = TypeVar("R")


def fused(*, by: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator of a function that another one computes with few kernels in training steps on flat buffers on a GPU.

    The function itself stays an equation in PyTorch operations. Each of them would be a kernel of its own, which takes
    about two microseconds. (`torch.compile` would join them as well, but takes many seconds for it at the start.) `by`
    has the same arguments and results, up to rounding.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*values: P.args, **named: P.kwargs) -> R:
            buffers = active_buffers()
            return (function if buffers is None or not buffers.weight.is_cuda else by)(*values, **named)

        return call

    return decorate
