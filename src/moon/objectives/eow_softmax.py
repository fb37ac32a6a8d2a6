"""EOW-Softmax (Wang et al. 2021): the unknown output is trained on samples that the model itself takes for known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from math import inf

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from moon.evidence import evaluation_mode, logits_of
from moon.fast import without_buffers
from moon.objectives.base import Objective, Terms, at_least_float32
from moon.objectives.epoch import Epoch
from moon.objectives.models import View, check_open, check_tensor, open_logits

_CONVOLUTION = nn.modules.conv._ConvNd
_EPSILON = 1e-12  # the authors'; where p_{K+1} is far below it, the energy has no gradient and the samples stay


class EowSoftmax(Objective):
    """EOW-Softmax: -log p_y at images, plus `weight` times -log p_{K+1} at samples, of one softmax.

    The samples are feature maps, the input of the module `layer`. Langevin dynamics draws them from the density
    proportional to 1 / (p_{K+1} + 1e-12), whose energy is log(p_{K+1} + 1e-12):
        h <- h - step * d log(p_{K+1} + 1e-12) / dh + noise * N(0, 1),        `steps` times.
    Chains continue from a replay buffer; each restarts with probability `restart`. The second term starts after
    `start_share` of the epochs.

    Args:
        epochs: The number of epochs of the run.
        weight: The weight of the second term.
        start_share: The fraction of the epochs after which the second term starts, in [0, 1].
        steps: The number of Langevin steps per batch. The authors take 100, which costs five times as much.
        step: The size of a step. The authors take 1, which can destroy a network with BatchNorm.
        noise: The standard deviation of the noise of a step.
        replay: The number of chains in the replay buffer.
        restart: The probability that a chain restarts from uniform noise, in [0, 1].
        layer: The name of the module whose input is sampled, such as "layer4"; "" for the last stage that has a
            convolution.

    Example:
        >>> import torch
        >>> from moon import EowSoftmax, open_head
        >>> model = open_head(torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 4)))
        >>> objective = EowSoftmax(epochs=15, steps=2, replay=32, layer="2")
        >>> x, y = torch.randn(16, 8), torch.arange(16) % 4
        >>> list(objective.terms(model, x, y, epoch=8))
        ['cross_entropy', 'samples']
    """

    extra_logits = 1
    replay: Tensor

    def __init__(
        self,
        epochs: int,
        weight: float = 0.1,
        start_share: float = 8 / 15,
        steps: int = 20,
        step: float = 0.01,
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
        self.register_buffer("replay", torch.empty(0))  # (chains, *map), created with the first sample

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: Epoch) -> Terms:
        check_open(model, self)
        x = check_tensor(x, self)
        stage = _stage(model, self.layer)  # a wrong layer is an error in the first step, not when sampling starts
        terms = {"cross_entropy": cross_entropy(at_least_float32(open_logits(model, x, self)), y)}
        started = self.has_started(epoch, self.start)
        if started is not False:  # True, or a tensor whose value is not known here
            with _tail(model, stage, x) as (tail, like):
                with without_buffers():  # gradients with respect to samples, not weights
                    samples = self.sample(tail, like, len(x))
                log_p_unknown = at_least_float32(tail(samples)).log_softmax(1)[:, -1]
                terms["samples"] = -self.weight * started * log_p_unknown.mean()
        return terms

    def phase(self, epoch: int) -> bool:
        return epoch >= self.start

    def prepare(self, model: nn.Module, x: Tensor, epoch: int) -> None:
        if epoch >= self.start and self.replay.numel() == 0:
            with _tail(model, _stage(model, self.layer), x) as (_, like):
                self.replay = _fresh(like, self.chains, like.shape[1:])

    @torch.no_grad()
    def sample(self, tail: Callable[[Tensor], Tensor], like: Tensor, count: int) -> Tensor:
        """Draw samples; the chains in the replay buffer continue from them next time.

        Args:
            tail: The model from the sampled layer on.
            like: A feature map; the samples have its shape, dtype and device.
            count: The number of samples.

        Returns:
            (count, *map), the samples.
        """
        shape = like.shape[1:]
        if self.replay.numel() == 0:
            self.replay = _fresh(like, self.chains, shape)
        index = torch.randperm(self.chains, device=like.device)[:count]  # without replacement
        index = index if len(index) == count else torch.randint(self.chains, (count,), device=like.device)
        restarts = torch.rand(count, *(1 for _ in shape), device=like.device) < self.restart
        h = torch.where(restarts, _fresh(like, count, shape), self.replay[index])
        for _ in range(self.steps):
            with torch.enable_grad():
                h.requires_grad_()
                p_unknown = at_least_float32(tail(h)).softmax(1)[:, -1]
                (gradient,) = torch.autograd.grad((p_unknown + _EPSILON).log().sum(), h)
            h = h.detach() - self.step * gradient + self.noise * torch.randn_like(h)
        self.replay[index] = h
        return h


def _fresh(like: Tensor, count: int, shape: torch.Size) -> Tensor:
    """`count` new chains of feature maps, uniform in [-0.1, 0.1)."""
    return torch.empty(count, *shape, device=like.device, dtype=like.dtype).uniform_(-0.1, 0.1)


@contextmanager
def _tail(model: nn.Module, stage: nn.Module, x: Tensor) -> Iterator[tuple[Callable[[Tensor], Tensor], Tensor]]:
    """The model from the input of `stage` on, as a function, and an example of that input.

    A hook replaces the input of the stage by h, so this works for any model. What is before the stage gets an empty
    batch, which costs little, or one image if it cannot compute without. Inside, the model is in evaluation mode:
    samples do not change the statistics of BatchNorm. At the end the hook is removed and the mode is restored.
    """
    replacement: list[Tensor] = []
    inputs_of_stage: list[Tensor] = []

    def replace(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        inputs_of_stage[:] = inputs[:1]
        return (replacement[0], *inputs[1:]) if replacement else inputs

    def tail(h: Tensor, images: Tensor) -> Tensor:
        replacement[:] = [h]
        return logits_of(model, images)

    def needs_an_image(h: Tensor) -> bool:
        with torch.no_grad(), suppress(Exception):  # layers raise different errors if a batch is empty
            return len(tail(h, x[:0])) != len(h)  # a connection that bypasses the stage may make the result empty
        return True

    handle = stage.register_forward_pre_hook(replace)
    try:
        with evaluation_mode(model):
            with torch.no_grad():
                model(x[:1])
            if not inputs_of_stage:
                raise ValueError(
                    f"the {type(stage).__name__} whose input is to be sampled is not part of the forward pass; "
                    "set layer to the name of another module"
                )
            like = at_least_float32(inputs_of_stage[0])
            yield partial(tail, images=x[: int(needs_an_image(like))]), like
    finally:
        handle.remove()


def _stage(model: nn.Module, layer: str) -> nn.Module:
    """The module of this name, or the last stage."""
    while isinstance(model, View):
        model = model.model
    try:
        return model.get_submodule(layer) if layer else _last_stage(model)
    except AttributeError:
        raise ValueError(
            f"{type(model).__name__} has no module '{layer}'; set layer to the name of one whose input is to be sampled"
        ) from None


def _last_stage(model: nn.Module) -> nn.Module:
    """The last stage with a convolution whose input is not the image itself, such as `layer4` of a ResNet."""
    parts = [part for part in model.children() if any(True for _ in part.parameters())]
    stages = [part for part in parts if any(isinstance(module, _CONVOLUTION) for module in part.modules())]
    if not stages:
        raise ValueError(
            f"{type(model).__name__} has no convolution after its first one; set layer to the name of the module whose "
            "input is to be sampled"
        )
    return _last_stage(stages[-1]) if stages[-1] is parts[0] else stages[-1]
