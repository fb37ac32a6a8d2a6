"""Names of detectors with variants, `NAME[:released][:scaled or :unscaled]`, and the temperature each one means."""

from __future__ import annotations

from inspect import signature
from typing import NamedTuple

from moon.recipe.registry import pick, table

FITTED, LOSS, SUFFIX = "fitted on validation images", "the loss", "the suffix :unscaled"  # where a temperature is from


class Variant(NamedTuple):
    """A detector as it is named on the command line and in `scores.json`.

    Args:
        key: The name of the detector.
        is_released: Whether it treats the K+1-th output as the public code does.
        scale: "scaled" for the fitted temperature, "unscaled" for T = 1, "" for the one that the run determines.
    """

    key: str
    is_released: bool
    scale: str

    @classmethod
    def of(cls, name: str) -> Variant:
        """Read a name.

        Args:
            name: Such as `ebo`, `ebo:scaled` or `ebo:released:unscaled`.

        Returns:
            Its parts.

        Raises:
            ValueError: If there is no such detector, or the detector has no such variant.
        """
        key, *suffixes = name.split(":")
        kind = pick("detector", key)
        is_released = suffixes[:1] == ["released"]
        if is_released and "released" not in signature(kind).parameters:
            raise ValueError(f"detector '{key}' has no variant 'released'")
        scale, *rest = suffixes[is_released:] or [""]
        if rest or scale not in ("", "scaled", "unscaled"):
            raise ValueError(f"detector '{key}' has no variant '{':'.join(suffixes)}'")
        if scale and not kind.depends_on_scale:
            names = ", ".join(name for name, other in table("detector").items() if other.depends_on_scale)
            instead = "; tempscale is MSP at the fitted temperature" if key == "msp" else ""
            raise ValueError(
                f"detector '{key}' has no variant '{scale}'; those that depend on the scale of the logits have: "
                f"{names}{instead}"
            )
        return cls(key, is_released, scale)


def temperature_from(name: str, objective: str) -> str | None:
    """Where the temperature comes from by which a detector divides the logits of a run.

    Without a suffix it is fitted on validation images if the objective normalises logits, because the scale of the
    network's logits is then arbitrary. Otherwise T = 1, the scale of the softmax in the loss.

    Args:
        name: The detector, with its variants.
        objective: The name of the run's objective.

    Returns:
        `FITTED`, or `LOSS` or `SUFFIX` for T = 1; None for detectors that do not depend on the scale of the logits.
    """
    variant = Variant.of(name)
    if not pick("detector", variant.key).depends_on_scale:
        return None
    is_arbitrary = normalises_logits(objective)
    if variant.scale == "scaled" or (is_arbitrary and not variant.scale):
        return FITTED
    return SUFFIX if is_arbitrary else LOSS


def normalises_logits(objective: str) -> bool:
    """Whether the scale of the logits of networks trained with this objective is arbitrary."""
    return pick("objective", objective).normalises_logits
