"""MOON on normalised logits: LogitNorm's normalisation, then Eq. (1) over the K+1 outputs."""

from __future__ import annotations

from typing import Self

from moon.objectives.auto_weight import AutoWeight
from moon.objectives.logitnorm import LogitNorm
from moon.objectives.moon import Moon


class MoonLogitNorm(LogitNorm):
    """`LogitNorm(inner=Moon(...))`, with MOON's learning rates and vote.

    z' = z / (temperature * |z|) over all K+1 outputs; L and the observed beta are those of MOON at z'.
    """

    extra_logits, rates, vote_share = Moon.extra_logits, Moon.rates, Moon.vote_share

    def __init__(self, weight: AutoWeight | float, temperature: float = 0.04) -> None:
        super().__init__(temperature, Moon(weight))

    @classmethod
    def for_run(
        cls,
        *,
        epochs: int,
        temperature: float = 0.04,
        quiet_epochs: int = 5,
        final: float = 1.0,
        init_factor: float = 64.0,
        smoothing: float = 0.05,
    ) -> Self:
        return cls(AutoWeight(epochs, quiet_epochs, final, init_factor, smoothing), temperature)
