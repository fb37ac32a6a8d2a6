"""The temperature of each detector in `scores.json`, and files of versions that did not record it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from moon.detect import TemperatureScaling
from moon.evidence import Evidence
from moon.recipe import table
from moon.recipe.variants import ASSUMED, FITTED, LOSS, SUFFIX, Variant, normalises_logits, temperature_from
from moon.suggest import counted

P_UNKNOWN, UNSCALED = "p_unknown", "p_unknown_unscaled"  # at the temperature of the run, and at T = 1 where it differs
NO_OPTIMUM = "no_optimum"  # True in the record of a temperature that validation images do not determine

_log = logging.getLogger(__name__)


def fit_temperature(validation: Evidence, where: object) -> TemperatureScaling:
    """Fit the temperature of a network, with a warning if the validation images do not determine it.

    Args:
        validation: Evidence of validation images.
        where: The run, for the warning.

    Returns:
        The fitted scaling.
    """
    scaling = TemperatureScaling().fit(validation)
    if scaling.no_optimum:
        _log.warning(
            "%s: the temperature fitted on %s, T = %.3g, is not an optimum, so probabilities are not calibrated, "
            "usually because these images are all classified correctly, or no better than at random; more of them may "
            "help",
            where,
            counted(len(validation), "validation image"),
            scaling.temperature,
        )
    return scaling


def temperatures(
    names: Iterable[str], objective: str, fitted: float | None, no_optimum: bool = False
) -> dict[str, dict[str, Any]]:
    """The temperatures by which detectors divide the logits, and where they come from.

    Args:
        names: The detectors. Those that do not depend on the scale of the logits are skipped.
        objective: The objective of the run.
        fitted: The temperature fitted on validation images. If it is not known, detectors that use it are skipped.
        no_optimum: Whether these images do not determine it, which is recorded.

    Returns:
        `{"value": ..., "from": ...}` for each detector.

    Example:
        >>> from moon.score.temperatures import temperatures
        >>> temperatures(["msp", "ebo", "ebo:unscaled"], "logitnorm", 0.135)["ebo"]
        {'value': 0.135, 'from': 'fitted on validation images'}
        >>> temperatures(["msp", "ebo"], "cross-entropy", 1.4)
        {'ebo': {'value': 1.0, 'from': 'the loss'}}
        >>> temperatures(["ebo:temperature=2"], "cross-entropy", 1.4)
        {'ebo:temperature=2': {'value': 2.0, 'from': 'the name of the detector'}}
    """
    note = {NO_OPTIMUM: True} if no_optimum else {}
    sources = {name: temperature_from(name, objective) for name in names if name.partition(":")[0] in table("detector")}
    found: dict[str, dict[str, Any]] = {}
    for name, source in sources.items():
        if source == FITTED and fitted is not None:
            found[name] = {"value": fitted * Variant.of(name).temperature, "from": source, **note}
        elif source not in (FITTED, None):
            found[name] = {"value": Variant.of(name).temperature, "from": source}
    return found


def p_unknown_temperature(objective: str, fitted: float | None, no_optimum: bool = False) -> dict[str, dict[str, Any]]:
    """The entry of p_unknown among the temperatures; the rule is that of the detector `unknown`."""
    found = temperatures(["unknown"], objective, fitted, no_optimum)
    return {P_UNKNOWN: found["unknown"]} if found else {}


def assumed(found: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The temperatures of a checkpoint: T = 1 is that of its loss only if its logits were not normalised.

    Args:
        found: What `temperatures` returned for the objective that was assumed.

    Returns:
        The same with other sources.

    Example:
        >>> from moon.score.temperatures import assumed, temperatures
        >>> assumed(temperatures(["ebo:unscaled"], "cross-entropy", 1.4))
        {'ebo:unscaled': {'value': 1.0, 'from': 'the suffix :unscaled'}}
    """
    sources = {name: SUFFIX if name.endswith(":unscaled") else ASSUMED for name in found}
    return {
        name: {**each, "from": sources[name] if each["from"] == LOSS else each["from"]} for name, each in found.items()
    }


def current_names(names: Iterable[str], objective: str) -> dict[str, str]:
    """What the detectors of an older file are called now.

    Older versions scored every detector without a suffix at T = 1. For an objective that normalises logits such a
    detector is now `NAME:unscaled`, and `NAME` is what was `NAME:scaled`.

    Args:
        names: The names in the file.
        objective: The objective of the run.

    Returns:
        The old name of each detector by its current name.

    Example:
        >>> from moon.score.temperatures import current_names
        >>> current_names(["msp", "ebo", "gen", "ebo:scaled"], "logitnorm")
        {'msp': 'msp', 'ebo': 'ebo:scaled', 'gen:unscaled': 'gen', 'ebo:unscaled': 'ebo'}
        >>> current_names(["ebo", "ebo:scaled"], "moon")
        {'ebo': 'ebo', 'ebo:scaled': 'ebo:scaled'}
    """
    old = list(names)
    if not _is_arbitrary(objective):
        return {name: name for name in old}
    found: dict[str, str] = {}
    for name in old:
        base = name.removesuffix(":scaled")
        if name.partition(":")[0] not in table("detector") or temperature_from(base, objective) != FITTED:
            found[name] = name
        elif base in old and f"{base}:scaled" in old:  # the two change places
            new = base if name == base else f"{base}:unscaled"
            found[new] = f"{base}:scaled" if name == base else base
        else:
            found[f"{name}:unscaled" if name == base else base] = name
    return found


def upgraded(summary: Mapping[str, Any], objective: str) -> dict[str, Any]:
    """The content of a `scores.json` without temperatures, as the current version would have written it.

    Args:
        summary: The content of the file.
        objective: The objective of the run.

    Returns:
        The content with `temperatures` and the current names; values are unchanged.
    """
    renamed = {
        key: {new: summary[key][old] for new, old in current_names(summary[key], objective).items()}
        for key in ("detectors", "left_out", "search")
        if key in summary
    }
    result = {**summary, **renamed, "temperatures": {}}
    if objective not in table("objective"):  # of a package that is not installed
        return result
    if _is_arbitrary(objective) and summary.get(P_UNKNOWN):
        result |= {P_UNKNOWN: {}, UNSCALED: summary[P_UNKNOWN]}
    fitted = summary.get("known_scaled", {}).get("temperature")
    result["temperatures"] = temperatures(result["detectors"], objective, fitted)
    if result.get(P_UNKNOWN):
        result["temperatures"] |= p_unknown_temperature(objective, fitted)
    return result


def _is_arbitrary(objective: str) -> bool:
    """Whether the scale of the logits is arbitrary; False for objectives of packages that are not installed."""
    return objective in table("objective") and normalises_logits(objective)
