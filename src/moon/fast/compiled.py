"""Compile loss functions of many small operations into a few kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

from moon.fast.buffers import active_buffers

F = TypeVar("F", bound=Callable[..., Any])

_LIMIT = 10_000  # compiled variants of a function


def fused(function: F) -> F:
    """Compile a function in training steps on flat buffers on a GPU; elsewhere it runs uncompiled.

    If it cannot be compiled, for example without a C compiler, it runs uncompiled, with a warning.

    Args:
        function: A pure function of tensors and numbers.

    Returns:
        A function with the same signature and results.

    Example:
        >>> import torch
        >>> from moon.fast import fused
        >>> @fused
        ... def squared_error(a, b):
        ...     return (a - b).square().mean()
        >>> squared_error(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
        tensor(2.)
    """
    compiled: list[Callable[..., Any]] = []

    @wraps(function)
    def call(*values: Any, **named: Any) -> Any:
        buffers = active_buffers()
        if buffers is None or not buffers.weight.is_cuda:
            return function(*values, **named)
        from torch._dynamo import config  # imported here, because it takes seconds
        from torch._dynamo.exc import BackendCompilerFailed

        if not compiled:
            compiled.append(torch.compile(function, dynamic=False))
        try:
            # One kernel for each shape and setting, without a limit: what a run computes must not depend on the runs
            # before it in the same process.
            with config.patch(recompile_limit=_LIMIT, accumulated_recompile_limit=_LIMIT):
                return compiled[0](*values, **named)
        except BackendCompilerFailed as error:
            warnings.warn(f"{function.__name__} is not compiled: {str(error).splitlines()[0]}", stacklevel=2)
            compiled[0] = function
            return function(*values, **named)

    return call  # type: ignore[return-value]
