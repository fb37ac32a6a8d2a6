"""Names of detectors with variants, and the temperature each one means.

A name is `NAME[:released][:PART+PART...][:OPTION=VALUE,...][:scaled or :unscaled]`, where only combinations have parts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from inspect import Parameter, signature
from math import isfinite
from typing import Any, NamedTuple

from moon.detect import Detector, Scaled
from moon.detect.fisher import PARTS
from moon.recipe.registry import full_name, pick, table
from moon.suggest import did_you_mean

# Where a temperature is from.
FITTED, LOSS, SUFFIX = "fitted on validation images", "the loss", "the suffix :unscaled"
NAME = "the name of the detector"
ASSUMED = "assumed: a checkpoint does not say how its logits were scaled in training"


class Variant(NamedTuple):
    """A detector as it is named on the command line and in `scores.json`.

    Args:
        key: The name of the detector.
        is_released: Whether it treats the K+1-th output as the public code does.
        scale: "scaled" for the fitted temperature, "unscaled" for T = 1, "" for the one that the run determines.
        parts: The detectors that a combination combines; empty for its default.
        options: Options in place of the detector's defaults, by name.
    """

    key: str
    is_released: bool
    scale: str
    parts: tuple[str, ...] = ()
    options: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, name: str) -> Variant:
        """Read a name.

        Args:
            name: Such as `ebo`, `ebo:scaled`, `ebo:released:unscaled`, `knn:k=5` or `fisher:msp+knn`.

        Returns:
            Its parts.

        Raises:
            ValueError: If there is no such detector, or the detector has no such variant or option.

        Example:
            >>> from moon.recipe.variants import Variant
            >>> Variant.of("gen:gamma=0.5,top=3").options
            (('gamma', 0.5), ('top', 3))
        """
        key, *suffixes = detector_name(name).split(":")
        kind = pick("detector", key)
        if "" in suffixes:
            raise ValueError(f"detector '{name}' has an empty variant; leave out the ':' or name a variant")
        is_released = suffixes[:1] == ["released"]
        if is_released and "released" not in signature(kind).parameters:
            raise ValueError(f"detector '{key}' has no variant 'released'")
        suffixes = suffixes[is_released:]
        parts = _parts(key, suffixes.pop(0)) if suffixes and "+" in suffixes[0].partition("=")[0] else ()
        options = _options(key, suffixes.pop(0)) if suffixes and "=" in suffixes[0] else ()
        scale, *rest = suffixes or [""]
        if rest or scale not in ("", "scaled", "unscaled"):
            such = f"; name its parts as {key}:msp+knn" if "parts" in signature(kind).parameters else ""
            if any(mark in suffix for suffix in suffixes for mark in ("released", "+", "=")):
                such = f"; the order is {key}:released:PART+PART:OPTION=VALUE:scaled, where each may be left out"
            raise ValueError(f"detector '{key}' has no variant '{':'.join(suffixes)}'{such}")
        if scale and not _depends_on_scale(key, parts):
            _check_scaled(key, scale)
        return cls(key, is_released, scale, parts, options)

    @property
    def temperature(self) -> float:
        """By which the detector itself divides logits."""
        return dict(self.options).get("temperature", 1.0)

    @property
    def uses_usual_k(self) -> bool:
        """Whether KNN, alone or as a part, looks for the neighbour that `usual_k` names."""
        has_knn = self.key == "knn" or (self.key == "fisher" and "knn" in (self.parts or PARTS))
        return has_knn and "k" not in dict(self.options)

    def make(self, is_fitted: bool, **options: Any) -> Detector:
        """Construct the detector.

        Args:
            is_fitted: Whether a detector that depends on the scale of the logits gets logits / T, with the fitted T.
            **options: Its options; those of the name win.

        Returns:
            The detector. A combination applies T to those of its parts that depend on the scale.
        """
        kind = pick("detector", self.key)
        options |= self.options
        if self.is_released:
            options = {"released": True} | options
        if self.parts:
            return kind(**{"parts": self.parts, "scaled": is_fitted} | options)
        return Scaled(kind(**options)) if is_fitted else kind(**options)


def detector_name(name: str) -> str:
    """The name with the detectors in it as they are listed: `mls:scaled` for `MaxLogit:scaled`."""
    return ":".join(full_name("detector", part) for part in name.split(":"))


def _parts(key: str, text: str) -> tuple[str, ...]:
    """The parts of a combination, such as `msp+knn`; a ValueError if there is no such combination."""
    kind = pick("detector", key)
    if "parts" not in signature(kind).parameters:
        raise ValueError(f"detector '{key}' does not combine others, so it has no variant '{text}'")
    parts = tuple(text.split("+"))
    if "" in parts:
        raise ValueError(f"detector '{key}:{text}' has an empty part; name its parts as {key}:msp+knn")
    for part in parts:
        pick("detector", part)
    kind(parts=parts)  # says which ones cannot be combined
    return parts


def _options(key: str, text: str) -> tuple[tuple[str, float], ...]:
    """The options in a name, such as `gamma=0.5,top=3`; a ValueError if there is no such option or value."""
    detector = pick("detector", key)
    types = {name: kind for name, p in signature(detector).parameters.items() if (kind := _number(p))}
    found: dict[str, float] = {}
    for each in text.split(","):
        name, _, value = each.partition("=")
        if name not in types:
            choices = f"choose from: {', '.join(types)}" if types else "it has none"
            raise ValueError(f"detector '{key}' has no option '{name}'{did_you_mean(name, types)}; {choices}")
        if name in found:
            raise ValueError(f"detector '{key}:{text}' has the option '{name}' twice")
        try:
            found[name] = types[name](value)
            is_number = isfinite(found[name])
        except ValueError:
            is_number = False
        if not is_number:
            kind = "an integer" if types[name] is int else "a number"
            raise ValueError(f"option '{name}' of '{key}' must be {kind}, not '{value}'")
    return tuple(found.items())


def _number(parameter: Parameter) -> type[int] | type[float] | None:
    """The type of a parameter that is a number: by its annotation, such as `int | None`, or else by its default."""
    annotation = type(parameter.default) if parameter.annotation is Parameter.empty else parameter.annotation
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    words = {*re.findall(r"\w+", text)} - {"typing", "Optional", "Union", "None"}
    return (float if "float" in words else int) if words and words <= {"int", "float"} else None


def _check_scaled(key: str, scale: str) -> None:
    """Raise a ValueError unless a detector, whose default is T = 1 in all runs, has this variant."""
    if pick("detector", key).can_be_scaled:
        if scale == "unscaled":
            raise ValueError(f"detector '{key}' is at T = 1 in all runs and has no variant 'unscaled'; use '{key}'")
        return
    depend = [name for name, kind in table("detector").items() if kind.depends_on_scale]
    others = [name for name, kind in table("detector").items() if kind.can_be_scaled] if scale == "scaled" else []
    instead = "; tempscale is MSP at the fitted temperature" if key == "msp" else ""
    raise ValueError(
        f"detector '{key}' has no variant '{scale}'; those that depend on the scale of the logits have: "
        f"{', '.join(depend + others)}{instead}"
    )


def _depends_on_scale(key: str, parts: Sequence[str]) -> bool:
    """Whether a detector, or one of the parts of a combination, depends on the scale of the logits."""
    return any(pick("detector", name).depends_on_scale for name in (key, *parts))


def temperature_from(name: str, objective: str) -> str | None:
    """Where the temperature comes from by which a detector divides the logits of a run.

    Without a suffix it is fitted on validation images if the objective normalises logits, because the scale of the
    network's logits is then arbitrary. Otherwise T = 1, the scale of the softmax in the loss. Some detectors
    (`Detector.can_be_scaled`) divide the logits with the suffix `:scaled` only.

    Args:
        name: The detector, with its variants.
        objective: The name of the run's objective.

    Returns:
        `FITTED`, `NAME` for an option, or `LOSS` or `SUFFIX` for T = 1; None for detectors that are computed from the
        logits as they are in all runs.
    """
    variant = Variant.of(name)
    if not _depends_on_scale(variant.key, variant.parts):
        return FITTED if variant.scale else None
    is_arbitrary = normalises_logits(objective)
    if variant.scale == "scaled" or (is_arbitrary and not variant.scale):
        return FITTED
    if variant.temperature != 1:
        return NAME
    return SUFFIX if is_arbitrary else LOSS


def normalises_logits(objective: str) -> bool:
    """Whether the scale of the logits of networks trained with this objective is arbitrary."""
    return pick("objective", objective).normalises_logits
