"""Score finished runs, or a checkpoint, with detectors on unknown sets; writes scores.json, scores.npz, scores.png."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from moon.cli.arguments import add_checkpoint, add_data, add_device, check_checkpoint, gib
from moon.cli.unknown_sets import add_unknown_sets
from moon.recipe import names_of

EXAMPLES = """
examples:
  moon score runs/digits-...
  moon score runs/grid                                                   all runs in a folder, in one table
  moon score runs/cifar10-... runs/cifar10-... --detector msp odin ebo knn klm
  moon score runs/cifar10-... --near cifar100-part tin --detector ebo ebo:released ebo:unscaled
  moon score runs/digits-... --detector odin react --tune-on letters     tune options on a set that is not scored
  moon score runs/digits-... --detector auto                             one detector, by the rule for such networks
  moon score runs/digits-... --detector auto --tune-on letters           the best on a set that is not scored
  moon score /shared/run --out scores                                    if the run folder is read-only
  moon score --checkpoint best.ckpt --net openood:resnet18_32x32 --benchmark cifar10-v1.5 --out scores
"""
JSON = "for each run the folder, and the content of scores.json"


def describe(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="*", type=Path, metavar="RUN", help="run folders, or folders of them")
    add_checkpoint(parser)
    add(
        "--detector",
        nargs="+",
        action="extend",
        metavar="NAME",
        help=f"{' '.join(names_of('detector'))}, NAME:released, NAME:scaled (logits divided by a temperature fitted on "
        "validation images: the default of ebo and others for normalised logits), NAME:unscaled (their default for "
        "other logits), NAME:OPTION=VALUE (such as knn:k=5), fisher:NAME+NAME (a combination), auto (one detector, "
        "chosen by --tune-on sets or by a rule), or all (default: all)",
    )
    add_unknown_sets(parser)
    add(
        "--tune-on",
        nargs="+",
        default=[],
        metavar="SET",
        help="unknown sets to tune the detectors' options on, and for --detector auto to choose the detector on; they "
        "are not scored (default: no tuning)",
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
    add(
        "--memory",
        type=gib,
        metavar="GIB",
        default=4.0,
        help="evidence of training images that needs more memory than this is kept in temporary files next to the "
        "scores, and gives the same scores up to rounding (default: %(default)g)",
    )
    add_data(parser)
    add_device(parser)


def act(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    check_checkpoint(arguments, arguments.runs, {"--out FOLDER": arguments.out})
    if arguments.checkpoint is None:
        from moon.cli.scoring import score_runs

        return score_runs(arguments)
    from moon.cli.scoring import score_file

    return [score_file(arguments)]
