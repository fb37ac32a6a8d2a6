"""Which weights of a model can be sparse."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import cast

from torch import Tensor, nn
from torch.optim import Optimizer

_LAYERS = (nn.Linear, nn.modules.conv._ConvNd)


def sparse_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights that can be sparse: those of Linear, convolution and attention layers.

    Biases, norms and embeddings stay dense.

    Args:
        model: Any model.

    Returns:
        The weights by their names in the model. A weight that several layers share is listed once.

    Raises:
        ValueError: If a weight is divided among processes (FSDP, DTensor).

    Example:
        >>> import torch
        >>> from moon.sparse import sparse_weights
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(4, 2))
        >>> list(sparse_weights(model))
        ['0.weight', '2.weight']
    """
    weights: dict[str, nn.Parameter] = {}
    for prefix, module in model.named_modules():
        if isinstance(module, _LAYERS):
            found: dict[str, nn.Parameter | None] = {"weight": cast(nn.Parameter, module.weight)}
        elif isinstance(module, nn.MultiheadAttention):
            names = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
            found = {name: getattr(module, name) for name in names}
        else:
            continue
        for name, weight in found.items():
            if weight is not None and all(weight is not other for other in weights.values()):
                full = f"{prefix}.{name}" if prefix else name
                _check_whole(full, weight)
                weights[full] = weight
    return weights


def free_weights(
    weights: Mapping[str, nn.Parameter], dense: Collection[str], optimizer: Optimizer
) -> dict[str, nn.Parameter]:
    """The weights that a topology may make sparse.

    Args:
        weights: The weights that can be sparse, by name.
        dense: The names of those that stay dense.
        optimizer: The optimizer, which must update the others.

    Returns:
        The others by name.

    Raises:
        ValueError: If a name is not that of a weight, or if the optimizer does not update a weight.
    """
    if unknown := set(dense) - weights.keys():
        raise ValueError(f"no weight is called {sorted(unknown)}; the weights are {sorted(weights)}")
    free = {name: weight for name, weight in weights.items() if name not in dense}
    updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if missing := [name for name, weight in free.items() if id(weight) not in updated]:
        raise ValueError(
            f"the optimizer does not update {missing}; build it from model.parameters() after the last change of the "
            "model (open_head, .to()), or name frozen weights in `dense`"
        )
    return free


def _check_whole(name: str, weight: Tensor) -> None:
    """Raise a ValueError if this process has only a part of a weight."""
    tensors = sys.modules.get("torch.distributed.tensor")  # a DTensor exists only if its module was imported
    is_sharded = tensors is not None and isinstance(weight, tensors.DTensor)
    if is_sharded or weight.dim() < 2:  # older FSDP and ZeRO flatten weights
        raise ValueError(
            f"'{name}' is divided among processes (FSDP, tensor parallelism or ZeRO), but masks need whole weights in "
            "every process: train with DDP, or dense with the loss alone"
        )
