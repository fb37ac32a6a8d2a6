"""Train two 95%-sparse networks on images that ship inside Python packages, compare them and use one."""

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
    parser.add_argument("--epochs", type=whole, default=30, help="epochs of each run (default: %(default)s)")
    parser.add_argument("--seeds", type=whole, default=1, help="runs of each method (default: %(default)s)")
    add_device(parser)


def act(arguments: argparse.Namespace) -> None:
    from moon import demo

    methods = demo.recipes(arguments.epochs, arguments.seeds)
    grid = _train_and_score(methods, arguments)
    jobs = {job.recipe: job for job in grid.jobs}
    title = f"A {demo.SPARSITY:.0%}-sparse LeNet on digits it knows and images it does not"
    _show({method: [jobs[recipe] for recipe in runs] for method, runs in methods.items()}, arguments.out, title)
    print(f"{demo.PACKED} was also trained with {demo.OUTLIERS} as outliers, so that set is not scored")
    if arguments.seeds < 3:
        print("too few seeds to say which method is better; --seeds 3 trains three networks of each")
    if missing := [name for name in ("jinja2", "matplotlib") if find_spec(name) is None]:
        print(f"no figure and no report: {' and '.join(missing)} not installed (pip install {' '.join(missing)})")
    else:
        from moon.report.page import write_report

        page = arguments.out / "report.html"
        write_report([arguments.out], page, title, detector=demo.DETECTOR)
        print(f"full report, to open in a browser: {page}")
    moon = "moon" if shutil.which("moon") or Path(sys.argv[0]).name != "moon" else sys.argv[0]
    file = _use(jobs[methods[demo.PACKED][0]].folder, arguments)
    try_out = f"train {demo.BENCHMARK} --epochs 20" if file is None else f"predict {file} IMAGE"
    print(f"next: {moon} {try_out}, or your own images: {moon} data import --help")


def _train_and_score(methods: Mapping[str, list[Recipe]], arguments: argparse.Namespace) -> Grid:
    """Train what is not trained, side by side, each run in a process of its own."""
    from contextlib import ExitStack

    from moon.cli.runner import check_done, execute, local_workers
    from moon.cli.unknown_sets import data_facts
    from moon.demo import FAR, NEAR, PAPER_DETECTORS
    from moon.grid import Grid, State
    from moon.suggest import counted

    root = Path()  # nothing is read from it: the images are embedded
    recipes = [recipe for runs in methods.values() for recipe in runs]
    facts = data_facts(root, NEAR, FAR)
    grid = Grid.plan(arguments.out, recipes, PAPER_DETECTORS, facts=facts, near=NEAR, far=FAR)
    grid.forget_failures()
    if missing := [state for state in grid.states().values() if state is not State.DONE]:
        networks, detectors = counted(len(missing), "network"), counted(len(PAPER_DETECTORS), "detector")
        print(f"training {networks} for {counted(arguments.epochs, 'epoch')}, scoring with {detectors}", flush=True)
    with ExitStack() as stack:
        execute(grid, local_workers(grid, root, arguments.device, stack=stack, checkpoint_seconds=5.0))
    check_done(grid, "run the command again")
    return grid


def _use(run: Path, arguments: argparse.Namespace) -> Path | None:
    """Pack a network, time it and ask it about images; return its file, or None if it cannot be packed here."""
    from moon import demo
    from moon.cli.arguments import device_of
    from moon.cli.output import readable_size
    from moon.cli.screen import tracked
    from moon.deploy import pack_run
    from moon.errors import MissingPackage
    from moon.run.images import BenchmarkImages

    images = BenchmarkImages.open(Path(), demo.BENCHMARK, demo.NEAR, demo.FAR, demo.OUTLIERS)
    file, detector = arguments.out / f"{demo.BENCHMARK}.moon", demo.DETECTOR
    try:
        facts = pack_run(run, images, file, detector, device=device_of(arguments.device), track=tracked)
    except MissingPackage as error:
        print(f"no network is packed and used: {error}")
        return None
    size, dense = readable_size(facts["bytes"]), readable_size(facts["dense_bytes"])
    print(f"packed: {demo.PACKED} with the detector {detector}: {file}, {size} (dense float32: {dense})")
    (_, ours), (other, seconds) = demo.seconds_per_image(file, run, images).items()
    print(f"time per image, one thread: {1000 * ours:.2g} ms ({other}: {1000 * seconds:.2g} ms)")
    known, unknown = facts["measured"]["known"], {k: v for k, v in facts["measured"].items() if k != "known"}
    rejected = ", ".join(f"{name} {row['rejected']:.1%}" for name, row in unknown.items())
    print(f"test images accepted: {demo.BENCHMARK} {known['accepted']:.1%}; rejected as unknown: {rejected}")
    if find_spec("matplotlib") is not None:
        from moon.results.answers import answered_images
        from moon.results.plotting import save

        picture = arguments.out / "answers.png"
        save(answered_images(demo.answered(file, images, facts["measured"]), demo.PICTURE_TITLE), picture)
        print(f"images it never saw, with its answers: {picture}")
    return file


def _show(methods: Mapping[str, list[Job]], out: Path, title: str) -> None:
    """Print the tables of scored runs, and draw the scores of the first run of each method."""
    from moon.cli.output import show_group
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
