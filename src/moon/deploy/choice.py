"""The detector that `auto` means for a run that is packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from moon.data import Benchmark
from moon.export.program import check_single_pass
from moon.recipe import Recipe, build
from moon.score.auto import AUTO, best_of, check_names, choose_by_rule
from moon.score.files import read_summary


class Named(NamedTuple):
    """A detector to pack.

    Args:
        name: Its name.
        options: Options in place of its defaults.
        why: Why it was chosen; "" if it was named.
    """

    name: str
    options: dict[str, Any]
    why: str = ""


def named_or_chosen(name: str, folder: Path, recipe: Recipe, benchmark: Benchmark) -> Named:
    """Find which detector to pack.

    `auto` is the choice that `moon score` recorded in the run folder, with the options that it was tuned to. If that
    detector cannot be packed, it is the next best of those that were compared, with default options. Without a record
    it is the one that the rule names.

    Args:
        name: The name of a detector, or `auto`.
        folder: The run folder.
        recipe: The run.
        benchmark: Its benchmark.

    Returns:
        The detector.

    Raises:
        ValueError: If there is no such detector, or it cannot be packed.
    """
    check_names([name])
    if name != AUTO:
        check_single_pass(build.detector(name, recipe, benchmark))
        return Named(name, {})
    summary = read_summary(folder) or {}
    if AUTO not in summary:
        choice = choose_by_rule(recipe.objective, benchmark.num_known)
        return Named(choice["detector"], {}, f"{choice['why']}; {folder.name} has no scores with a choice of auto")
    choice, refused = summary[AUTO], []
    ranked = [other for _, other in best_of(choice.get("auroc", {}))]
    for other in dict.fromkeys([choice["detector"], *ranked]):
        try:
            check_single_pass(build.detector(other, recipe, benchmark))
        except ValueError:
            refused.append(other)
            continue
        options = summary.get("search", {}).get(other, {}).get("chosen", {}) if not refused else {}
        instead = f"; the next best after {', '.join(refused)}, which cannot be packed" if refused else ""
        return Named(other, options, f"{choice['why']} (recorded by moon score){instead}")
    raise ValueError(f"auto chose {choice['detector']}, which cannot be packed, and compared no other; name a detector")
