"""A page about runs: one HTML file that loads no other files."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moon.files import write_text
from moon.recipe.labels import labels
from moon.report import sections
from moon.report.classes import classes_section
from moon.report.comparisons import comparisons_section
from moon.results.collect import Run, collect

if TYPE_CHECKING:
    from jinja2 import Environment

_log = logging.getLogger(__name__)
MOST_PICTURED = 6  # methods in a figure; more would be hard to distinguish


def write_report(paths: Iterable[Path], target: Path, title: str = "") -> list[Run]:
    """Write a page about runs.

    Args:
        paths: Run folders, or folders of run folders.
        target: The HTML file to write.
        title: Title of the page; by default it names the benchmarks.

    Returns:
        The runs that the page is about.

    Raises:
        ValueError: If none of the runs is finished and scored.
    """
    runs, left_out = collect(paths)
    if left_out:
        more = f" and {len(left_out) - 3} more, which the page lists" if len(left_out) > 3 else ""
        _log.warning("left out of the page: %s%s", "; ".join(left_out[:3]), more)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, page(runs, left_out, title))
    return runs


def page(runs: Sequence[Run], left_out: Sequence[str] = (), title: str = "") -> str:
    """Return a page about runs as HTML.

    Args:
        runs: Finished, scored runs.
        left_out: Lines about runs that are not on the page.
        title: Title of the page; by default it names the benchmarks.

    Returns:
        The page.
    """
    names = labels([run.recipe for run in runs])
    methods: dict[str, list[Run]] = {}
    for run in runs:
        methods.setdefault(names[run.recipe.name], []).append(run)
    pictured = dict(list(methods.items())[:MOST_PICTURED])
    parts = {
        "Methods": sections.methods_section(methods),
        "Detectors": sections.detectors_section(methods),
        "Comparisons": comparisons_section(methods),
        "Scores": sections.scores_section(pictured, omitted=len(methods) - len(pictured)),
        "Calibration": sections.calibration_section(pictured),
        "Classes": classes_section(pictured),
        "Sparsity": sections.sparsity_section(methods),
        "Training": sections.training_section(pictured),
        "Masks": sections.masks_section(pictured),
        "Examples": sections.examples_section(pictured),
        "Recipes": sections.recipes_section(runs, left_out),
    }
    lead = sections.lead(methods)
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            title=title or f"{', '.join(lead['benchmarks'])}: known and unknown",
            lead=lead,
            sections={heading: data for heading, data in parts.items() if data is not None},
        )
    )


def _environment() -> Environment:
    """Templates that escape what they show, and fail on names that do not exist."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # an extra: other commands work without it

    return Environment(
        loader=PackageLoader("moon.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
