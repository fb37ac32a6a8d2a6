"""Chains of small operations as few kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

from moon.fast.buffers import active

F = TypeVar("F", bound=Callable[..., Any])


def fused(function: F) -> F:
    """A pure function of tensors that is compiled where a step runs on flat buffers of a GPU; elsewhere as it is.

    Where it cannot be compiled (no C compiler), it stays as it is, too, with a warning.
    """
    compiled: list[Callable[..., Any]] = []

    @wraps(function)
    def act(*values: Any, **named: Any) -> Any:
        flat = active()
        if flat is None or not flat.weight.is_cuda:
            return function(*values, **named)
        from torch._dynamo import config
        from torch._dynamo.exc import BackendCompilerFailed  # not before: they take seconds

        if not compiled:
            # A kernel for each shape and setting, however many: what a run computes must not depend on those before it.
            config.recompile_limit = config.accumulated_recompile_limit = 10_000
            compiled.append(torch.compile(function, dynamic=False))
        try:
            return compiled[0](*values, **named)
        except BackendCompilerFailed as error:
            warnings.warn(f"{function.__name__} is not compiled: {str(error).splitlines()[0]}", stacklevel=2)
            compiled[0] = function
            return function(*values, **named)

    return act  # type: ignore[return-value]
