"""What `moon score` does: it scores one run after another and shows them in one table."""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from moon.cli.arguments import device_of
from moon.cli.failing import explained
from moon.cli.output import Incomplete, printable, show_group
from moon.cli.screen import tracked
from moon.cli.unknown_sets import no_unknown_set
from moon.data.classes import enumerated
from moon.files import check_writable
from moon.recipe import Recipe
from moon.recipe.labels import labels
from moon.results.collect import run_folders
from moon.results.figures import score_histograms
from moon.results.plotting import save
from moon.results.tables import known_table, unknown_table
from moon.run.folder import load_result
from moon.run.images import BenchmarkImages
from moon.score.auto import AUTO, check_names, choice_line
from moon.score.cache import EVIDENCE
from moon.score.checkpoint import score_checkpoint
from moon.score.files import KNOWN, Scores, scores_folder
from moon.score.score import score_run
from moon.suggest import counted


@dataclass(frozen=True)
class _Scored:
    """A scored run."""

    folder: Path
    recipe: Recipe
    summary: Mapping[str, Any]  # its scores.json


class _Failures(dict[Path, str]):
    """Why runs were not scored, by their folders; if errors `are_raised`, the first one stops the command instead."""

    def __init__(self, are_raised: bool) -> None:
        super().__init__()
        self._are_raised = are_raised

    @contextmanager
    def of(self, folder: Path) -> Iterator[None]:
        """Context in which an error is reported without stopping the other runs."""
        try:
            yield
        except Exception as error:
            if self._are_raised:
                raise
            reason = explained(error)[1]
            self[folder] = reason if str(folder) in reason else f"{folder}: {reason}"
            print(f"failed: {printable(self[folder])}", file=sys.stderr)


