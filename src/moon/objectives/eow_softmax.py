"""EOW-Softmax (Wang et al. 2021): the K+1-th output learns from samples of the model's own idea of the known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from moon.fast import plain
from moon.objectives.base import Objective, Terms, View, check_open, widened

_CONVOLUTION = nn.modules.conv._ConvNd


class EowSoftmax(Objective):
    """-log p_y at x, plus `weight` times -log p_{K+1} at samples, both of one softmax over K+1 outputs.

    The samples are maps of features, the input of the module `layer`, drawn by Langevin dynamics from the density
    proportional to 1 / p_{K+1}, whose energy is log p_{K+1}:
        h <- h - step * d log p_{K+1} / dh + noise * N(0, 1),        `steps` times.
    Chains go on from a replay buffer; a share `restart` begins anew. It starts after `start_share` of the epochs.
    """

    extra_logits = 1
    replay: Tensor

    def __init__(
        self,
        epochs: int,
        weight: float = 0.1,
        start_share: float = 8 / 15,
        steps: int = 20,
        step: float = 0.01,  # of 1, as the authors', samples run away under SGD (docs/LOG.md)
        noise: float = 1e-3,
        replay: int = 10_000,
        restart: float = 0.05,
        layer: str = "",
    ) -> None:
        super().__init__()
        if not (0 <= weight < inf and 0 <= step < inf and 0 <= noise < inf and steps >= 1 and replay >= 1):
            raise ValueError(
                f"weight={weight}, step={step} and noise={noise} must be at least 0 and finite, "
                f"steps={steps} and replay={replay} at least 1"
            )
        if not (0 <= start_share <= 1 and 0 <= restart <= 1):
            raise ValueError(f"start_share={start_share} and restart={restart} must be in [0, 1]")
        self.weight, self.start, self.layer = weight, start_share * epochs, layer
        self.steps, self.step, self.noise, self.chains, self.restart = steps, step, noise, replay, restart
        self.register_buffer("replay", torch.empty(0))  # (chains, *map), made with the first sample

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int | Tensor) -> Terms:
        check_open(model, self)
        stage = _stage(model, self.layer)  # refused in the first step, not when the samples begin
        terms = {"cross_entropy": cross_entropy(widened(model(x)), y)}
        started = self.has_come(epoch, self.start)
        if started is not False:  # a tensor on the device is not asked
            with _tail(model, stage, x) as (logits_of, like):
                with plain():  # the slopes of samples, not of weights
                    samples = self.sample(logits_of, like, len(x))
                unknown = widened(logits_of(samples)).log_softmax(1)[:, -1]
                terms["samples"] = -self.weight * started * unknown.mean()
        return terms

    def phase(self, epoch: int) -> bool:
        return epoch >= self.start

    def prepare(self, model: nn.Module, x: Tensor, epoch: int) -> None:
        if epoch >= self.start and self.replay.numel() == 0:
            with _tail(model, _stage(model, self.layer), x) as (_, like):
                self.replay = _fresh(like, self.chains, like.shape[1:])

    @torch.no_grad()
    def sample(self, logits_of: Callable[[Tensor], Tensor], like: Tensor, count: int) -> Tensor:
        """So many samples of maps like this one, put back into the replay buffer."""
        shape = like.shape[1:]
        if self.replay.numel() == 0:
            self.replay = _fresh(like, self.chains, shape)
        index = torch.randperm(self.chains, device=like.device)[:count]  # no chain twice
        index = index if len(index) == count else torch.randint(self.chains, (count,), device=like.device)
        anew = torch.rand(count, *(1 for _ in shape), device=like.device) < self.restart
        h = torch.where(anew, _fresh(like, count, shape), self.replay[index])
        for _ in range(self.steps):
            with torch.enable_grad():
                h.requires_grad_()
                energy = widened(logits_of(h)).log_softmax(1)[:, -1].sum()
                (slope,) = torch.autograd.grad(energy, h)
            h = h.detach() - self.step * slope + self.noise * torch.randn_like(h)
        self.replay[index] = h
        return h


def _fresh(like: Tensor, count: int, shape: torch.Size) -> Tensor:
    return torch.empty(count, *shape, device=like.device, dtype=like.dtype).uniform_(-0.1, 0.1)


@contextmanager
def _tail(model: nn.Module, stage: nn.Module, x: Tensor) -> Iterator[tuple[Callable[[Tensor], Tensor], Tensor]]:
    """The model from the input of `stage` on, as a function, and an example of that input.

    A hook gives the stage h in place of what one image made of it, so any model will do. BatchNorm is in evaluation
    mode meanwhile: samples leave no trace in its statistics. All is as found afterwards.
    """
    given: list[Tensor] = []
    seen: list[Tensor] = []

    def replace(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        seen[:] = inputs[:1]
        return (given[0], *inputs[1:]) if given else inputs

    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    handle = stage.register_forward_pre_hook(replace)

    def logits_of(h: Tensor) -> Tensor:
        given[:] = [h]
        return model(x[:1])

    try:
        with torch.no_grad():
            model(x[:1])
        if not seen:
            raise ValueError(
                f"the {type(stage).__name__} to be sampled takes no part in the forward pass; name another"
            )
        yield logits_of, widened(seen[0])
    finally:
        handle.remove()
        for part, training in modes:
            part.training = training


def _stage(model: nn.Module, layer: str) -> nn.Module:
    """The module of this name, or the last stage."""
    while isinstance(model, View):
        model = model.model
    try:
        return model.get_submodule(layer) if layer else _last_stage(model)
    except AttributeError:
        raise ValueError(
            f"{type(model).__name__} has no module '{layer}'; name one whose input can be sampled"
        ) from None


def _last_stage(model: nn.Module) -> nn.Module:
    """The last part with a convolution, down to one that does not see the image itself (ResNet's layer4)."""
    parts = [part for part in model.children() if any(True for _ in part.parameters())]
    stages = [part for part in parts if any(isinstance(module, _CONVOLUTION) for module in part.modules())]
    if not stages:
        raise ValueError(
            f"{type(model).__name__} has no convolution behind its first; name the module whose input is to be sampled "
            "(layer=...)"
        )
    return _last_stage(stages[-1]) if stages[-1] is parts[0] else stages[-1]
