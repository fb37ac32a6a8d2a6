"""Inference with a sparse network on a CPU: the kernel multiplies only the non-zero weights."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor, nn

from moon.fast.batch_norm import norm as norm_only, norm_relu
from moon.fast.sparse_kernel import SparseKernel

_MAX_DENSITY = 0.3  # of all convolutions; above it, dense kernels are as fast (docs/LOG.md)

_active: ContextVar[SparseKernel | None] = ContextVar("_active", default=None)


def conv_norm_relu(conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """relu(norm(conv(x)) + residual), with the sparse kernel where it is active.

    Args:
        conv: The convolution.
        norm: The BatchNorm layer.
        x: The input, (N, C, H, W).
        residual: A tensor to add before ReLU; None for none.

    Returns:
        A tensor, or `FeatureMaps` from the sparse kernel, which torch functions see as a tensor.

    Example:
        >>> import torch
        >>> from moon.fast import conv_norm_relu
        >>> conv, norm = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)
        >>> conv_norm_relu(conv, norm, torch.randn(2, 3, 5, 5)).shape
        torch.Size([2, 8, 3, 3])
    """
    kernel = _active.get()
    if kernel is not None and kernel.supports(conv, norm, x, residual):
        return kernel.compute(conv, norm, x, residual, relu=True)  # type: ignore[return-value]
    return norm_relu(norm, conv(x), residual)


def conv_norm(conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """norm(conv(x)), with the sparse kernel where it is active.

    Args:
        conv: The convolution.
        norm: The BatchNorm layer.
        x: The input, (N, C, H, W).

    Returns:
        A tensor, or `FeatureMaps` from the sparse kernel, which torch functions see as a tensor.
    """
    kernel = _active.get()
    if kernel is not None and kernel.supports(conv, norm, x, None):
        return kernel.compute(conv, norm, x, None, relu=False)  # type: ignore[return-value]
    return norm_only(norm, conv(x))


@contextmanager
def use_sparse_kernel(model: nn.Module, half: bool = False) -> Iterator[bool]:
    """Context in which the CPU kernel for sparse networks computes the layers of a model.

    The kernel is used if the model is one of moon's residual networks (they call `conv_norm_relu`), is on a CPU, has no
    hooks and is sparse enough. Otherwise layers are computed as usual; if the reason is a missing C compiler, a warning
    is issued. Weights and BatchNorm statistics must not change inside the context.

    Args:
        model: The model, in evaluation mode.
        half: Whether to compute in float16, which is faster on CPUs that support it, but less exact.

    Yields:
        Whether the sparse kernel is active.

    Raises:
        ValueError: If `half` is set and the sparse kernel cannot be used.

    Example:
        >>> import torch
        >>> from moon import lenet
        >>> from moon.fast import use_sparse_kernel
        >>> model = lenet(10).eval()
        >>> with torch.no_grad(), use_sparse_kernel(model) as is_active:
        ...     is_active  # it is not a residual network
        False
    """
    obstacle, kernel = _obstacle(model), None
    try:
        kernel = SparseKernel(model, half) if obstacle is None else None
    except OSError as error:
        obstacle = str(error)
        if not half:
            warnings.warn(f"the network runs with dense kernels, which is slower: {obstacle}", stacklevel=3)
    if half and kernel is None:
        raise ValueError(f"the network cannot run in float16: {obstacle}")
    token = _active.set(kernel)
    try:
        yield kernel is not None
    finally:
        _active.reset(token)
        if kernel is not None:
            kernel.close()


def active_kernel() -> SparseKernel | None:
    """The kernel of the innermost `use_sparse_kernel` in this thread, or None."""
    return _active.get()


def _obstacle(model: nn.Module) -> str | None:
    """Why the sparse kernel cannot be used for a model, or would not be faster; None if it can."""
    modules = list(model.modules())
    if not any(vars(type(module)).get("supports_sparse_kernel", False) for module in modules):
        return "it is not one of moon's residual networks"
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        return "it is not on a CPU"
    if any(module._forward_hooks or module._forward_pre_hooks for module in modules):
        return "its layers have hooks"
    layers = [module for module in modules if isinstance(module, nn.Conv2d)]
    nonzero = sum(int(layer.weight.count_nonzero()) for layer in layers)
    if nonzero > _MAX_DENSITY * sum(layer.weight.numel() for layer in layers):
        return "it is not sparse"
    return None
