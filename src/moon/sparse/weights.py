"""Which weights of a model can be sparse."""

from __future__ import annotations

from typing import cast

from torch import nn

_LAYERS = (nn.Linear, nn.modules.conv._ConvNd)


def sparse_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights that can be sparse: those of Linear, convolution and attention layers.

    Biases, norms and embeddings stay dense.

    Args:
        model: Any model.

    Returns:
        The weights by their names in the model. A weight that several layers share is listed once.

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
                weights[f"{prefix}.{name}" if prefix else name] = weight
    return weights
