"""Train plain RigL and MOON + RigL at 95% sparsity on images that ship inside Python packages, and compare them."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from moon.cli.arguments import add_device, whole

if TYPE_CHECKING:
    from moon.grid import Grid, Job
    from moon.recipe import Recipe

EXAMPLES = """
examples:
  moon demo                run the same command again to resume
  moon demo --seeds 3      mean and standard deviation over three seeds
"""


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder of the runs (default: %(default)s)")
    parser.add_argument("--epochs", type=whole, default=15, help="epochs of each run (default: %(default)s)")
    parser.add_argument("--seeds", type=whole, default=1, help="runs of each method (default: %(default)s)")
    add_device(parser)


def act(arguments: argparse.Namespace) -> None:
    from moon import demo

    methods = demo.recipes(arguments.epochs, arguments.seeds)
    grid = _train_and_score(methods, arguments)
    jobs = {job.recipe: job for job in grid.jobs}
    title = f"A {demo.SPARSITY:.0%}-sparse LeNet on digits it knows and images it does not"
    _show({method: [jobs[recipe] for recipe in runs] for method, runs in methods.items()}, arguments.out, title)
    if arguments.seeds < 3:
        print("too few seeds to say which method is better; --seeds 3 trains three networks of each")
    if missing := [name for name in ("jinja2", "matplotlib") if find_spec(name) is None]:
        print(f"no figure and no report: {' and '.join(missing)} not installed (pip install {' '.join(missing)})")
    else:
        from moon.report.page import write_report

        page = arguments.out / "report.html"
        write_report([arguments.out], page, title)
        print(f"full report, to open in a browser: {page}")
    moon = "moon" if shutil.which("moon") or Path(sys.argv[0]).name != "moon" else sys.argv[0]
    print(f"next: {moon} train digits --epochs 20, or your own images: {moon} data import --help")


def _train_and_score(methods: Mapping[str, list[Recipe]], arguments: argparse.Namespace) -> Grid:
    """Train what is not trained, side by side, each run in a process of its own."""
    from contextlib import ExitStack

    from moon.cli.runner import check_done, execute, local_workers
    from moon.cli.screen import counted
    from moon.cli.unknown_sets import data_facts
    from moon.demo import PAPER_DETECTORS
    from moon.grid import Grid, State

    root = Path()  # nothing is read from it: the images are embedded
    recipes = [recipe for runs in methods.values() for recipe in runs]
    grid = Grid.plan(arguments.out, recipes, PAPER_DETECTORS, facts=data_facts(root))
    grid.forget_failures()
    if missing := [state for state in grid.states().values() if state is not State.DONE]:
        networks, detectors = counted(len(missing), "network"), counted(len(PAPER_DETECTORS), "detector")
        print(f"training {networks} for {counted(arguments.epochs, 'epoch')}, scoring with {detectors}", flush=True)
    with ExitStack() as stack:
        execute(grid, local_workers(grid, root, arguments.device, stack=stack, checkpoint_seconds=5.0))
    check_done(grid, "run the command again")
    return grid


def _show(methods: Mapping[str, list[Job]], out: Path, title: str) -> None:
    """Print the tables of scored runs, and draw the scores of the first run of each method."""
    from moon.cli.scoring import show_group
    from moon.results.tables import known_table, unknown_table
    from moon.score.files import read_scores

    found = {}
    for method, jobs in methods.items():
        for job in jobs:
            if (read := read_scores(job.folder)) is None:
                raise ValueError(f"{job.folder}: its scores are damaged; delete this folder and run the command again")
            found.setdefault(method, []).append(read)
    summaries = {method: [summary for summary, _ in runs] for method, runs in found.items()}
    show_group(known_table(summaries))
    show_group(unknown_table(summaries))
    if find_spec("matplotlib") is not None:
        from moon.demo import PAPER_DETECTORS
        from moon.results.figures import score_histograms
        from moon.results.plotting import save

        scores = {method: runs[0][1] for method, runs in found.items()}
        figure = out / "known-against-unknown.png"
        save(score_histograms(scores, PAPER_DETECTORS[0], title), figure)
        print(f"figure: {figure}")
