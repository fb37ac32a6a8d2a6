"""Classify images with a packed network: a class or "unknown", a probability and a p-value. PyTorch is not needed."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from moon.cli.arguments import fraction, whole

if TYPE_CHECKING:
    from moon_runtime import Answer, Classifier
    from numpy.typing import NDArray

EXAMPLES = """
examples:
  moon predict digits.moon photo.png
  moon predict digits.moon photos/ --csv > answers.csv       all images in a folder and its subfolders
  curl -s https://.../photo.jpg | moon predict digits.moon -
"""
_BATCH = 32
_MAX_INPUT = 2**29  # bytes of an image on standard input: more than any that is accepted


def describe(parser: argparse.ArgumentParser) -> None:
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
    form.add_argument("--csv", action="store_true", help="comma-separated values")
    add("--threads", type=whole, default=1, help="threads to compute with (default: %(default)s)")
    add(
        "--false-alarm",
        type=fraction,
        default=0.01,
        help="probability of a false alarm about images unlike the calibration images (default: %(default)s)",
    )


def act(arguments: argparse.Namespace) -> None:
    from moon.cli.output import printable
    from moon.deploy.loading import load
    from moon.errors import DataError

    if arguments.file.is_dir():
        raise ValueError(f"{arguments.file}: is a folder; pack a run first (moon pack {arguments.file})")
    classifier = load(arguments.file, threads=arguments.threads)
    names = list(_found(arguments.images))
    write = _writer(arguments, names, classifier.classes)
    failed, scores, known = 0, [], 0
    for start in range(0, len(names), _BATCH):
        read, errors = _read(classifier, names[start : start + _BATCH])
        if len(names) == len(errors) == 1:
            raise DataError(errors[0])
        for error in errors:
            print(f"moon predict: {printable(error)}", file=sys.stderr)
        failed += len(errors)
        if not read:
            continue
        answers = classifier([pixels for _, pixels in read])
        known += int(answers.is_known.sum())
        scores += answers.score.tolist()
        for (name, _), answer in zip(read, answers, strict=True):
            write(name, answer)
    if len(scores) > 1:
        print(f"{len(scores):,} images: {known:,} known, {len(scores) - known:,} unknown", file=sys.stderr)
    if alarm := _drift(classifier, scores, arguments.false_alarm):
        print(alarm, file=sys.stderr)
    if failed:
        others = "; the others are answered above" if failed < len(names) else ""
        raise DataError(f"{failed} of {len(names)} images could not be read{others}")


def _found(given: list[str]) -> Iterator[str]:
    """The image files that the arguments name; folders are searched."""
    from moon.data.folders import check_link, files_in, is_image
    from moon.errors import DataError

    for name in given:
        if not name:
            raise ValueError("the name of an image is empty; is a variable of the shell not set?")
        if not Path(name).is_dir():
            yield name
            continue
        found = sorted(path for path in files_in(Path(name), Path(name)) if is_image(path))
        if not found:
            raise DataError(f"{name}: no images in this folder")
        for path in found:
            check_link(path, Path(name))
        yield from map(str, found)


def _read(classifier: Classifier, names: list[str]) -> tuple[list[tuple[str, NDArray]], list[str]]:
    """Names and pixels of images, and what is wrong with the others."""
    from moon_runtime import ImageError

    read, errors = [], []
    for name in names:
        try:
            is_stream = name == "-"
            image = BytesIO(sys.stdin.buffer.read(_MAX_INPUT)) if is_stream else name
            read.append((name, classifier.prepare(image, "standard input" if is_stream else None)))
        except ImageError as error:
            errors.append(str(error))
    return read, errors


def _writer(arguments: argparse.Namespace, names: list[str], classes: list[str]) -> Callable[[str, Answer], None]:
    """A function that prints an answer in the form that was asked for; a table has its heading above the first one."""
    if arguments.json:
        return lambda name, answer: print(json.dumps({"file": name, **answer.as_json()}), flush=True)
    if arguments.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(("file", "verdict", "class", "probability", "p_value"))
        return lambda name, a: writer.writerow((name, a.verdict, a.name, f"{a.probability:.4f}", f"{a.p_value:.6f}"))
    from moon.cli.output import printable

    name_width = max(len(printable(name)) for name in [*names, "file"])
    class_width = max(len(printable(name)) for name in [*classes, "verdict"])

    def line(name: str, verdict: str, label: str, probability: str, p_value: str) -> None:
        print(
            f"{name:<{name_width}}  {verdict:<{class_width}}  {label:<{class_width}}  {probability:>11}  {p_value:>7}"
        )

    has_heading = False

    def write(name: str, answer: Answer) -> None:
        nonlocal has_heading
        if not has_heading:
            line("file", "verdict", "class", "probability", "p-value")
            has_heading = True
        probability, p_value = f"{answer.probability:.3f}", f"{answer.p_value:.4f}"
        line(printable(name), printable(answer.verdict), printable(answer.name), probability, p_value)

    return write


def _drift(classifier: Classifier, scores: list[float], false_alarm: float) -> str | None:
    """A warning if the scores differ from those of the calibration images.

    The order of files says nothing, and a folder is often sorted by class, so the scores are shuffled.
    """
    import numpy as np

    from moon.deploy.drift import DriftMonitor

    finite = np.array([score for score in scores if abs(score) < float("inf")])
    monitor = DriftMonitor(classifier.calibration, false_alarm)
    if not len(finite) or not monitor.update(np.random.default_rng(0).permutation(finite)):
        return None
    return (
        f"warning: the scores of these {monitor.seen:,} images differ from those of the calibration images (evidence "
        f"{monitor.capital:.3g}, alarm from {1 / false_alarm:.4g}). Either many are of unknown classes, or images of "
        f"known classes look different now; then fewer than {100 * classifier.accept:.4g}% of them may be accepted, "
        "and the network should be packed again with new validation images"
    )
