"""What a sparse network costs in FLOPs, as RigL counts them (Evci et al. 2020), and what MOON adds (its Appendix E).

A multiply-add is 2 FLOPs. Counted is what the weights of Linear and convolution layers do; biases, norms, activations,
pooling, the optimizer and the choice of connections are not. It is what a machine would do that skips every zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from moon.sparse.allocation import erk, uniform
from moon.sparse.topology import Topology, sparse_weights


@dataclass(frozen=True)
class LayerCost:
    """FLOPs of one layer for one image: `dense`, and `sparse` = density * dense."""

    dense: int
    density: float

    @property
    def sparse(self) -> float:
        return self.density * self.dense


@dataclass(frozen=True)
class NetCost:
    """FLOPs of a network for one image: `dense` f_D and `sparse` f_S are its inference.

    Training is a forward pass and two backward: the gradient of the activations and that of the weights. Every method
    gives the mean over the steps; `rewiring_share` is the share of steps before t_end, 1 in RigL's own tables.
    """

    dense: float
    sparse: float

    def dense_training(self) -> float:
        """3 f_D."""
        return 3 * self.dense

    def static_training(self) -> float:
        """3 f_S: static, SET and MEST, which never ask for the gradient of a weight that does not exist."""
        return 3 * self.sparse

    def snfs_training(self, rewiring_share: float = 1.0) -> float:
        """2 f_S + f_D, the dense gradient of the weights in every step; 3 f_S after t_end."""
        return self._until_t_end(2 * self.sparse + self.dense, rewiring_share)

    def rigl_training(self, delta_t: int = 100, rewiring_share: float = 1.0) -> float:
        """(3 f_S delta_t + 2 f_S + f_D) / (delta_t + 1), a dense gradient now and then; 3 f_S after t_end."""
        if delta_t < 1:
            raise ValueError(f"delta_t must be at least 1 step, not {delta_t}")
        amortised = (3 * self.sparse * delta_t + 2 * self.sparse + self.dense) / (delta_t + 1)
        return self._until_t_end(amortised, rewiring_share)

    def training(self, topology: type[Topology], delta_t: int, rewiring_share: float) -> float | None:
        """That of a topology, or None where its density changes over the run."""
        if topology.dense_gradient == "rewiring":
            return self.rigl_training(delta_t, rewiring_share)
        if topology.dense_gradient == "always":
            return self.snfs_training(rewiring_share)
        return None if topology.dense_gradient is None else self.static_training()

    def _until_t_end(self, rewiring: float, share: float) -> float:
        if not 0 <= share <= 1:
            raise ValueError(f"rewiring_share must be in [0, 1], the share of steps before t_end, not {share}")
        return share * rewiring + (1 - share) * self.static_training()


def layer_costs(model: nn.Module, shape: tuple[int, ...], densities: Mapping[str, float]) -> dict[str, LayerCost]:
    """The cost of each weight that may be sparse, by its name, for one image of this shape (without the batch).

    dense = 2 * weights * places where they are used; a layer that is used again counts again, and padding counts.
    `densities` are those of an allocation or of masks; weights that it does not name are dense. One forward pass of a
    copy on the meta device finds the places: nothing is computed, and the model is left alone.
    """
    weights = sparse_weights(model)
    if attention := [name for name, module in model.named_modules() if isinstance(module, nn.MultiheadAttention)]:
        raise ValueError(f"{attention} is attention, which is not counted; build it of Linear layers to count those")
    if not weights:
        raise ValueError("there is nothing to count; the model needs a Linear or convolution layer")
    if unknown := densities.keys() - weights.keys():
        raise ValueError(f"no weight is called {sorted(unknown)}; the weights are {sorted(weights)}")
    if wrong := {name: density for name, density in densities.items() if not 0 <= density <= 1}:
        raise ValueError(f"a density is the share of weights that exist, in [0, 1], not {wrong}")
    flops = dict.fromkeys(weights, 0)
    names = {id(weight): name for name, weight in weights.items()}  # a weight that two layers share has one name
    skeleton = deepcopy(model).to("meta").eval()
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
            name = names.get(id(module.weight), f"{path}.weight".lstrip("."))  # a computed weight is new each time
            skeleton.get_submodule(path).register_forward_hook(_counter(flops, name))
    try:
        with torch.no_grad():
            skeleton(torch.empty(1, *shape, device="meta", dtype=next(skeleton.parameters()).dtype))
    except RuntimeError as error:
        raise ValueError(f"the model did not take an image of shape {shape} on the meta device: {error}") from error
    return {name: LayerCost(dense, densities.get(name, 1.0)) for name, dense in flops.items()}


def _counter(flops: dict[str, int], name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
    """A hook that adds up a layer's FLOPs: each output is the sum of as many products as weight[0] has entries.

    A transposed convolution is the same read backwards: each input takes part in as many products.
    """

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        values = inputs[0] if isinstance(layer, nn.modules.conv._ConvTransposeNd) else output
        flops[name] += 2 * values.numel() * cast(Tensor, layer.weight)[0].numel()

    return count


def net_cost(layers: Mapping[str, LayerCost]) -> NetCost:
    """The sum over the layers."""
    return NetCost(sum(layer.dense for layer in layers.values()), sum(layer.sparse for layer in layers.values()))


@dataclass(frozen=True)
class MoonExtra:
    """What MOON adds to a whole run, in FLOPs."""

    loss: float  # and the tuning of its weight
    averaging: float
    norm: float  # BatchNorm's statistics of the average

    @property
    def voting(self) -> float:
        return self.averaging + self.norm

    @property
    def total(self) -> float:
        return self.loss + self.voting

    def share(self, training: float) -> float:
        """Of the FLOPs that the run's training takes without MOON."""
        return self.total / training


