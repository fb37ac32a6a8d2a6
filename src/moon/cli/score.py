"""Score a finished run with detectors on unknown sets; writes scores.json, scores.npz and scores.png."""

from __future__ import annotations

import argparse
from pathlib import Path

from moon.cli.arguments import add_data, add_device, device_of
from moon.cli.screen import show_scores, tracked
from moon.recipe.build import TABLES
from moon.recipe.recipe import Recipe
from moon.run.images import Bench
from moon.run.train import load_result
from moon.score.cache import EVIDENCE
from moon.score.score import place_of, score_run

EXAMPLES = """
examples:
  moon score runs/digits-...
  moon score runs/cifar10-... --detector msp odin ebo knn klm
  moon score runs/cifar10-... --near cifar100-part tin --detector ebo ebo:released
  moon score runs/digits-... --detector odin react --tune-on letters     search, on a set that is then not scored
"""


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument(
        "--detector",
        nargs="+",
        action="extend",
        metavar="NAME",
        help=f"{' '.join(TABLES['detector'])}, NAME:released, or all (default: all)",
    )
    for group in ("near", "far"):
        text = f"{group} unknown sets (default: the benchmark's)"
        parser.add_argument(f"--{group}", nargs="+", default=[], metavar="SET", help=text)
    parser.add_argument(
        "--tune-on",
        nargs="+",
        default=[],
        metavar="SET",
        help="unknown sets to choose the detectors' options by; they are not scored (default: no search)",
    )
    parser.add_argument(
        "--keep-evidence",
        action="store_true",
        help="leave what the model says about each set in the run folder: scoring again needs no forward pass",
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "float16"),
        default="float32",
        help="of the reading; float16 is for sparse networks on a CPU that computes in it (default: %(default)s)",
    )
    parser.add_argument(
        "--mirrored",
        action="store_true",
        help="read every image as it is and mirrored, and take the mean: twice the time; scores go into RUN/mirrored",
    )
    add_data(parser)
    add_device(parser)


def act(arguments: argparse.Namespace) -> None:
    recipe = Recipe.load(arguments.run / "recipe.json")
    load_result(arguments.run)  # before the data are read
    names = None if arguments.detector in (None, ["all"]) else list(dict.fromkeys(arguments.detector))
    near, far = tuple(arguments.near), tuple(arguments.far)
    bench = Bench.open(arguments.data, recipe.benchmark, near, far, recipe.outliers, tuple(arguments.tune_on))
    result, scores = score_run(
        arguments.run,
        bench,
        names,
        device=device_of(arguments.device),
        keep_evidence=arguments.keep_evidence,
        precision=arguments.precision,
        mirrored=arguments.mirrored,
        track=tracked,
    )
    picture = place_of(arguments.run, arguments.mirrored) / "scores.png"
    show_scores({recipe.objective: [result]}, {recipe.objective: scores}, picture, recipe.name)
    if arguments.keep_evidence:
        sizes = [path.stat().st_size for path in (arguments.run / EVIDENCE).iterdir()]
        print(f"evidence: {arguments.run / EVIDENCE}, {len(sizes)} readings, {sum(sizes) / 2**20:.1f} MiB")
    for name, reason in result["left_out"].items():
        print(f"{name} is left out: {reason}")
    for name, record in result["search"].items():
        chosen = ", ".join(f"{key}={value}" for key, value in record["chosen"].items())
        print(f"{name}: {chosen}, the best of {len(record['tried'])} on {', '.join(record['on'])}")
    if dropped := [name for name in arguments.tune_on if name not in bench.unknown]:
        print(f"tuned on and not scored: {', '.join(dropped)}")
    if recipe.outliers:
        print(f"{recipe.outliers} is left out: the network was trained with it as outliers")
    if bench.missing:
        print(f"not found under {arguments.data} and left out: {', '.join(bench.missing)}")
