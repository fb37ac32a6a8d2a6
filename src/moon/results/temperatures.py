"""By which temperatures detectors divided the logits of some runs, as a remark below a table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from moon.recipe.variants import ASSUMED, FITTED, LOSS, NAME, SUFFIX
from moon.score.temperatures import NO_OPTIMUM, P_UNKNOWN, UNSCALED

_SOURCES = {
    LOSS: "as in the loss",
    FITTED: FITTED,
    SUFFIX: "not fitted",
    NAME: "as named",
    ASSUMED: "assumed for a checkpoint (if its logits were normalised in training, name detectors with :scaled)",
}


def describe_temperatures(runs: Iterable[Mapping[str, Any]], names: Collection[str] | None = None) -> str:
    """Describe the temperatures of detectors, or of those named, that depend on the scale of the logits.

    One line for the scores.json of some runs; an empty string if there is nothing to describe.
    """
    runs = list(runs)
    found: dict[str, list[tuple[int, str, float, bool]]] = {source: [] for source in _SOURCES}
    only_unscaled: list[tuple[int, str]] = []
    for number, run in enumerate(runs):
        for name, temperature in run.get("temperatures", {}).items():
            if names is None or name in names:
                found[temperature["from"]].append((number, name, temperature["value"], NO_OPTIMUM not in temperature))
        unscaled = [name for name in run.get("detectors", ()) if name.endswith(":unscaled")]
        lacking = {name: name.removesuffix(":unscaled") for name in unscaled}
        lacking = {name: other for name, other in lacking.items() if other not in run["detectors"]}
        if run.get(UNSCALED) and not run[P_UNKNOWN]:
            lacking[P_UNKNOWN] = P_UNKNOWN
        only_unscaled += [(number, b) for a, b in lacking.items() if names is None or a in names or b in names]
    parts = []
    for source, entries in found.items():
        if entries:
            values = [value for _, _, value, _ in entries]
            low, high = f"{min(values):.3g}", f"{max(values):.3g}"
            value = low if low == high else f"{low} to {high}"
            optimal = {entry[3] for entry in entries}
            note = "" if optimal == {True} else " (not always an optimum)" if True in optimal else " (not an optimum)"
            parts.append(f"T = {value}, {_SOURCES[source]}{note}{_which(entries, len(runs))}")
    text = f"Logits are divided by {'; '.join(parts)}" if parts else ""
    if only_unscaled:
        lacks = f"Not scored at the fitted T{_which(only_unscaled, len(runs))}"
        text = f"{text}. {lacks}" if text else lacks
    return text


def _which(entries: Iterable[tuple], runs: int) -> str:
    """The names of some entries, with the number of runs if not all runs have one."""
    entries = list(entries)
    count = len({entry[0] for entry in entries})
    names = ", ".join(dict.fromkeys(entry[1] for entry in entries))
    return f": {names}" if count == runs else f" ({count} of {runs} runs): {names}"
