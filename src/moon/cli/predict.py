"""Classify images with a packed network: a class or "unknown", a probability and a p-value. PyTorch is not needed."""

from __future__ import annotations

import argparse
from pathlib import Path

from moon.cli.arguments import fraction, whole

EXAMPLES = """
examples:
  moon predict digits.moon photo.png
  moon predict digits.moon photos/ --csv > answers.csv       all images in a folder and its subfolders
  moon predict digits.moon photos/ --top-k 3                 the three most probable classes
  moon predict digits.moon -- -photo.png                     a name that begins with -
  curl -s https://.../photo.jpg | moon predict digits.moon -
"""


def describe(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m moon_runtime`, which is not imported here as it may not be installed."""
    add = parser.add_argument
    add("file", type=Path, metavar="FILE.moon", help="a packed network, written by moon pack")
    add(
        "images",
        nargs="+",
        metavar="IMAGE",
        help="image files, folders of images, or - for an image on standard input; resized to cover the network's "
        "input and cropped at the centre",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object per line, with the detector's score")
    text = "comma-separated values, with the detector's score; a file that cannot be read is a row with its error"
    form.add_argument("--csv", action="store_true", help=text)
    add("--top-k", type=whole, default=1, metavar="N", help="show the N most probable classes (default: %(default)s)")
    add("--threads", type=whole, default=1, help="threads to compute with (default: %(default)s)")
    add("--limit", type=float, default=1, metavar="N",
        help="allow a file that you trust N times the memory and time (default: %(default)s)")  # fmt: skip
    add(
        "--false-alarm",
        type=fraction,
        default=0.01,
        help="probability of a false alarm about images unlike the calibration images (default: %(default)s)",
    )


def act(arguments: argparse.Namespace) -> None:
    from moon.deploy.loading import load
    from moon.errors import DataError, MissingPackage

    if arguments.file.is_dir():
        raise ValueError(f"{arguments.file}: is a folder; pack a run first (moon pack {arguments.file})")
    classifier = load(arguments.file, threads=arguments.threads, limit=arguments.limit)
    from moon_runtime import ImageError
    from moon_runtime.__main__ import run

    try:
        run(arguments, classifier, "moon predict")
    except ImageError as error:
        raise DataError(str(error)) from error
    except ImportError as error:
        raise MissingPackage(str(error)) from error