def score_runs(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Score the runs that the arguments of `moon score` name.

    Images of a benchmark are read once. If there are several runs, one that fails does not stop the others.

    Raises:
        ValueError: If some of several runs were not scored.
    """
    settings = _settings(arguments)
    folders = list(dict.fromkeys(folder for path in arguments.runs for folder in run_folders(path)))
    homes = _homes(folders, arguments.out)
    is_single = len(folders) == 1
    detectors = _detectors(arguments)
    failures = _Failures(are_raised=is_single or arguments.debug)
    recipes: dict[Path, Recipe] = {}
    for folder in folders:  # fails before images are read
        with failures.of(folder):
            recipes[folder] = _scorable(folder, homes[folder])
    opened = lru_cache(maxsize=1)(partial(_open_images, arguments))
    done: list[_Scored] = []
    for folder, recipe in sorted(recipes.items(), key=lambda run: (run[1].benchmark, run[1].outliers)):
        with failures.of(folder):
            images = opened(recipe.benchmark, recipe.outliers)
            if not (images.unknown or images.tuning or recipe.outliers):
                raise ValueError(no_unknown_set(recipe.benchmark, arguments.data))
            prefix = "" if is_single else f"{folder.name}: "
            summary, scores = score_run(
                folder,
                images,
                detectors,
                out=arguments.out and homes[folder],
                track=lambda items, what, prefix=prefix: tracked(items, f"{prefix}{what}"),
                **settings,
            )
            if not is_single:
                print(f"scored: {folder}")
            _save_figure(scores, recipe.objective, recipe.name, scores_folder(homes[folder], arguments.mirrored))
            done.append(_Scored(folder, recipe, summary))
    _show(done, detectors)
    _show_files({run.folder: homes[run.folder] for run in done}, arguments)
    _show_remarks([(run.folder, run.recipe.outliers, run.summary) for run in done], arguments, detectors)
    value = [{"folder": homes[run.folder], **run.summary} for run in done]
    if failures:
        first = next(iter(failures.values()))
        raise Incomplete(
            f"{len(failures)} of {counted(len(folders), 'run')} were not scored, the first one: {first}",
            value + [{"folder": folder, "error": reason} for folder, reason in failures.items()],
        )
    return value


def score_file(arguments: argparse.Namespace) -> dict[str, Any]:
    """Score the checkpoint that the arguments of `moon score` name."""
    detectors, settings = _detectors(arguments), _settings(arguments)
    path, out, width = arguments.checkpoint, arguments.out, 1.0 if arguments.width is None else arguments.width
    images = _open_images(arguments, arguments.benchmark)
    if not (images.unknown or images.tuning):
        raise ValueError(no_unknown_set(arguments.benchmark, arguments.data))
    summary, scores = score_checkpoint(
        path, arguments.net, images, detectors, out=out, width=width, track=tracked, **settings
    )
    _save_figure(scores, path.name, path.name, scores_folder(out, arguments.mirrored))
    show_group(known_table({path.name: [summary]}))
    show_group(unknown_table({path.name: [summary]}, _shown(detectors, [summary])))
    _show_files({out: out}, arguments)
    _show_remarks([(out, "", summary)], arguments, detectors)
    return {"folder": out, **summary}


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that `score_run` and `score_checkpoint` share."""
    return {
        "device": device_of(arguments.device),
        "keep_evidence": arguments.keep_evidence,
        "precision": arguments.precision,
        "mirrored": arguments.mirrored,
        "memory_gib": arguments.memory,
    }


def _scorable(folder: Path, home: Path) -> Recipe:
    """The recipe of a finished run; raises an error if the run, or where its scores go, cannot be used."""
    recipe = Recipe.load(folder / "recipe.json")
    load_result(folder)
    check_writable(home, "give another folder for the scores (--out FOLDER)")
    return recipe


def _open_images(arguments: argparse.Namespace, benchmark: str, outliers: str = "") -> BenchmarkImages:
    sets = tuple(arguments.near), tuple(arguments.far), outliers, tuple(arguments.tune_on)
    return BenchmarkImages.open(arguments.data, benchmark, *sets, lambda items: tracked(items, f"reading {benchmark}"))


def _save_figure(scores: Scores, label: str, title: str, folder: Path) -> None:
    """Draw the scores of the first detector, if matplotlib is installed."""
    if find_spec("matplotlib") is not None:
        save(score_histograms({label: scores}, next(iter(scores)), title), folder / "scores.png")


def _detectors(arguments: argparse.Namespace) -> list[str] | None:
    """The names of the detectors, checked before images are read; None for all."""
    return None if arguments.detector in (None, ["all"]) else check_names(arguments.detector)


def _shown(detectors: list[str] | None, summaries: Iterable[Mapping[str, Any]]) -> list[str] | None:
    """The detectors asked for, with those that were chosen in place of `auto`."""
    if detectors is None or AUTO not in detectors:
        return detectors
    chosen = [summary[AUTO]["detector"] for summary in summaries]
    return list(dict.fromkeys([*(name for name in detectors if name != AUTO), *chosen]))


def _hint(arguments: argparse.Namespace) -> str:
    """How `auto` would use unknown images, if there are none to tune on."""
    return "" if arguments.tune_on else " (--tune-on SET compares all detectors on unknown images instead)"


def _homes(folders: Iterable[Path], out: Path | None) -> dict[Path, Path]:
    """Where the scores of each run go."""
    folders = list(folders)
    if out is None or len(folders) == 1:
        return {folder: out or folder for folder in folders}
    names = {folder: folder.resolve().name for folder in folders}
    ((name, count),) = Counter(names.values()).most_common(1)
    if count > 1:
        raise ValueError(f"{count} runs are called '{name}', so they cannot share --out {out}; score them one by one")
    return {folder: out / name for folder, name in names.items()}


def _show(runs: list[_Scored], detectors: list[str] | None) -> None:
    """Print a table of known inputs, and one of unknown inputs, with the detectors asked for, per selection of sets."""
    if not runs:
        return
    names = labels(run.recipe for run in runs)
    if len(names) == 1:
        names = dict.fromkeys(names, runs[0].recipe.objective)
    copies = Counter(run.recipe.name for run in runs)
    methods: dict[str, list[Mapping[str, Any]]] = {}
    by_sets: dict[tuple[Any, ...], dict[str, list[Mapping[str, Any]]]] = {}
    for run in runs:
        name, summary = run.recipe.name, run.summary
        label = names[name] if copies[name] == 1 else f"{names[name]} {run.folder}"
        sets = summary["benchmark"], *summary["near"], None, *summary["far"]
        for table in (methods, by_sets.setdefault(sets, {})):
            table.setdefault(label, []).append(summary)
    show_group(known_table(methods))
    for of_sets in by_sets.values():
        shown = _shown(detectors, (summary for summaries in of_sets.values() for summary in summaries))
        show_group(unknown_table(of_sets, shown))


def _show_files(homes: Mapping[Path, Path], arguments: argparse.Namespace) -> None:
    """Say where figures and evidence are."""
    folders = [scores_folder(home, arguments.mirrored) for home in homes.values()]
    if find_spec("matplotlib") is None:
        print("no figure: matplotlib is not installed (pip install matplotlib)")
    elif folders:
        several = f", and of {len(folders) - 1} more" if len(folders) > 1 else ""
        print(f"figure: {folders[0] / 'scores.png'}{several}")
    for home in homes.values() if arguments.keep_evidence else ():
        sizes = [path.stat().st_size for path in (home / EVIDENCE).iterdir()]
        print(f"evidence: {home / EVIDENCE}, {counted(len(sizes), 'file')}, {sum(sizes) / 2**20:.1f} MiB")


def _show_remarks(
    scored: list[tuple[Path, str, Mapping[str, Any]]], arguments: argparse.Namespace, detectors: list[str] | None
) -> None:
    """Print what was left out, and which options were chosen. A line that several runs share is printed once."""
    lines: dict[str, list[Path]] = defaultdict(list)
    for folder, outliers, summary in scored:
        which = "" if len(scored) == 1 else f"{folder}: "
        shown = _shown(detectors, [summary])
        asked = {*summary["detectors"], *summary["left_out"]} if shown is None else {*shown}
        if detectors is not None and AUTO in detectors:
            lines[f"{which}{choice_line(summary[AUTO])}{_hint(arguments)}"].append(folder)
        if earlier := [name for name in summary["detectors"] if name not in asked]:
            lines[f"{which}scores.json also has {enumerated(earlier)}, scored earlier"].append(folder)
        scored_now = (KNOWN, *summary["near"], *summary["far"])
        if others := [name for name in summary["images"] if name not in scored_now]:
            lines[f"{which}scores.json also has the unknown sets {enumerated(others)}, scored earlier"].append(folder)
        for name in [name for name in summary["left_out"] if name in asked]:
            lines[f"{name} is left out: {summary['left_out'][name]}"].append(folder)
        for name in [name for name in summary["search"] if name in asked]:
            record = summary["search"][name]
            options = record["chosen"].items()
            chosen = ", ".join(f"the usual {key}" if value is None else f"{key}={value}" for key, value in options)
            count = sum("refused" not in each for each in record["tried"])
            tried = f"the best of {counted(count, 'candidate')} on {', '.join(record['on'])}"
            lines[f"{which}{name}: {chosen}, {tried}"].append(folder)
        if dropped := [name for name in arguments.tune_on if name not in scored_now]:
            lines[f"tuned on and not scored: {', '.join(dropped)}"].append(folder)
        if outliers:
            lines[f"{outliers} is left out: the network was trained with it as outliers"].append(folder)
        if summary["missing"]:
            lines[f"not found under {arguments.data} and left out: {', '.join(summary['missing'])}"].append(folder)
    for line, folders in lines.items():
        says_which = len(folders) == len(scored) or line.startswith(f"{folders[0]}: ")
        of_runs = "" if says_which else f" ({len(folders)} of {len(scored)} runs, the first is {folders[0]})"
        print(printable(line + of_runs))
