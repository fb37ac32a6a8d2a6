"""How much of each layer is kept: an allocation turns weight shapes and a sparsity into a density a layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

Shapes = Mapping[str, tuple[int, ...]]
Allocation = Callable[[Shapes, float], dict[str, float]]


def _check(shapes: Shapes, sparsity: float) -> None:
    if not 0 <= sparsity < 1:
        raise ValueError(f"sparsity must be in [0, 1), the share of weights that are zero, not {sparsity}")
    if not shapes:
        raise ValueError("there is no weight to make sparse; the model needs a Linear or convolution layer")


def uniform(shapes: Shapes, sparsity: float) -> dict[str, float]:
    """Uniform: every layer has the same density."""
    _check(shapes, sparsity)
    return dict.fromkeys(shapes, 1 - sparsity)


def erk(shapes: Shapes, sparsity: float) -> dict[str, float]:
    """Erdos-Renyi-Kernel (Evci et al. 2020): density proportional to sum(shape) / prod(shape).

    The factor is solved so that the whole network has the wanted density; a layer that would need more than all
    its weights is dense, and the others are solved again.
    """
    _check(shapes, sparsity)
    size = {name: prod(shape) for name, shape in shapes.items()}
    raw = {name: sum(shape) / prod(shape) for name, shape in shapes.items()}
    wanted = (1 - sparsity) * sum(size.values())
    dense: set[str] = set()
    while sparse := shapes.keys() - dense:
        left = wanted - sum(size[name] for name in dense)
        factor = left / sum(raw[name] * size[name] for name in sparse)
        highest = max(raw[name] for name in sparse)
        if factor * highest <= 1:
            return {name: 1.0 if name in dense else factor * raw[name] for name in shapes}
        dense |= {name for name in sparse if raw[name] == highest}
    return dict.fromkeys(shapes, 1.0)  # sparsity 0, up to rounding
