"""Score finished runs with detectors on unknown sets; writes scores.json, scores.npz and scores.png for each."""

from __future__ import annotations

import argparse
from pathlib import Path

from moon.cli.arguments import add_data, add_device
from moon.cli.unknown_sets import add_unknown_sets
from moon.recipe import names_of

EXAMPLES = """
examples:
  moon score runs/digits-...
  moon score runs/grid                                                   all runs in a folder, in one table
  moon score runs/cifar10-... runs/cifar10-... --detector msp odin ebo knn klm
  moon score runs/cifar10-... --near cifar100-part tin --detector ebo ebo:released ebo:unscaled
  moon score runs/digits-... --detector odin react --tune-on letters     tune options on a set that is not scored
  moon score /shared/run --out scores                                    if the run folder is read-only
"""


def describe(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders of them")
    add(
        "--detector",
        nargs="+",
        action="extend",
        metavar="NAME",
        help=f"{' '.join(names_of('detector'))}, NAME:released, NAME:scaled (logits divided by a temperature fitted on "
        "validation images: the default of ebo and others for normalised logits), NAME:unscaled (their default for "
        "other logits), or all (default: all)",
    )
    add_unknown_sets(parser)
    add(
        "--tune-on",
        nargs="+",
        default=[],
        metavar="SET",
        help="unknown sets to tune the detectors' options on; they are not scored (default: no tuning)",
    )
    add(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="write scores and figure there, of several runs into a subfolder each; nothing is written to the run "
        "folders, which may be read-only (default: the run folders)",
    )
    add(
        "--keep-evidence",
        action="store_true",
        help="keep logits and features of each set next to the scores; scoring again then needs no forward pass",
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
    from moon.cli.scoring import score_runs

    score_runs(arguments)
