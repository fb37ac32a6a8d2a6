"""Allocations: how many weights each layer keeps.

An allocation is a function from the shapes of the weights and a sparsity to the density of each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import prod

from torch import Tensor

Shapes = Mapping[str, tuple[int, ...]]
Allocation = Callable[[Shapes, float], dict[str, float]]


def _check(shapes: Shapes, sparsity: float) -> None:
    """Raise a ValueError if the sparsity is out of range or the model has no weights."""
    if not 0 <= sparsity < 1:
        percent = f"; for {sparsity:g}% give {sparsity / 100:g}" if 1 < sparsity < 100 else ""
        raise ValueError(f"sparsity must be in [0, 1), the fraction of weights that are zero, not {sparsity}{percent}")
    if not shapes:
        raise ValueError("there is no weight to make sparse; the model needs a Linear or convolution layer")


def uniform(shapes: Shapes, sparsity: float) -> dict[str, float]:
    """Uniform: every layer has the same density.

    Args:
        shapes: The shapes of the weights by name.
        sparsity: The fraction of weights that are zero, in [0, 1).

    Returns:
        The density of each weight by name, in (0, 1].

    Example:
        >>> from moon import uniform
        >>> uniform({"conv": (8, 3, 3, 3), "fc": (10, 32)}, sparsity=0.75)
        {'conv': 0.25, 'fc': 0.25}
    """
    _check(shapes, sparsity)
    return dict.fromkeys(shapes, 1 - sparsity)


def erk(shapes: Shapes, sparsity: float) -> dict[str, float]:
    """Erdos-Renyi-Kernel (Evci et al. 2020): density proportional to sum(shape) / prod(shape).

    The factor is solved so that the network as a whole has the given sparsity. A layer that would need a density above
    1 is dense, and the factor is solved again for the others.

    Args:
        shapes: The shapes of the weights by name.
        sparsity: The fraction of weights that are zero, in [0, 1).

    Returns:
        The density of each weight by name, in (0, 1].

    Example:
        >>> from moon import erk
        >>> densities = erk({"conv": (8, 3, 3, 3), "fc": (100, 32)}, sparsity=0.8)
        >>> {name: round(density, 3) for name, density in densities.items()}
        {'conv': 0.361, 'fc': 0.189}
    """
    _check(shapes, sparsity)
    size = {name: prod(shape) for name, shape in shapes.items()}
    raw = {name: sum(shape) / prod(shape) for name, shape in shapes.items()}
    wanted = (1 - sparsity) * sum(size.values())
    dense: set[str] = set()
    while sparse := shapes.keys() - dense:
        remaining = wanted - sum(size[name] for name in dense)
        factor = remaining / sum(raw[name] * size[name] for name in sparse)
        highest = max(raw[name] for name in sparse)
        if factor * highest <= 1:
            return {name: 1.0 if name in dense else factor * raw[name] for name in shapes}
        dense |= {name for name in sparse if raw[name] == highest}
    return dict.fromkeys(shapes, 1.0)  # sparsity 0, up to rounding


def per_expert(allocation: Allocation, stacks: Collection[str]) -> Allocation:
    """An allocation to which each expert is a layer of its own, though one tensor, named in `stacks`, holds all."""

    def allocate(shapes: Shapes, sparsity: float) -> dict[str, float]:
        layers = {name: shape for name, shape in shapes.items() if name not in stacks}
        experts = {name: shape for name, shape in shapes.items() if name in stacks}
        layers |= {f"{name}[{i}]": shape[1:] for name, shape in experts.items() for i in range(shape[0])}
        found = allocation(layers, sparsity)
        return {name: found[f"{name}[0]" if name in experts else name] for name in shapes}

    return allocate if stacks else allocation


def to_counts(densities: Mapping[str, float], weights: Mapping[str, Tensor]) -> dict[str, int]:
    """The number of non-zero weights of each layer, at least one. Layers without a density are dense."""
    return {
        name: min(weight.numel(), max(1, round(densities.get(name, 1.0) * weight.numel())))
        for name, weight in weights.items()
    }


def check_sparse(densities: Mapping[str, float], sparsity: float, name: str) -> None:
    """Raise a ValueError if every layer is dense. `name` is that of the method, for the message."""
    if min(densities.values()) > 1 - 1e-9:  # 1, up to rounding
        raise ValueError(
            f"{name} with sparsity={sparsity:g} would leave no weight at zero; choose a higher sparsity, or Dense for "
            "a dense network"
        )
