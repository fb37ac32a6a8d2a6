"""How known an input is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from inspect import signature
from typing import Any, ClassVar, Literal, Self

from torch import Tensor, nn

from moon.evidence import Evidence


class Detector(ABC):
    """Scores evidence: higher is more known, always.

    Each detector says in its docstring what it does with the K+1-th output. The rule of all: the unknown output may
    lower the score of known, never raise it. Detectors whose public code breaks it take `released=True` to do as
    that code does.
    """

    fits_on: ClassVar[Literal["nothing", "train", "validation", "both"]] = "nothing"  # the known data `fit` wants
    grid: ClassVar[Mapping[str, tuple]] = {}  # values worth trying, where there are validation unknowns to choose by
    parts: Mapping[str, Detector] = {}  # of a detector that combines others: those, by name

    def perturb(self, model: nn.Module, x: Tensor) -> Tensor:
        """The input to look at in place of x; ODIN's differs."""
        return x

    @property
    def perturbs(self) -> bool:
        """Whether this detector needs a forward pass of its own."""
        return type(self).perturb is not Detector.perturb

    @property
    def fits_on_splits(self) -> tuple[str, ...]:
        """The same, one by one: evidence of these, in this order, is what `fit` is called with."""
        return {"nothing": (), "both": ("train", "validation")}.get(self.fits_on, (self.fits_on,))

    def fit(self, evidence: Evidence) -> Self:
        """Learn from evidence of known inputs; `fit(training, validation)` where both are wanted."""
        return self

    @abstractmethod
    def score(self, evidence: Evidence) -> Tensor:
        """(N,): how known each input is."""

    def score_given(self, evidence: Evidence, scores: Mapping[str, Tensor]) -> Tensor:
        """`score`, where some of the parts' scores of this evidence are there already."""
        return self.score(evidence)

    def options(self) -> dict[str, Any]:
        """The arguments it was made with; they and the state make it again."""
        return {name: getattr(self, name) for name in signature(type(self)).parameters}

    def state_dict(self) -> dict[str, Tensor]:
        """What `fit` learned: the tensors among the attributes."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        vars(self).update(state)

    def _fitted(self, name: str) -> Tensor:
        """The attribute that `fit` sets, or a clear word that it was not called."""
        value = getattr(self, name, None)
        if value is None:
            raise ValueError(f"{type(self).__name__} is not fitted; call fit(evidence of known inputs) first")
        return value
