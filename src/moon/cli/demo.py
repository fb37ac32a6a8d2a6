"""Train plain RigL and MOON + RigL at 95% sparsity on images that ship inside Python packages, and compare them."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

from moon import demo
from moon.cli.arguments import add_device, device_of, whole
from moon.cli.screen import show_scores, tracked, train_on_screen
from moon.report.page import write_report
from moon.run.folder import find_run
from moon.run.images import BenchmarkImages
from moon.score.files import Scores
from moon.score.score import score_run

EXAMPLES = """
examples:
  moon demo
  moon demo --seeds 3      mean and standard deviation over three seeds
"""


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder of the runs (default: %(default)s)")
    parser.add_argument("--epochs", type=whole, default=15, help="epochs of each run (default: %(default)s)")
    parser.add_argument("--seeds", type=whole, default=1, help="runs of each method (default: %(default)s)")
    add_device(parser)


def act(arguments: argparse.Namespace) -> None:
    device = device_of(arguments.device)
    images = BenchmarkImages.open(Path(), demo.BENCHMARK)
    results: dict[str, list] = {}
    first_scores: dict[str, Scores] = {}
    for method, recipes in demo.recipes(arguments.epochs, arguments.seeds).items():
        for recipe in recipes:
            folder = find_run(arguments.out, recipe)
            train_on_screen(recipe, folder, images, device)
            result, scores = score_run(folder, images, demo.PAPER_DETECTORS, device=device, track=tracked)
            results.setdefault(method, []).append(result)
            first_scores.setdefault(method, scores)
    title = f"A {demo.SPARSITY:.0%}-sparse LeNet on digits it knows and images it does not"
    show_scores(results, first_scores, arguments.out / "known-against-unknown.png", title)
    if find_spec("matplotlib") is not None:
        page = arguments.out / "report.html"
        write_report([arguments.out], page, title)
        print(f"full report, to open in a browser: {page}")
    if arguments.seeds == 1:
        print("one seed cannot show which method is better; moon demo --seeds 3 shows the spread")
