"""Score a finished run with detectors on unknown sets; writes scores.json, scores.npz and scores.png."""

from __future__ import annotations

import argparse
from pathlib import Path

from moon.cli.arguments import add_data, add_device, device_of
from moon.cli.screen import show_scores, tracked
from moon.recipe import Recipe, table
from moon.run.folder import load_result
from moon.run.images import BenchmarkImages
from moon.score.cache import EVIDENCE
from moon.score.files import scores_folder
from moon.score.score import score_run

EXAMPLES = """
examples:
  moon score runs/digits-...
  moon score runs/cifar10-... --detector msp odin ebo knn klm
  moon score runs/cifar10-... --near cifar100-part tin --detector ebo ebo:released ebo:scaled
  moon score runs/digits-... --detector odin react --tune-on letters     tune options on a set that is not scored
"""


def describe(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", type=Path, help="run folder")
    names = " ".join(table("detector").names())
    add(
        "--detector",
        nargs="+",
        action="extend",
        metavar="NAME",
        help=f"{names}, NAME:released, NAME:scaled, or all (default: all)",
    )
    for group in ("near", "far"):
        text = f"{group} unknown sets (default: the benchmark's)"
        add(f"--{group}", nargs="+", default=[], metavar="SET", help=text)
    add(
        "--tune-on",
        nargs="+",
        default=[],
        metavar="SET",
        help="unknown sets to tune the detectors' options on; they are not scored (default: no tuning)",
    )
    add(
        "--keep-evidence",
        action="store_true",
        help="keep logits and features of each set in the run folder; scoring again then needs no forward pass",
    )
    add(
        "--precision",
        choices=("float32", "float16"),
        default="float32",
        help="forward-pass precision; float16 is for sparse networks on a CPU that supports it (default: %(default)s)",
    )
    add(
        "--mirrored",
        action="store_true",
        help="average over each image and its mirror image, which takes twice as long; scores go to RUN/mirrored",
    )
    add_data(parser)
    add_device(parser)


def act(arguments: argparse.Namespace) -> None:
    recipe = Recipe.load(arguments.run / "recipe.json")
    load_result(arguments.run)  # fails before the images are read
    names = None if arguments.detector in (None, ["all"]) else list(dict.fromkeys(arguments.detector))
    near, far = tuple(arguments.near), tuple(arguments.far)
    images = BenchmarkImages.open(
        arguments.data, recipe.benchmark, near, far, recipe.outliers, tuple(arguments.tune_on)
    )
    result, scores = score_run(
        arguments.run,
        images,
        names,
        device=device_of(arguments.device),
        keep_evidence=arguments.keep_evidence,
        precision=arguments.precision,
        mirrored=arguments.mirrored,
        track=tracked,
    )
    figure = scores_folder(arguments.run, arguments.mirrored) / "scores.png"
    show_scores({recipe.objective: [result]}, {recipe.objective: scores}, figure, recipe.name)
    if arguments.keep_evidence:
        sizes = [path.stat().st_size for path in (arguments.run / EVIDENCE).iterdir()]
        print(f"evidence: {arguments.run / EVIDENCE}, {len(sizes)} files, {sum(sizes) / 2**20:.1f} MiB")
    for name, reason in result["left_out"].items():
        print(f"{name} is left out: {reason}")
    for name, record in result["search"].items():
        chosen = ", ".join(f"{key}={value}" for key, value in record["chosen"].items())
        print(f"{name}: {chosen}, the best of {len(record['tried'])} candidates on {', '.join(record['on'])}")
    if dropped := [name for name in arguments.tune_on if name not in images.unknown]:
        print(f"tuned on and not scored: {', '.join(dropped)}")
    if recipe.outliers:
        print(f"{recipe.outliers} is left out: the network was trained with it as outliers")
    if images.missing:
        print(f"not found under {arguments.data} and left out: {', '.join(images.missing)}")
