"""MOON on normalised logits: LogitNorm's normalisation, then Eq. (1) over the K+1 outputs."""

from __future__ import annotations

from moon.objectives.auto_weight import AutoWeight
from moon.objectives.logitnorm import LogitNorm
from moon.objectives.moon import Moon


class MoonLogitNorm(LogitNorm):
    """`LogitNorm(inner=Moon(...))`, with MOON's learning rates and vote.

    z' = z / (temperature * |z|) over all K+1 outputs; L and the observed beta are those of MOON at z'.
    """

    extra_logits, rates, vote_share, parts = Moon.extra_logits, Moon.rates, Moon.vote_share, Moon.parts

    def __init__(self, weight: AutoWeight | float, temperature: float = 0.04) -> None:
        super().__init__(temperature, Moon(weight))
