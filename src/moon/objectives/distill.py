"""Distillation (Hinton et al. 2015): learn the softened predictions of trained networks, the teachers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from math import inf
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div

from moon.evidence import Inputs, autocast, classifier_name, evaluation_mode, float32_classifier, logits_of
from moon.fast import inference_copy, without_buffers
from moon.objectives.base import Objective, Terms, at_least_float32
from moon.objectives.cross_entropy import CrossEntropy
from moon.objectives.epoch import Epoch
from moon.objectives.models import View

_log = logging.getLogger(__name__)


def distillation_loss(logits: Tensor, teachers: Sequence[Tensor], temperature: float) -> Tensor:
    """T^2 * KL(mean over the teachers of softmax(z_t / T) || softmax(z / T)), averaged over the batch.

    All logits are (N, K) or (N, K+1). If only some have the unknown output, the softmax of all is over the K known
    outputs; other differences are a ValueError.
    """
    sizes = sorted({each.shape[1] for each in (logits, *teachers)})
    if sizes[-1] - sizes[0] > 1:
        raise ValueError(f"the student and its teachers have {sizes} outputs; they must know the same classes")
    known = slice(sizes[0])
    target = sum((each[:, known] / temperature).softmax(1) for each in teachers) / len(teachers)
    assert isinstance(target, Tensor)
    return temperature**2 * kl_div((logits[:, known] / temperature).log_softmax(1), target, reduction="batchmean")


class Teacher(nn.Module):
    """A trained network that others learn from: its logits, in the form that its own loss used.

    It runs in evaluation mode and without gradients; the network is not changed.

    Args:
        model: The network.
        objective: The objective it was trained with, whose normalisation of logits or features applies to its logits;
            None for one that does not normalise.
        precision: None: the network computes as it is, under autocast if that is on. torch.float32 or a dtype of
            autocast: a copy of it, made when the teacher is made, moved or converted, computes in this precision,
            except for its classifier. This takes less time. Other changes of the network have no effect then.

    Example:
        >>> import torch
        >>> from moon import LogitNorm, Teacher, lenet
        >>> logits = Teacher(lenet(), LogitNorm(temperature=0.1))(torch.randn(2, 1, 28, 28))
        >>> logits.norm(dim=1)
        tensor([10.0000, 10.0000])
    """

    def __init__(
        self, model: nn.Module, objective: Objective | None = None, precision: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self._copy: nn.Module | None
        self.model = model
        self.objective = objective or CrossEntropy()
        self.precision = precision
        vars(self)["_copy"] = self._copied()  # not a submodule: it is not in the state

    def _copied(self) -> nn.Module | None:
        if self.precision is None:
            return None
        try:
            copy = inference_copy(self.model, self.precision)
        except (RuntimeError, TypeError) as error:  # of `deepcopy`
            _log.warning(
                "%s cannot be copied for inference, so the original network is the teacher: %s",
                type(self.model).__name__,
                error,
            )
            return None
        classifier_name(copy, classifier_name(self.model))  # so that it is not searched for again
        return copy

    @torch.no_grad()
    def forward(self, x: Inputs) -> Tensor:
        model, device = self.model if self._copy is None else self._copy, next(self.model.parameters()).device
        if self.precision is not None:
            precision = autocast(model, device, self.precision)
        else:
            precision = float32_classifier(model) if torch.is_autocast_enabled(device.type) else nullcontext()
        buffers = without_buffers() if self._copy is None else nullcontext()  # the copy uses kernels where they are on
        with buffers, evaluation_mode(model), precision:
            return at_least_float32(self.objective.logits(model, x))

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        vars(self)["_copy"] = self._copied()
        return self


class Distill(Objective):
    """Distillation: (1 - a) * another objective, by default cross-entropy, + a * the divergence from the teachers.

    L = (1 - a) * L_inner + a * T^2 * KL(mean over the teachers of softmax(z_t / T) || softmax(z / T))

    The teachers see the same images as the student. They are not part of the state of this objective.

    Args:
        teachers: The trained networks; a `Teacher` where logits or features were normalised in training.
        teacher_share: a, in [0, 1].
        teacher_temperature: T, above 0.
        inner: The objective for the labels; None for `CrossEntropy`.

    Example:
        >>> import torch
        >>> from moon import Distill, lenet
        >>> student, teachers = lenet(), [lenet(), lenet()]
        >>> x, y = torch.randn(4, 1, 28, 28), torch.arange(4)
        >>> list(Distill(teachers).terms(student, x, y, epoch=0))
        ['cross_entropy', 'teachers']
    """

    def __init__(
        self,
        teachers: Iterable[nn.Module],
        teacher_share: float = 0.9,
        teacher_temperature: float = 4.0,
        inner: Objective | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= teacher_share <= 1 or not 0 < teacher_temperature < inf:
            raise ValueError(
                f"teacher_share={teacher_share} must be in [0, 1], and teacher_temperature={teacher_temperature} above "
                "0 and finite"
            )
        # In a tuple, so that they are not submodules: they are not trained, saved or put into training mode.
        self.teachers = tuple(each if isinstance(each, Teacher) else Teacher(each) for each in teachers)
        if not self.teachers:
            raise ValueError("Distill needs at least one teacher, a trained network")
        self.networks = tuple(teacher.model for teacher in self.teachers)
        self.teacher_share, self.teacher_temperature = teacher_share, teacher_temperature
        self.inner = inner or CrossEntropy()

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: Epoch) -> Terms:
        seen: list[tuple[Tensor, Tensor]] = []

        def forward(inputs: Tensor) -> Tensor:  # the inner objective may change the images
            seen.append((inputs, logits_of(model, inputs)))
            return seen[-1][1]

        terms = self.inner.terms(View(model, forward), x, y, epoch=epoch)
        inputs, logits = seen[0]
        if isinstance(inputs, Tensor):  # without outliers, rotated or blended copies
            inputs, logits = inputs[: len(y)], logits[: len(y)]
        taught = [teacher(inputs) for teacher in self.teachers]
        loss = distillation_loss(at_least_float32(logits), taught, self.teacher_temperature)
        share = self.teacher_share
        return {name: (1 - share) * term for name, term in terms.items()} | {"teachers": share * loss}

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        for teacher in self.teachers:  # `to` and `double` move and convert them, too
            teacher._apply(fn, recurse)
        return super()._apply(fn, recurse)
