"""The paper's Appendix E: the FLOPs that MOON adds to training, as the paper counts them and as we do."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from moon.nets import resnet50
from moon.sparse import erk, layer_costs, net_cost, sparse_weights, uniform


@dataclass(frozen=True)
class MoonExtra:
    """What MOON adds to a whole run, in FLOPs: its loss with the tuning of w, the average of the weights, BatchNorm."""

    loss: float
    averaging: float
    norm: float

    @property
    def voting(self) -> float:
        """The vote: averaging and BatchNorm statistics."""
        return self.averaging + self.norm

    @property
    def total(self) -> float:
        """Everything that MOON adds."""
        return self.loss + self.voting

    def share(self, training: float) -> float:
        """The extra cost relative to training without MOON."""
        return self.total / training


def loss_flops(images: int, outputs: int, quiet: bool) -> int:
    """The FLOPs of MOON's loss beyond cross-entropy.

    In quiet epochs 4 per output: beta needs a softmax (shift, exp, sum, divide). Later 8, for w and the new loss. With
    ImageNet's 1001 outputs and batches of 32 images these are the paper's figures.
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
    """Count what MOON adds to a run.

    loss      = quiet_epochs * 4 * images * outputs + (epochs - quiet_epochs) * 8 * images * outputs
    averaging = (voters - 1) * 3 * parameters          subtract, scale, add; the first voter is copied
    norm      = norm_passes * images * forward         1 pass after the last vote; the paper makes 1 per voting epoch

    `images` is their number per epoch, `outputs` K+1, and `forward` the FLOPs of inference of one image.
    """
    if not 0 <= quiet_epochs <= epochs:
        raise ValueError(f"quiet_epochs={quiet_epochs} must be in 0..{epochs}, the epochs of the run")
    if voters < 1 or norm_passes < 0:
        raise ValueError(f"voters={voters} must be at least 1 and norm_passes={norm_passes} at least 0")
    quiet, later = (loss_flops(images, outputs, quiet) for quiet in (True, False))
    return MoonExtra(
        loss=quiet_epochs * quiet + (epochs - quiet_epochs) * later,
        averaging=(voters - 1) * 3 * parameters,
        norm=norm_passes * images * forward,
    )


@dataclass(frozen=True)
class PaperRow:
    """One figure of the paper's Appendix E (None: it has none), what its assumptions give, and what we count."""

    quantity: str
    paper: float | None
    derived: float
    ours: float
    why: str


# Quantity, the paper's figure (None: it has none), and why the figures differ.
_PUBLISHED: list[tuple[str, float | None, str]] = [
    ("inference of an image, dense", None, "Evci et al. give 8.2e9"),
    ("inference of an image, sparse", None, "Evci et al. give 0.23 of dense for uniform, 0.42 for ERK"),
    ("training by RigL", 7.4e17, "it is 0.23 * 3.2e18, Evci et al.'s rounded figures for uniform, 102 epochs"),
    ("loss of an iteration, quiet", 1.3e5, "4 for each of 32 * 1001 outputs"),
    ("loss of an iteration, later", 2.6e5, "8 for each of 32 * 1001 outputs"),
    ("loss and tuning, whole run", 2.3e15, "4.0e6 iterations of 2.6e5 are 1.0e12; 2.3e15 is 1.8e9 * images"),
    ("averaging of weights", 1.8e9, "3 for each parameter of 19 voters; the paper does not say how it counts"),
    ("BatchNorm, one pass", 2.4e15, "it is 0.23 * 8.2e9 * images, rounded figures again"),
    ("voting, whole run", 4.8e16, "20 passes; we make only the last"),
    ("MOON's extra, whole run", 5.0e16, "the paper adds its 2.3e15; the rest is the BatchNorm passes"),
    ("MOON's extra / RigL's training", 0.068, "20 forward passes relative to 100 * 3; 1 in our case"),
]


def paper_flops(model: nn.Module | None = None) -> list[PaperRow]:
    """Recount the paper's Appendix E: MOON with RigL on ImageNet, a ResNet-50 that is 80% sparse.

    derived: uniform densities with a dense first layer, RigL's amortised step throughout, and a BatchNorm pass in each
             of the 20 voting epochs; the paper's figures rest on these
    ours   : ERK (which the paper states as well), rewiring in 70% of the steps, one BatchNorm pass after the last vote
    """
    if model is None:
        with torch.device("meta"):  # only shapes are needed
            model = resnet50()
    network = model
    images, epochs, batch_size, outputs, voters = 1_281_167, 100, 32, 1001, 20
    shapes = {name: tuple(weight.shape) for name, weight in sparse_weights(network).items()}
    first = next(iter(shapes))

    def figures(densities: dict[str, float], rewiring_share: float, norm_passes: int) -> list[float]:
        cost = net_cost(layer_costs(network, (3, 224, 224), densities))
        training = images * epochs * cost.rigl_training(100, rewiring_share)
        parameters = sum(parameter.numel() for parameter in network.parameters())
        extra = moon_extra(images, epochs, outputs, parameters, cost.sparse, voters=voters, norm_passes=norm_passes)
        return [
            cost.dense, cost.sparse, training,
            loss_flops(batch_size, outputs, quiet=True), loss_flops(batch_size, outputs, quiet=False), extra.loss,
            extra.averaging, images * cost.sparse, extra.voting, extra.total, extra.share(training),
        ]  # fmt: skip

    derived = figures(uniform(shapes, 0.8) | {first: 1.0}, rewiring_share=1.0, norm_passes=voters)
    ours = figures(erk(shapes, 0.8), rewiring_share=0.7, norm_passes=1)
    return [
        PaperRow(quantity, paper, from_theirs, from_ours, why)
        for (quantity, paper, why), from_theirs, from_ours in zip(_PUBLISHED, derived, ours, strict=True)
    ]
