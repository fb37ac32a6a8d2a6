"""MOON on normalised logits: LogitNorm's normalisation, then Eq. (1) over the K+1 outputs."""

from __future__ import annotations

from moon.objectives.auto_weight import AutoWeight
from moon.objectives.logitnorm import LogitNorm
from moon.objectives.moon import Moon


class MoonLogitNorm(LogitNorm):
    """MOON on normalised logits: `LogitNorm(inner=Moon(weight))`, with MOON's learning rates and vote.

    z' = z / (temperature * |z|) over all K+1 outputs; the loss and the observed beta are those of MOON at z'.

    Args:
        weight: w, an `AutoWeight` or a constant, as for `Moon`.
        temperature: The normalised logits have norm 1 / temperature.

    Example:
        >>> import torch
        >>> from moon import AutoWeight, MoonLogitNorm, open_head
        >>> model = open_head(torch.nn.Linear(8, 4))
        >>> objective = MoonLogitNorm(AutoWeight(epochs=100), temperature=0.04)
        >>> x, y = torch.randn(16, 8), torch.arange(16) % 4
        >>> objective(model, x, y, epoch=0).backward()
        >>> objective.log(99)
        {'w': 1.0}
    """

    extra_logits, rates, vote_share, parts = Moon.extra_logits, Moon.rates, Moon.vote_share, Moon.parts

    def __init__(self, weight: AutoWeight | float, temperature: float = 0.04) -> None:
        super().__init__(temperature, Moon(weight))
