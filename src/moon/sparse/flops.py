"""FLOPs of a sparse network, counted as in the RigL paper (Evci et al. 2020).

A multiply-add is 2 FLOPs. Only products count, those with weights and those of attention, not biases, norms,
activations, pooling, the optimizer or mask updates. Zero weights cost nothing, as on hardware that skips them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from moon.fast import kernel_search
from moon.sparse.topology import Topology
from moon.sparse.weights import sparse_weights

OTHER = "other products"  # of attention (Q K^T, A V), and with weights that are never sparse


@dataclass(frozen=True)
class LayerCost:
    """FLOPs of one layer for one image.

    Args:
        dense: The FLOPs with all weights.
        density: The fraction of weights that are non-zero.

    Example:
        >>> from moon.sparse import LayerCost
        >>> LayerCost(dense=1000, density=0.25).sparse
        250.0
    """

    dense: int
    density: float

    @property
    def sparse(self) -> float:
        """The FLOPs of the non-zero weights, density * dense."""
        return self.density * self.dense


@dataclass(frozen=True)
class NetCost:
    """FLOPs of a network for one image.

    Training takes a forward pass and two backward passes: the gradients of the activations and those of the weights.
    The methods below return the average over all steps of a run; `rewiring_share` is the fraction of steps before
    t_end, which is 1 in the tables of the RigL paper.

    Args:
        dense: f_D, the FLOPs of inference with all weights.
        sparse: f_S, the FLOPs of inference with the non-zero weights.

    Example:
        >>> from moon.sparse import NetCost
        >>> cost = NetCost(dense=100, sparse=10)
        >>> cost.dense_training(), cost.static_training(), cost.rigl_training(delta_t=9)
        (300, 30, 39.0)
    """

    dense: float
    sparse: float

    def dense_training(self) -> float:
        """The cost of training a dense network, 3 f_D."""
        return 3 * self.dense

    def static_training(self) -> float:
        """The cost of static sparsity, SET and MEST, which never need the gradients of zero weights: 3 f_S."""
        return 3 * self.sparse

    def snfs_training(self, rewiring_share: float = 1.0) -> float:
        """The cost of SNFS, which computes the gradients of all weights in every step before t_end.

        It is 2 f_S + f_D before t_end, 3 f_S after it, averaged.
        """
        return self._until_t_end(2 * self.sparse + self.dense, rewiring_share)

    def rigl_training(self, delta_t: int = 100, rewiring_share: float = 1.0) -> float:
        """The cost of RigL, which computes the gradients of all weights every `delta_t` steps.

        It is (3 f_S delta_t + 2 f_S + f_D) / (delta_t + 1) before t_end, 3 f_S after it, averaged.
        """
        if delta_t < 1:
            raise ValueError(f"delta_t must be at least 1 step, not {delta_t}")
        amortised = (3 * self.sparse * delta_t + 2 * self.sparse + self.dense) / (delta_t + 1)
        return self._until_t_end(amortised, rewiring_share)

    def training(self, topology: type[Topology], delta_t: int, rewiring_share: float) -> float | None:
        """The cost of training with a topology; None if the density changes during training."""
        if topology.dense_gradient == "rewiring":
            return self.rigl_training(delta_t, rewiring_share)
        if topology.dense_gradient == "always":
            return self.snfs_training(rewiring_share)
        return None if topology.dense_gradient is None else self.static_training()

    def _until_t_end(self, rewiring: float, share: float) -> float:
        """The average over the steps before and after t_end."""
        if not 0 <= share <= 1:
            raise ValueError(f"rewiring_share must be in [0, 1], the fraction of steps before t_end, not {share}")
        return share * rewiring + (1 - share) * self.static_training()


def layer_costs(model: nn.Module, shape: tuple[int, ...], densities: Mapping[str, float]) -> dict[str, LayerCost]:
    """Count the FLOPs of each layer: 2 * weights * the number of positions at which they are used.

    A layer that is used several times counts several times, and padding counts. The positions are found by a forward
    pass of a copy of the model with one black image, on its device; on the meta device nothing is computed.

    Args:
        model: The model.
        shape: The shape of an image, without the batch dimension, such as (3, 32, 32).
        densities: The density of each weight by name, from an allocation or from masks. Weights without one are dense.

    Returns:
        The cost of each weight for one image, by name, and that of "other products", which have no weight that can be
        sparse, such as those of attention, if there are any.

    Raises:
        ValueError: If the model has recurrent layers, which are not counted, or nothing to count; or if a name, a
            density or the shape does not fit the model.

    Example:
        >>> import torch
        >>> from moon import layer_costs
        >>> layer_costs(torch.nn.Conv2d(3, 4, 3), shape=(3, 8, 8), densities={"weight": 0.5})  # 2 * 108 * 6 * 6
        {'weight': LayerCost(dense=7776, density=0.5)}
    """
    weights = sparse_weights(model)
    if recurrent := [name for name, module in model.named_modules() if isinstance(module, nn.RNNBase)]:
        raise ValueError(f"{recurrent} is recurrent, which is not counted")
    if not weights:
        raise ValueError("there is nothing to count; the model needs a Linear, convolution or attention layer")
    if unknown := densities.keys() - weights.keys():
        raise ValueError(f"no weight is called {sorted(unknown)}; the weights are {sorted(weights)}")
    if wrong := {name: density for name, density in densities.items() if not 0 <= density <= 1}:
        raise ValueError(f"a density is the fraction of weights that are non-zero, in [0, 1], not {wrong}")
    copy = deepcopy(model).eval()
    counter = _Counter(copy)
    try:
        with torch.no_grad(), kernel_search(False), _plain_attention(), counter:
            copy(next(copy.parameters()).new_zeros(1, *shape))
    except RuntimeError as error:
        raise ValueError(f"the model did not accept an image of shape {shape}: {error}") from error
    costs = {name: LayerCost(flops, densities.get(name, 1.0)) for name, flops in counter.flops.items()}
    return costs if costs[OTHER].dense else {name: cost for name, cost in costs.items() if name != OTHER}


class _Counter(TorchDispatchMode):
    """Context that counts the FLOPs of a model by weight.

    A Linear or convolution layer counts by its shapes. A product outside such a layer counts, as torch counts it, for
    the weight that it multiplies by: attention and other code use the weights of layers without calling them.
    """

    def __init__(self, model: nn.Module) -> None:
        from torch.utils.flop_counter import flop_registry  # imports Triton

        super().__init__()
        weights = sparse_weights(model)
        self._formulas = flop_registry
        self.flops = dict.fromkeys([*weights, OTHER], 0)
        self._names = {StorageWeakRef(weight.untyped_storage()): name for name, weight in weights.items()}
        self._layers = 0  # that are being computed
        by_id = {id(weight): name for name, weight in weights.items()}  # a weight that two layers share has one name
        for path, module in model.named_modules():
            if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
                name = by_id.get(id(module.weight), f"{path}.weight".lstrip("."))  # a parametrised one is a new tensor
                module.register_forward_pre_hook(self._enter)
                module.register_forward_hook(partial(self._count, name))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports its compiler, which takes seconds and is of no use here

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if not self._layers and (count := self._formulas.get(func.overloadpacket)) is not None:
            memory = (StorageWeakRef(each.untyped_storage()) for each in args if isinstance(each, Tensor))
            name = next((self._names[each] for each in memory if each in self._names), OTHER)
            self.flops[name] += count(*args, **(kwargs or {}), out_val=output)
        return output

    def _enter(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._layers += 1

    def _count(self, name: str, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Each output is the sum of weight[0].numel() products; in a transposed convolution, each input is in them."""
        values = inputs[0] if isinstance(layer, nn.modules.conv._ConvTransposeNd) else output
        self.flops[name] += 2 * values.numel() * cast(Tensor, layer.weight)[0].numel()
        self._layers -= 1


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Context in which attention consists of products that can be seen, instead of one kernel."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def net_cost(layers: Mapping[str, LayerCost]) -> NetCost:
    """Add up the costs of all layers.

    Args:
        layers: What `layer_costs` returns.

    Returns:
        The cost of the network for one image.

    Example:
        >>> from moon.sparse import LayerCost, net_cost
        >>> net_cost({"conv": LayerCost(1000, 0.25), "fc": LayerCost(100, 1.0)})
        NetCost(dense=1100, sparse=350.0)
    """
    return NetCost(sum(layer.dense for layer in layers.values()), sum(layer.sparse for layer in layers.values()))
