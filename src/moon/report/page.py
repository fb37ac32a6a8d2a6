"""A page about runs: one HTML file that loads no other files."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moon.files import write_text
from moon.recipe.labels import labels
from moon.report import sections
from moon.report.classes import classes_section
from moon.report.comparisons import comparisons_section
from moon.report.content import Picture
from moon.results.collect import Run, collect
from moon.results.plotting import save

if TYPE_CHECKING:
    from jinja2 import Environment

_log = logging.getLogger(__name__)


def write_report(
    paths: Iterable[Path],
    target: Path,
    title: str = "",
    *,
    detector: str | None = None,
    against: str | None = None,
    figures: Path | None = None,
) -> list[Run]:
    """Write a page about runs, see `page`, and its figures as PDF if there is a folder for them; returns the runs.

    Raises:
        ValueError: If none of the runs is finished and scored, or as for `page`.
    """
    runs, left_out = collect(paths)
    if left_out:
        more = f" and {len(left_out) - 3} more, which the page lists" if len(left_out) > 3 else ""
        _log.warning("left out of the page: %s%s", "; ".join(left_out[:3]), more)
    content = _content(runs, left_out, title, detector, against)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, _render(content))
    if figures is not None:
        for data in content["sections"].values():
            for picture in data.get("pictures", ()) if isinstance(data, dict) else [data]:
                if isinstance(picture, Picture):
                    save(picture.figure, figures / f"{picture.name}.pdf")
    return runs


def page(
    runs: Sequence[Run],
    left_out: Sequence[str] = (),
    title: str = "",
    *,
    detector: str | None = None,
    against: str | None = None,
) -> str:
    """Return a page about finished, scored runs as HTML; it lists those left out.

    Figures, comparisons and the table of methods show one detector, by default the one that is packed. All methods are
    compared with the one that `against` names by its label, by default those that differ in one setting.

    Raises:
        ValueError: If no run was scored with the detector, or no method has this label.
    """
    return _render(_content(runs, left_out, title, detector, against))


def _content(
    runs: Sequence[Run], left_out: Sequence[str], title: str, detector: str | None, against: str | None
) -> dict[str, Any]:
    """What the template of the page shows."""
    names = labels([run.recipe for run in runs])
    methods: dict[str, list[Run]] = {}
    for run in runs:
        methods.setdefault(names[run.recipe.name], []).append(run)
    shown, reason = sections.choose_detector(methods, detector)
    parts = {
        "Methods": sections.methods_section(methods, shown, reason),
        "Detectors": sections.detectors_section(methods),
        "Comparisons": comparisons_section(methods, shown, against),
        "Scores": sections.scores_section(methods, shown),
        "Calibration": sections.calibration_section(methods),
        "Classes": classes_section(methods),
        "Sparsity": sections.sparsity_section(methods, shown),
        "Training": sections.training_section(methods),
        "Masks": sections.masks_section(methods),
        "Examples": sections.examples_section(methods),
        "Recipes": sections.recipes_section(runs, left_out),
    }
    lead = sections.lead(methods)
    title = title or f"{', '.join(lead['benchmarks'])}: known and unknown"
    found = {heading: data for heading, data in parts.items() if data is not None}
    return {"title": title, "lead": lead, "sections": found}


def _render(content: dict[str, Any]) -> str:
    return _environment().get_template("page.html.j2").render(content)


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
