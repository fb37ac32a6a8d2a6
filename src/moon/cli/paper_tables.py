"""What `moon paper` prints and writes: the list of tables and figures, and the tables themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from moon.cli.output import show_table
from moon.cli.screen import tracked
from moon.files import write_json, write_text
from moon.grid import Grid, State
from moon.paper import theory, theory_figure
from moon.paper.flops import paper_flops
from moon.paper.items import items as all_items
from moon.paper.recipes import finished_runs, methods_not_shown, needed_runs
from moon.paper.render import to_csv, to_latex, to_markdown, to_terminal
from moon.paper.spec import Item, Scale
from moon.paper.table import PaperTable
from moon.recipe import Recipe


def list_items(root: Path, scale: Scale, folder: Path) -> None:
    """Print every table and figure, and how many of its runs are done."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("ID", no_wrap=True)
    table.add_column("title", min_width=20)
    table.add_column("runs done", justify="right", no_wrap=True)
    for item in all_items().values():
        runs = needed_runs(root, [item], scale)
        done = list(Grid.of(folder, runs, runs).states().values()).count(State.DONE)
        table.add_row(item.key, item.title, f"{done} of {len(runs)}")
    table.add_row("flops", "Appendix E: FLOPs of training and inference, next to the paper's", "none needed")
    table.add_row("theory", "Section 4: a numerical demonstration", "none needed")
    show_table(table)
    print(f"runs are in {folder}")


def show(items: Sequence[Item], extras: Sequence[str], scale: Scale, root: Path, folder: Path) -> int:
    """Print each table or figure, and write it in every format; one without any run is neither printed nor written.

    Returns:
        How many tables and figures have at least one run.
    """
    console = Console()
    target = folder / "paper"
    empty = []
    for item in tracked(list(items), "reading runs"):
        table = PaperTable.read(item, scale, root, folder)
        if not table.runs_done:
            empty.append(f"{item.key} ({table.runs_needed})")
            continue
        target.mkdir(parents=True, exist_ok=True)
        console.print(to_terminal(table, console.width), highlight=False)
        for suffix, text in (("md", to_markdown(table)), ("csv", to_csv(table)), ("tex", to_latex(table))):
            write_text(target / f"{item.key}.{suffix}", text)
        if item.draw and find_spec("matplotlib") is not None:
            from moon.paper.figures import draw

            draw(table, folder, target / item.key)
    if extras:
        target.mkdir(parents=True, exist_ok=True)
    if "flops" in extras:
        _flops(target)
    if "theory" in extras:
        _theory(target)
    if others := methods_not_shown(finished_runs(folder), [*all_items().values(), *items]):
        print(f"{folder} also has runs with {', '.join(others)}; --also NAME shows them in the tables")
    found = len(items) - len(empty)
    if found and empty:
        print(f"not written, because {folder} has none of their runs (number needed): {', '.join(empty)}")
    if found or extras:
        print(f"written: {target}")
    return found


def why_nothing(items: Sequence[Item], scale: Scale, folder: Path) -> str:
    """Say why some tables and figures have no numbers, from the runs that the folder has."""
    finished = finished_runs(folder)
    precision = str(scale.settings.get("precision", Recipe.precision))
    used = dict.fromkeys(scale.benchmarks[m.data] for item in items for m in item.measurements)
    looked = f"{', '.join(used)} (--benchmark), {scale.epochs} epochs (--epochs), {precision} (--precision)"
    kinds = Counter(f"{recipe.benchmark}, {recipe.epochs} epochs, {recipe.precision}" for recipe in finished)
    there = "; ".join(f"{count} of {kind}" for kind, count in kinds.most_common(3)) or "none finished and scored"
    keys = " ".join(item.key for item in items[:3]) + (" ..." if len(items) > 3 else "")
    return f"{folder}: has no run of {keys}; looked for {looked}; runs there: {there}"


def _flops(target: Path) -> None:
    """Print and write the table of FLOPs of Appendix E."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    headings = ("FLOPs, ResNet-50 at 80%", "paper", "from its assumptions", "as we train", "why they differ")
    for heading in headings:
        table.add_column(heading)
    cells = [
        (
            row.quantity,
            "-" if row.paper is None else f"{row.paper:.2g}",
            f"{row.derived:.2g}",
            f"{row.ours:.2g}",
            row.why,
        )
        for row in paper_flops()
    ]
    for line in cells:
        table.add_row(*line)
    show_table(table)
    lines = [f"| {' | '.join(line)} |" for line in (headings, ("---",) * len(headings), *cells)]
    write_text(target / "flops.md", "\n".join(["## flops: Appendix E", "", *lines]) + "\n")


def _theory(target: Path) -> None:
    """Write the demonstration of Section 4: its numbers, and its figure if matplotlib is installed."""
    result = theory.demonstrate()
    write_json(target / "theory.json", result)
    if find_spec("matplotlib") is not None:
        for suffix in ("svg", "pdf", "png"):
            theory_figure.draw(result, target / f"theory.{suffix}")
    print(f"theory: numbers and figure in {target}; docs/methods/theory.md discusses them")
