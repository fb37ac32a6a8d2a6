"""Which weights of a model can be sparse."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_LAYERS = (nn.Linear, nn.modules.conv._ConvNd)
_ATTENTION = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


def sparse_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights that can be sparse: those of Linear, convolution, recurrent and attention layers.

    `Conv1D` of transformers and stacks of experts, three-dimensional parameters of a module with `num_experts`, are
    Linear layers, too. Biases, norms, embeddings (also if a Linear layer shares their weight) and parameters that a
    module applies in its own code stay dense.

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
    taken = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for prefix, module in model.named_modules():
        for name in _matrices(module):
            weight = getattr(module, name)
            if weight is not None and id(weight) not in taken:
                full = f"{prefix}.{name}" if prefix else name
                _check_whole(full, weight)
                weights[full] = weight
                taken.add(id(weight))
    return weights


def _matrices(module: nn.Module) -> list[str]:
    """The names of the weights of a layer that can be sparse."""
    if isinstance(module, _LAYERS) or _is_transposed(module):
        return ["weight"]
    if isinstance(module, nn.MultiheadAttention):
        return [*_ATTENTION]
    own = module.named_parameters(recurse=False)
    if isinstance(module, nn.RNNBase):
        return [name for name, weight in own if weight.dim() == 2]
    experts = getattr(module, "num_experts", None)
    return [name for name, weight in own if weight.dim() == 3 and len(weight) == experts]


def expert_stacks(model: nn.Module) -> set[str]:
    """The names of the weights that hold several experts, one after another."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if not isinstance(module, _LAYERS)
        for name in _matrices(module)
        if (weight := getattr(module, name)) is not None and weight.dim() == 3
    }


def check_layout(model: nn.Module, names: Iterable[str]) -> None:
    """Raise a ValueError if a weight is not (outputs, inputs, ...), as a pattern needs it."""
    for name in names:
        layer = model.get_submodule(name.rpartition(".")[0])
        if not isinstance(layer, (*_LAYERS, nn.MultiheadAttention, nn.RNNBase)):
            raise ValueError(
                f"a pattern needs weights of shape (outputs, inputs, ...), but '{name}' of {type(layer).__name__} has "
                "another order; leave pattern out, or name the weight in `dense`"
            )


def _is_transposed(module: nn.Module) -> bool:
    """Whether a layer is transformers' `Conv1D`, whose weight is (inputs, outputs)."""
    transformers = sys.modules.get("transformers.pytorch_utils")
    return transformers is not None and isinstance(module, transformers.Conv1D)


def free_weights(
    weights: Mapping[str, nn.Parameter], dense: Collection[str], optimizer: Optimizer
) -> dict[str, nn.Parameter]:
    """The weights that a topology may make sparse: those that are not in `dense`, which the optimizer must update.

    Raises a ValueError if a name in `dense` is not that of a weight, or if the optimizer does not update one of the
    others.
    """
    if unknown := set(dense) - weights.keys():
        raise ValueError(f"no weight is called {sorted(unknown)}; the weights are {sorted(weights)}")
    if isinstance(optimizer, torch.optim.Rprop):
        raise ValueError("a weight that grows would keep Rprop's smallest step size; use another optimizer")
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
