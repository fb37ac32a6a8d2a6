"""The base class of training objectives, and what they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from inspect import Parameter, signature
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from moon.evidence import Inputs, logits_of
from moon.objectives.epoch import DeviceEpoch, Epoch, epoch_number
from moon.objectives.terms import Terms, total

Draw = Callable[[int], tuple[Tensor, Tensor]]  # draw(n): n random outliers and their classes, on the model's device


def at_least_float32(logits: Tensor) -> Tensor:
    """Convert half-precision logits to float32, so that autocast does not affect the loss.

    Args:
        logits: A floating-point tensor.

    Returns:
        The same tensor if it has 32 bits or more, otherwise a float32 copy.

    Example:
        >>> import torch
        >>> from moon.objectives.base import at_least_float32
        >>> at_least_float32(torch.zeros(2, dtype=torch.bfloat16)).dtype
        torch.float32
        >>> at_least_float32(torch.zeros(2, dtype=torch.float64)).dtype
        torch.float64
    """
    return logits.float() if logits.element_size() < 4 else logits


class Objective(nn.Module, ABC):
    """Base class of training objectives: a loss that runs the model's forward pass itself.

    Call an objective as `objective(model, x, y, epoch=epoch)`; it returns the loss of the batch as a scalar.

    A subclass must implement `terms`, and call `super().__init__()` first in its constructor, if any. It may also

    - set `extra_logits = 1` if it needs the unknown output; get the logits with `open_logits(model, x, self)` then;
    - set `rotates = True` if it needs a rotation head, and override `step_inputs` if it adds images to the batch;
    - compute the loss in float32 under autocast: `at_least_float32(logits_of(model, x))`. `moon.evidence.logits_of` is
      `model(x)` for a model that returns logits, and finds them in what other models return;
    - keep state in buffers. They are saved in checkpoints. A buffer whose shape is only known at the first batch starts
      as `torch.empty(0)`; `load_state_dict` gives it the saved shape;
    - have parameters of its own, such as those of `Vos`. The optimizer must update them as well:
      `SGD([*model.parameters(), *objective.parameters()], ...)`;
    - override `log` to add columns to the training log, and `phase` and `prepare` for captured steps, see below.

    Random numbers come from torch's default generator, which `Training` seeds at the start of each epoch.

    On a GPU, `Training` captures a step in a CUDA graph. Python code in `terms` then runs once for each value of
    `phase`, not in every step, and `epoch` is a `DeviceEpoch`. Buffers must be changed in place, and gradients with
    respect to anything but the weights must be computed inside `moon.fast.without_buffers()`. A subclass from outside
    this package that follows these rules declares `capturable = True` in its own body; other subclasses are trained
    without capturing.

    Attributes:
        extra_logits: The number of outputs that it needs beyond the K known classes: 0 or 1.
        rotates: Whether it needs a rotation head beside the classifier, see `moon.rotation_head`.
        reads_features: Whether the loss uses the model's features. Such an objective cannot be computed inside another
            one, which may change them.
        rates: The name of the learning-rate schedule that belongs to the method.
        vote_share: The fraction of epochs, at the end of a run, that vote; 0 for none.
        normalises_logits: Whether the loss does not depend on the scale of the model's logits or features, so that the
            scale of the logits is arbitrary. Detectors that depend on it divide the logits by a temperature
            fitted on validation images.
        capturable: Whether a step may be captured in a CUDA graph.
        networks: Other networks that a step runs but does not train, such as teachers.
        parts: Constructor arguments that are objects, and what builds each, such as `{"weight": AutoWeight}`. `takes`
            and `for_run` replace such an argument by the parameters of its builder.

    Example:
        >>> import torch
        >>> from moon import Objective
        >>> class SquaredError(Objective):
        ...     def terms(self, model, x, y, *, epoch):
        ...         return {"squared_error": (model(x) - torch.nn.functional.one_hot(y, 3)).square().mean()}
        >>> x, y = torch.zeros(2, 3), torch.tensor([0, 2])
        >>> loss = SquaredError()(torch.nn.Identity(), x, y, epoch=0)
        >>> round(loss.item(), 4)
        0.3333
    """

    extra_logits: ClassVar[int] = 0
    rotates: ClassVar[bool] = False
    reads_features: ClassVar[bool] = False
    rates: ClassVar[str] = "plain"
    vote_share: ClassVar[float] = 0.0
    normalises_logits: ClassVar[bool] = False
    capturable: ClassVar[bool] = True
    networks: tuple[nn.Module, ...] = ()
    parts: ClassVar[Mapping[str, Callable[..., object]]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(_resize_empty_buffers)

    @abstractmethod
    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: Epoch) -> Terms:
        """Compute the terms of the loss of one batch. A subclass must implement this.

        Args:
            model: The model to train; run it with `moon.evidence.logits_of` or `look`.
            x: The images of the batch.
            y: Their classes, integers in [0, K).
            epoch: The epoch, counted from 0; a `DeviceEpoch` in a captured step. Compare it with `has_started`, compute
                with `epoch_number(epoch)`.

        Returns:
            Named scalars; their sum is the loss. Each has a gradient with respect to the model's weights.
        """

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: Epoch) -> Tensor:
        """Compute the loss of one batch.

        Args:
            model: The model to train.
            x: The images of the batch.
            y: Their classes, integers in [0, K).
            epoch: The epoch, counted from 0.

        Returns:
            The loss, a scalar: the sum of `terms`.

        Raises:
            ValueError: If the optimizer does not update the parameters of this objective, or `terms` are not named
                scalars that depend on the model's weights.
        """
        if torch.is_grad_enabled():
            self._check_optimizer(model)
        return total(self.terms(model, x, y, epoch=epoch), model, type(self).__name__)

    def prepare(self, model: nn.Module, x: Tensor, epoch: int) -> None:
        """Create the buffers that the first step of a phase would create. Called before such a step is captured.

        The default calls `prepare` of the objectives inside this one.

        Args:
            model: The model to train.
            x: The images of a batch.
            epoch: The epoch, counted from 0.
        """
        for part in self._parts():
            part.prepare(model, x, epoch)

    def phase(self, epoch: int) -> Hashable:
        """Identify the branches that Python code takes in an epoch. A captured step is replayed only in its own phase.

        Override it if `terms` has a branch that depends on the epoch, and decide that branch with `has_started`. The
        default combines the phases of the objectives inside this one.

        Args:
            epoch: The epoch, counted from 0.

        Returns:
            Any hashable value that is the same in epochs that run the same Python code.
        """
        return tuple(part.phase(epoch) for part in self._parts())

    def step_inputs(self, x: Tensor) -> Tensor:
        """The images that a step runs the model on. After a vote, BatchNorm statistics are estimated from them.

        Args:
            x: The images of a batch.

        Returns:
            These images, and those that this objective, or the one inside it, adds.
        """
        for part in self.children():
            x = part.step_inputs(x) if isinstance(part, Objective) else x
        return x

    def view(self, model: nn.Module) -> nn.Module:
        """The model as the objective inside this one sees it: a `View` if this one normalises, else the model."""
        return model

    def logits(self, model: nn.Module, x: Inputs) -> Tensor:
        """The logits, (N, outputs), that the loss gets: those of the model, normalised if the objective does that."""
        view, parts = self.view(model), self._parts()
        return parts[0].logits(view, x) if parts else logits_of(view, x)

    def has_started(self, epoch: Epoch, first: float) -> bool | Tensor:
        """Whether training has reached the epoch `first`.

        In a captured step the epoch is a tensor on the device, which Python code must not wait for. If `phase`
        separates the epochs, the answer is known when the step is captured; otherwise it is a tensor.

        Args:
            epoch: The epoch that `terms` was given.
            first: The first epoch for which the answer is yes; it may be a fraction.

        Returns:
            A bool where Python code can decide it, otherwise a tensor on the device.

        Example:
            >>> from moon import CrossEntropy
            >>> CrossEntropy().has_started(3, first=4.5)
            False
        """
        is_decided = type(self).phase is not Objective.phase
        if is_decided and isinstance(epoch, DeviceEpoch):
            return epoch.host >= first
        return epoch_number(epoch) >= first

    def _check_optimizer(self, model: nn.Module) -> None:
        """Raise a ValueError if `zero_grad` cleared the gradients of the model but not those of this objective."""
        if all(parameter.grad is None for parameter in self.parameters()):
            return
        gradients = [parameter.grad for parameter in model.parameters() if parameter.requires_grad]
        if gradients and all(gradient is None for gradient in gradients):
            raise ValueError(
                f"{type(self).__name__} has parameters of its own, which the optimizer does not update: their "
                "gradients were not cleared together with the model's. Build the optimizer from both, such as "
                "torch.optim.SGD([*model.parameters(), *objective.parameters()], lr=0.1), and call its zero_grad()"
            )

    def _parts(self) -> list[Objective]:
        """The objectives inside this one, from the outermost to the innermost."""
        return [part for part in self.modules() if part is not self and isinstance(part, Objective)]

    @classmethod
    def takes(cls) -> dict[str, Parameter]:
        """The parameters of `for_run`: those of the constructor, with each of `parts` replaced by its own parameters.

        Parameters with a scalar default are options that a recipe can set. The others are facts of the run, which are
        filled in by name: `epochs`, `num_known`, `num_features`, and for a set of outliers `outliers` (a function that
        draws n outliers and their classes) and `outlier_classes`.

        Returns:
            The parameters by name.

        Example:
            >>> from moon import Dac
            >>> list(Dac.takes())
            ['epochs', 'quiet_epochs', 'final', 'init_factor', 'smoothing', 'schedule']
        """
        made = dict(signature(cls).parameters)
        for name, make in cls.parts.items():
            del made[name]
            made |= signature(make).parameters
        return made

    @classmethod
    def for_run(cls, **values: Any) -> Self:
        """Build the objective from plain values.

        Args:
            **values: Values of the parameters that `takes` lists.

        Returns:
            The objective.

        Example:
            >>> from moon import Moon
            >>> Moon.for_run(epochs=100, final=2.0).log(99)
            {'w': 2.0}
        """
        parts = {
            name: make(**{key: values.pop(key) for key in signature(make).parameters if key in values})
            for name, make in cls.parts.items()
        }
        return cls(**parts, **values)

    def log(self, epoch: int) -> dict[str, float]:
        """Values to record in the training log.

        Args:
            epoch: The epoch that has ended, counted from 0.

        Returns:
            Named numbers, one column each; by default those of the objective inside this one, if any.
        """
        parts = self._parts()
        return parts[0].log(epoch) if parts else {}


def _resize_empty_buffers(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Give buffers that are still empty the shape of the saved ones."""
    for name, buffer in module.named_buffers(recurse=False):
        saved = state.get(prefix + name)
        if saved is not None and buffer.numel() == 0:
            setattr(module, name, torch.empty_like(saved, device=buffer.device))
