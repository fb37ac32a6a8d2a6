"""The tables and figures in results/*/paper: what `moon paper show` writes, and the figures of the pages of results."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from cells import label
from compact import unpack
from kept import Kept

from moon.files import write_text
from moon.paper.figures import draw
from moon.paper.items import items
from moon.paper.render import to_csv, to_latex, to_markdown
from moon.paper.spec import FULL, SPARSITIES
from moon.paper.table import PaperTable
from moon.results.figures import auroc_over_sparsity
from moon.results.plotting import DIGEST, save

# By folder: the items of `moon paper show` with --benchmark DATA=DATA-part --precision bfloat16.
ITEMS = {
    "cifar10": ("controls", "summary", "detectors", "fill", "topologies", "ablations", "rivals"),
    "mnist": ("mnist", "table10"),
}
# By folder: the trainings in the figure of docs/results.md, in the order of the other figures' colours.
DRAWN = {
    "cifar10": ("plain", "control", "moon", "moon-logitnorm", "logitnorm+vote", "quick", "quick@300"),
    "tin100": ("plain", "control", "moon", "moon-logitnorm", "logitnorm+vote", "quick"),
}


def write_paper_files(kept: Kept, check: bool) -> list[str]:
    """Write the files, or only check them; returns what is wrong or stale, one line each."""
    problems: list[str] = []
    made: set[Path] = set()

    def write(path: Path, text: str) -> None:
        path.parent.mkdir(exist_ok=True)
        write_text(path, text)
        print(f"written: {_name(path)}")

    def text_file(path: Path, text: str) -> None:
        made.add(path)
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if check:
            lines = [f"{_name(path)}:{line}: {found}" for line, found in stale_lines(before, text)]
            problems.extend(lines[:1])  # one change in a table often changes many lines
        elif before != text:
            write(path, text)

    def figure_file(path: Path, drawn: Callable[[Path], None]) -> None:
        made.add(path)
        with tempfile.TemporaryDirectory() as folder:
            new = Path(folder) / path.name
            drawn(new)
            digest = _digest(new)
            if digest == _digest(path):
                return
            if check:
                problems.append(
                    f"{_name(path)}:1: says the plotted data are {_digest(path)}, should say {digest}; run make results"
                )
            else:
                write(path, new.read_text(encoding="utf-8"))

    for data, keys in ITEMS.items():
        folder = kept.results / data
        scale = replace(FULL.with_benchmarks([f"{data}={data}-part"]), settings={"precision": "bfloat16"})
        with tempfile.TemporaryDirectory() as runs:
            unpack(folder, Path(runs))
            tables = {key: PaperTable.read(items()[key], scale, folder, Path(runs)) for key in keys}
        for key, table in tables.items():
            for suffix, text in (("md", to_markdown(table)), ("csv", to_csv(table)), ("tex", to_latex(table))):
                text_file(folder / "paper" / f"{key}.{suffix}", text)
            if table.item.draw:
                figure_file(
                    folder / "paper" / f"{key}.svg", lambda path, t=table: draw(t, kept.results, path.with_suffix(""))
                )
    for data in DRAWN:
        figure_file(kept.results / data / "paper" / "auroc.svg", lambda path, d=data: draw_auroc(kept, d, path))
    there = {
        path for path in kept.results.glob("*/paper/*") if path.suffix not in (".png", ".pdf")
    }  # git ignores those
    problems += [
        f"{_name(path)}: nothing writes this file; delete it, or add it to ITEMS" for path in sorted(there - made)
    ]
    return problems


def stale_lines(before: str, after: str) -> Iterator[tuple[int, str]]:
    """For each line that changes (only the first, if their number does): its number, what it says and should say."""
    old, new = before.splitlines(), after.splitlines()
    for number in range(max(len(old), len(new))):
        says, should = (repr(lines[number]) if number < len(lines) else "nothing" for lines in (old, new))
        if says != should:
            yield number + 1, f"says {says}, should say {should}; run make results"
            if len(old) != len(new):
                return


def draw_auroc(kept: Kept, data: str, path: Path) -> None:
    """Draw the AUROC with MSP of the networks of a collection over sparsity."""
    names = {training: label(training).replace("`", "") for training in DRAWN[data]} | {
        "quick@300": "best-2, 300 epochs"
    }
    points = [
        (names[training], 100 * sparsity, group, auroc)
        for training in DRAWN[data]
        for sparsity in SPARSITIES
        for group in ("near", "far")
        for auroc in kept.values(f"{data}/rigl{100 * sparsity:g}/{training}", f"msp {group}").values()
    ]
    save(auroc_over_sparsity(points, "MSP"), path)


def _digest(path: Path) -> str:
    """The digest of the plotted data that a figure contains, or why there is none."""
    found = re.search(rf"{DIGEST} ([0-9a-f]+)", path.read_text(encoding="utf-8")) if path.exists() else None
    return found[1] if found else "unknown"


def _name(path: Path) -> str:
    """The path from the root of the repository."""
    return "/".join(path.parts[path.parts.index("results") :]) if "results" in path.parts else str(path)
