"""The detector that `auto` means for a run that is packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from moon.data import Benchmark
from moon.errors import DamagedCheckpoint
from moon.export.program import check_single_pass
from moon.recipe import Recipe, build
from moon.recipe.variants import Variant
from moon.score.auto import AUTO, best_of, check_names, choose_by_rule
from moon.score.files import load_summary


class Named(NamedTuple):
    """A detector to pack.

    Args:
        name: Its name.
        options: Options in place of its defaults.
        why: Why it was chosen, and the options that it was tuned to; "" if it was named.
        chosen_on: The unknown sets that it, or its options, were chosen on, as far as the run folder says so.
        left: How many validation images the choice did not use.
    """

    name: str
    options: dict[str, Any]
    why: str = ""
    chosen_on: tuple[str, ...] = ()
    left: int = 0


def named_or_chosen(
    name: str, folder: Path | None, recipe: Recipe, benchmark: Benchmark, images: int | None = None
) -> Named:
    """Find which detector to pack; a ValueError if it cannot be packed.

    `auto` is the choice that `moon score` recorded in the run folder, with the options that it was tuned to then. If
    that detector cannot be packed, it is the next best of those that were compared, with default options. Without a
    record, or without a run folder, it is the one that the rule names for this number of training images.
    """
    (name,) = check_names([name])
    if name != AUTO:
        check_single_pass(build.detector(name, recipe, benchmark))
        return Named(name, {}, "", *_chosen_before(name, folder, recipe)) if folder else Named(name, {})
    if folder is None:
        choice = choose_by_rule(None, benchmark.num_known, images)
        return Named(choice["detector"], {}, choice["why"])
    if (choice := _recorded(folder, recipe)) is None:
        choice = choose_by_rule(recipe.objective, benchmark.num_known, images)
        return Named(choice["detector"], {}, f"{choice['why']}; {folder.name} has no scores with a choice of auto")
    how, refused = (tuple(choice.get("on", ())), choice.get("left", 0)), []
    ranked = best_of(choice.get("auroc", {}))
    means = {other: mean for mean, other in ranked}
    for other in dict.fromkeys([choice["detector"], *means]):
        try:
            check_single_pass(build.detector(other, recipe, benchmark))
        except ValueError:
            refused.append(other)
            continue
        if not refused:
            options = choice.get("options", {})
            tuned = ", ".join(f"{key}={value}" for key, value in options.items() if value is not None)
            tuned = f"; tuned to {tuned}" if tuned else ""
            return Named(other, options, f"{choice['why']}{tuned} (recorded by moon score)", *how)
        place = f"number {list(means).index(other) + 1} of {len(ranked)} by mean AUROC {100 * means[other]:.1f}"
        sets = ", ".join(choice["auroc"][other])
        why = f"{place} of validation images against {sets}, after {', '.join(refused)}, which cannot be packed"
        return Named(other, {}, f"{why} (recorded by moon score)", *how)
    raise ValueError(f"auto chose {choice['detector']}, which cannot be packed, and compared no other; name a detector")


def _chosen_before(name: str, folder: Path, recipe: Recipe) -> tuple[tuple[str, ...], int]:
    """On which unknown sets `moon score` chose this detector or tuned its options, and how many images that left."""
    try:
        summary = load_summary(folder, recipe.objective)
    except (FileNotFoundError, DamagedCheckpoint):
        return (), 0  # a detector can be named whatever the scores are
    record = summary.get(AUTO, {})
    if record.get("detector") != name:
        variant, searches = Variant.of(name), summary.get("search", {})
        same = [each for key, each in searches.items() if variant.options and key.partition(":")[0] == variant.key]
        record = same[0] if same else {}
    return tuple(record.get("on", ())), record.get("left", 0)


def _recorded(folder: Path, recipe: Recipe) -> dict[str, Any] | None:
    """The choice that `moon score` recorded, or None if it recorded none."""
    try:
        return load_summary(folder, recipe.objective).get(AUTO)
    except FileNotFoundError:
        return None
