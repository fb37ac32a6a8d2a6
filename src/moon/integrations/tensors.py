"""Tensors of a model that callbacks keep, copy, or average over processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from moon.sparse.weights import sparse_weights


@contextmanager
def kept(model: nn.Module, optimizer: Optimizer) -> Iterator[None]:
    """Context that restores the weights of a model and the state of its optimizer at its end."""
    weights = list(sparse_weights(model).values())
    states = [value for weight in weights for value in optimizer.state.get(weight, {}).values()]
    tensors = [*weights, *(value for value in states if isinstance(value, Tensor))]
    copies = [tensor.detach().clone() for tensor in tensors]
    yield
    with torch.no_grad():
        for tensor, copy in zip(tensors, copies, strict=True):
            tensor.copy_(copy)


def filled(weights: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> list[str]:
    """The names of weights that are non-zero outside their masks; masks of other shapes are ignored."""
    pairs = [(name, weight, masks[name]) for name, weight in weights.items() if name in masks]
    return [
        name
        for name, weight, mask in pairs
        if weight.shape == mask.shape and bool(((weight.detach() != 0) & ~mask.to(weight.device)).any())
    ]


def norm_buffers(model: nn.Module) -> dict[str, Tensor]:
    """The BatchNorm statistics of a model by name."""
    norms = {name: m for name, m in model.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)}
    return {f"{name}.{key}": buffer for name, norm in norms.items() for key, buffer in norm.named_buffers()}


def average_over_processes(tensors: Iterable[Tensor]) -> None:
    """Replace tensors by their averages over all processes of `torch.distributed`, in place.

    Args:
        tensors: The tensors. Integers, such as counters, and tensors of a single process are left as they are.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return
    for tensor in tensors:
        if tensor.is_floating_point():
            dist.all_reduce(tensor)
            tensor.div_(dist.get_world_size())
