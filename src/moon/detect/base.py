"""The interface that all detectors implement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from inspect import signature
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from moon.evidence import Evidence, is_finite


def _checked(fit: Callable[..., Any]) -> Callable[..., Any]:
    """A `fit` that first checks its evidence: one NaN would make all scores NaN, or a threshold meaningless."""

    @wraps(fit)
    def wrapper(self: Detector, *evidence: Evidence | None, **more: Evidence | None) -> Any:
        named = {key: _prepared(each, self) for key, each in more.items()}
        return fit(self, *(_prepared(each, self) for each in evidence), **named)

    return wrapper


def _prepared(evidence: Any, detector: Detector) -> Any:
    """Evidence to fit on, with labels that can be used as indices; raises a ValueError if it cannot be used."""
    if not isinstance(evidence, Evidence):
        return evidence
    prefix = f"{type(detector).__name__} cannot be fitted: "
    for name in ("logits", "features", *(["layers"] if detector.layered else [])):
        if (part := getattr(evidence, name)) is not None and not is_finite(part):
            raise ValueError(f"{prefix}{name} contain NaN or infinity")
    labels, known = evidence.labels, evidence.num_known
    if labels is None or not len(labels):
        return evidence
    if labels.is_floating_point():
        raise ValueError(f"{prefix}labels are {labels.dtype}; they must be integers")
    if labels.dtype != torch.int64:  # uint8 and bool would be masks, and int16 is no index
        evidence = replace(evidence, labels=(labels := labels.long()))
    if (least := int(labels.min())) < 0:
        raise ValueError(f"{prefix}label {least}; fit on known inputs only, whose labels are 0..{known - 1}")
    if (largest := int(labels.max())) >= known:
        raise ValueError(f"{prefix}label {largest}, but the known classes are 0..{known - 1}")
    return evidence


class Detector(ABC):
    """Base class of detectors: a detector scores how known each input is. Higher always means more known.

    A subclass implements `score` and, if it learns from known inputs, `fit`. Its docstring states how it treats the
    K+1-th (unknown) output. One rule holds for all detectors: the unknown output may lower a score but never raise it.
    Detectors whose public code breaks this rule accept `released=True`, which reproduces that code.

    Attributes:
        fits_on: The known data that `fit` needs: "nothing", "train", "validation" or "both".
        grid: Option values to try when there are unknown inputs to tune on.
        parts: The detectors that this one combines, by name. Empty for most detectors.
        depends_on_scale: Whether the score is meaningless for logits of an arbitrary scale, as the energy is. For runs
            with such logits it is applied to logits / T by default, see `Scaled`, and there are variants `NAME:scaled`
            and `NAME:unscaled`.
        can_be_scaled: Whether the order of the scores changes with the scale of the logits, but `NAME` is at T = 1 in
            all runs, as KLM is. There is a variant `NAME:scaled`.
        rotates: Whether it scores `Evidence.rotations`, for which the model runs on four rotations of each input.
        layered: Whether it scores `Evidence.layers`.

    Example:
        A new detector needs only `score`:

        >>> import torch
        >>> from moon import Detector, Evidence
        >>> class Margin(Detector):
        ...     def score(self, evidence):
        ...         top = evidence.known.topk(2, dim=1).values
        ...         return top[:, 0] - top[:, 1]
        >>> evidence = Evidence(torch.tensor([[4.0, 0.0], [1.0, 1.0]]), torch.zeros(2, 8), num_known=2)
        >>> Margin().score(evidence)
        tensor([0.9640, 0.0000])
    """

    fits_on: ClassVar[Literal["nothing", "train", "validation", "both"]] = "nothing"
    grid: ClassVar[Mapping[str, tuple]] = {}
    parts: Mapping[str, Detector] = {}
    depends_on_scale: ClassVar[bool] = False
    can_be_scaled: ClassVar[bool] = False
    rotates: bool = False
    layered: ClassVar[bool] = False

    def __init_subclass__(cls, **settings: Any) -> None:
        """Let `fit` of every subclass reject evidence that is not finite."""
        super().__init_subclass__(**settings)
        if "fit" in vars(cls):
            cls.fit = _checked(vars(cls)["fit"])

    def perturb(self, model: nn.Module, x: Tensor) -> Tensor:
        """Change a batch of inputs before the forward pass. Only ODIN does; the default returns `x`.

        Args:
            model: The model that the inputs are for.
            x: A batch of inputs.

        Returns:
            The inputs to run the model on, of the same shape.
        """
        return x

    @property
    def perturbs(self) -> bool:
        """Whether the detector changes its inputs and therefore needs a separate forward pass."""
        return type(self).perturb is not Detector.perturb

    @property
    def reading(self) -> dict[str, Any]:
        """The arguments of `read` for the evidence that this detector scores; empty if ordinary evidence is enough."""
        return ({"perturb": self.perturb} if self.perturbs else {}) | ({"rotate": True} if self.rotates else {})

    @property
    def fits_on_splits(self) -> tuple[str, ...]:
        """`fits_on` as a tuple of splits: `fit` takes evidence of these, in this order."""
        return {"nothing": (), "both": ("train", "validation")}.get(self.fits_on, (self.fits_on,))

    def fit(self, evidence: Evidence) -> Self:
        """Learn from evidence of known inputs. The default learns nothing.

        Args:
            evidence: Evidence of the known inputs that `fits_on` names. Detectors with `fits_on = "both"` take two
                arguments: `fit(training, validation)`.

        Returns:
            The detector itself.

        Raises:
            ValueError: If the evidence contains NaN, infinity or labels of no known class, or lacks something that the
                detector needs, such as labels or a head.
        """
        return self

    @abstractmethod
    def score(self, evidence: Evidence) -> Tensor:
        """Score how known each input is.

        Args:
            evidence: Evidence of N inputs.

        Returns:
            A tensor of shape (N,). Higher means more known.

        Raises:
            ValueError: If the detector needs `fit` and was not fitted.
        """

    def score_given(self, evidence: Evidence, scores: Mapping[str, Tensor]) -> Tensor:
        """Compute `score`, reusing scores of `parts` that were already computed.

        Args:
            evidence: Evidence of N inputs.
            scores: Scores of the same inputs, by the names in `parts`. Missing ones are computed.

        Returns:
            The same tensor as `score(evidence)`.
        """
        return self.score(evidence)

    def options(self) -> dict[str, Any]:
        """Return the constructor arguments of this detector.

        Returns:
            A dictionary; `type(detector)(**detector.options())` with `load_state_dict` restores the detector.
        """
        return {name: getattr(self, name) for name in signature(type(self)).parameters}

    def state_dict(self) -> dict[str, Tensor]:
        """Return what `fit` learned.

        Returns:
            The tensors among the attributes, by name. Empty before `fit`.
        """
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `fit` learned.

        Args:
            state: The result of `state_dict` of a detector with the same options.
        """
        vars(self).update(state)

    def _labels(self, evidence: Evidence, *, of_all_classes: bool = False) -> Tensor:
        """The labels of the inputs that `fit` gets; a ValueError if there are none, or none of one of all classes."""
        if evidence.labels is None:
            raise ValueError(f"{type(self).__name__} needs the labels of the known inputs it is fitted on")
        if of_all_classes and (missing := set(range(evidence.num_known)) - set(evidence.labels.unique().tolist())):
            raise ValueError(f"no known input of class {min(missing)} to fit {type(self).__name__} on")
        return evidence.labels

    def _fitted(self, name: str) -> Tensor:
        """Return an attribute that `fit` sets, or raise a clear error if `fit` was not called."""
        value = getattr(self, name, None)
        if value is None:
            raise ValueError(f"{type(self).__name__} is not fitted; call fit(evidence of known inputs) first")
        return value