def loss_flops(images: int, outputs: int, quiet: bool) -> int:
    """MOON's loss beyond cross-entropy: 4 an output in quiet epochs, where beta needs a softmax (shift, exp, sum,
    divide), and 8 later, for w and the new loss. With ImageNet's K+1 outputs and batches of 32 these are the paper's.
    """
    return (4 if quiet else 8) * images * outputs


def moon_extra(
    images: int,
    epochs: int,
    outputs: int,
    parameters: int,
    forward: float,
    quiet_epochs: int = 5,
    voters: int = 20,
    norm_passes: int = 1,
) -> MoonExtra:
    """MOON's extra over a run: `images` an epoch, K+1 `outputs`, `forward` the inference FLOPs of one image.

    loss      = quiet_epochs * 4 * images * outputs + (epochs - quiet_epochs) * 8 * images * outputs
    averaging = (voters - 1) * 3 * parameters          subtract, scale, add; the first voter is copied
    norm      = norm_passes * images * forward         we pass once, at the election; the paper in each voting epoch
    """
    if not 0 <= quiet_epochs <= epochs:
        raise ValueError(f"quiet_epochs={quiet_epochs} must be in 0..{epochs}, the epochs of the run")
    if voters < 1 or norm_passes < 0:
        raise ValueError(f"voters={voters} must be at least 1 and norm_passes={norm_passes} at least 0")
    quiet, loud = (loss_flops(images, outputs, quiet) for quiet in (True, False))
    return MoonExtra(
        loss=quiet_epochs * quiet + (epochs - quiet_epochs) * loud,
        averaging=(voters - 1) * 3 * parameters,
        norm=norm_passes * images * forward,
    )


@dataclass(frozen=True)
class PaperRow:
    """A figure of the paper's Appendix E beside what can be counted."""

    quantity: str
    paper: float | None  # None where it gives none
    follows: float  # from what the paper assumes
    erk: float  # as we train
    why: str  # they differ


# What the paper says (None: nothing), and why the figures differ.
_SAID: list[tuple[str, float | None, str]] = [
    ("inference of an image, dense", None, "Evci et al. give 8.2e9"),
    ("inference of an image, sparse", None, "Evci et al. give 0.23 of dense for uniform, 0.42 for ERK"),
    ("training by RigL", 7.4e17, "it is 0.23 * 3.2e18, Evci et al.'s rounded figures for uniform, 102 epochs"),
    ("loss of an iteration, quiet", 1.3e5, "4 for each of 32 * 1001 outputs"),
    ("loss of an iteration, later", 2.6e5, "8 for each of 32 * 1001 outputs"),
    ("loss and tuning, whole run", 2.3e15, "4.0e6 iterations of 2.6e5 are 1.0e12; 2.3e15 is 1.8e9 * images"),
    ("averaging of weights", 1.8e9, "3 for each parameter of 19 voters; the paper does not say how it counts"),
    ("BatchNorm, one pass", 2.4e15, "it is 0.23 * 8.2e9 * images, rounded figures again"),
    ("voting, whole run", 4.8e16, "20 passes; we make the last alone"),
    ("MOON's extra, whole run", 5.0e16, "the paper adds its 2.3e15; all but that is BatchNorm's passes"),
    ("MOON's extra / RigL's training", 0.068, "20 forward passes beside 100 * 3; for us 1"),
]


def paper_flops(model: nn.Module) -> list[PaperRow]:
    """The paper's Appendix E: MOON with RigL on ImageNet, `model` a ResNet-50 that is 80% sparse.

    follows: what its figures rest on, uniform densities with a dense first layer and RigL's amortised step throughout,
             and a BatchNorm pass in each of the 20 voting epochs
    erk    : as we train, ERK (the paper says so too), rewiring in 70% of the steps, one BatchNorm pass at the election
    """
    images, epochs, batch_size, outputs, voters = 1_281_167, 100, 32, 1001, 20
    shapes = {name: tuple(weight.shape) for name, weight in sparse_weights(model).items()}
    first = next(iter(shapes))

    def figures(densities: dict[str, float], rewiring_share: float, norm_passes: int) -> list[float]:
        cost = net_cost(layer_costs(model, (3, 224, 224), densities))
        training = images * epochs * cost.rigl_training(100, rewiring_share)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        extra = moon_extra(images, epochs, outputs, parameters, cost.sparse, voters=voters, norm_passes=norm_passes)
        return [
            cost.dense, cost.sparse, training,
            loss_flops(batch_size, outputs, quiet=True), loss_flops(batch_size, outputs, quiet=False), extra.loss,
            extra.averaging, images * cost.sparse, extra.voting, extra.total, extra.share(training),
        ]  # fmt: skip

    follows = figures(uniform(shapes, 0.8) | {first: 1.0}, rewiring_share=1.0, norm_passes=voters)
    ours = figures(erk(shapes, 0.8), rewiring_share=0.7, norm_passes=1)
    return [
        PaperRow(quantity, paper, theirs, our, why)
        for (quantity, paper, why), theirs, our in zip(_SAID, follows, ours, strict=True)
    ]
