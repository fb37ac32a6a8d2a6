"""Ask a packed network about images: a class or "unknown", with a probability and a p-value. PyTorch is not needed."""

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

    from moon.deploy import DriftMonitor

EXAMPLES = """
examples:
  moon predict digits.moon photo.png
  moon predict digits.moon photos/ --csv > answers.csv       all images in a folder and its subfolders
  curl -s https://.../photo.jpg | moon predict digits.moon -
"""
_BATCH = 32


def describe(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", type=Path, metavar="FILE.moon", help="a packed network, written by moon pack")
    add(
        "images", nargs="+", metavar="IMAGE", help="image files, folders of images, or - for an image on standard input"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object per line, with the detector's score")
    form.add_argument("--csv", action="store_true", help="comma-separated values")
    add("--threads", type=whole, default=1, help="threads to compute with (default: %(default)s)")
    add(
        "--false-alarm",
        type=fraction,
        default=0.01,
        help="probability of a false alarm that the images differ from those of the calibration (default: %(default)s)",
    )


def act(arguments: argparse.Namespace) -> None:
    from moon.deploy.drift import DriftMonitor
    from moon.deploy.loading import load
    from moon.errors import DataError

    if arguments.file.is_dir():
        raise ValueError(f"{arguments.file}: is a folder; pack a run first (moon pack {arguments.file})")
    classifier = load(arguments.file, threads=arguments.threads)
    names = list(_found(arguments.images))
    monitor = DriftMonitor(classifier.calibration, arguments.false_alarm)
    write = _writer(arguments, names, classifier.classes)
    failed = known = 0
    for start in range(0, len(names), _BATCH):
        pixels, errors = _read(classifier, names[start : start + _BATCH])
        if len(names) == len(errors) == 1:
            raise DataError(errors[0])
        for error in errors:
            print(f"moon predict: {error}", file=sys.stderr)
        failed += len(errors)
        if not pixels:
            continue
        answers = classifier(list(pixels.values()))
        known += int(answers.is_known.sum())
        monitor.update(answers.score)
        for name, answer in zip(pixels, answers, strict=True):
            write(name, answer)
    answered = len(names) - failed
    if answered > 1:
        print(f"{answered:,} images: {known:,} known, {answered - known:,} unknown", file=sys.stderr)
    if monitor.alarm:
        print(_alarm(monitor, classifier.accept), file=sys.stderr)
    if failed:
        raise DataError(f"{failed} of {len(names)} images could not be read; the others are answered above")


def _found(given: list[str]) -> Iterator[str]:
    """The image files that the arguments name; folders are searched."""
    from moon.data.folders import is_image
    from moon.errors import DataError

    for name in given:
        if not Path(name).is_dir():
            yield name
            continue
        found = sorted(path for path in Path(name).rglob("*") if path.is_file() and is_image(path))
        if not found:
            raise DataError(f"{name}: no images in this folder")
        yield from map(str, found)


def _read(classifier: Classifier, names: list[str]) -> tuple[dict[str, NDArray], list[str]]:
    """The pixels of images by name, and what is wrong with the others."""
    from moon_runtime import ImageError

    pixels, errors = {}, []
    for name in names:
        try:
            pixels[name] = classifier.prepare(BytesIO(sys.stdin.buffer.read()) if name == "-" else name)
        except ImageError as error:
            errors.append(str(error))
    return pixels, errors


def _writer(arguments: argparse.Namespace, names: list[str], classes: list[str]) -> Callable[[str, Answer], None]:
    """A function that prints an answer in the form that was asked for; headings are printed now."""
    if arguments.json:
        return lambda name, answer: print(json.dumps({"file": name, **answer.as_json()}), flush=True)
    if arguments.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(("file", "verdict", "class", "probability", "p_value"))
        return lambda name, a: writer.writerow((name, a.verdict, a.name, f"{a.probability:.4f}", f"{a.p_value:.6f}"))
    name_width = max(len(_plain(name)) for name in [*names, "file"])
    class_width = max(len(_plain(name)) for name in [*classes, "verdict"])

    def line(name: str, verdict: str, label: str, probability: str, p_value: str) -> None:
        print(
            f"{name:<{name_width}}  {verdict:<{class_width}}  {label:<{class_width}}  {probability:>11}  {p_value:>7}"
        )

    line("file", "verdict", "class", "probability", "p-value")
    return lambda name, a: line(
        _plain(name), _plain(a.verdict), _plain(a.name), f"{a.probability:.3f}", f"{a.p_value:.4f}"
    )


def _plain(text: str) -> str:
    """A name without characters that control a terminal."""
    return text if text.isprintable() else text.encode("unicode_escape", "replace").decode()


def _alarm(monitor: DriftMonitor, accept: float) -> str:
    """What an alarm of the monitor means."""
    return (
        f"warning: the scores of these {monitor.seen:,} images differ from those of the calibration images (evidence "
        f"{monitor.capital:.3g}, alarm from {1 / monitor.false_alarm:.4g}). Either many are of unknown classes, or "
        f"images of known classes look different now; then fewer than {accept:.0%} of them may be accepted, and the "
        "network should be packed again with new validation images"
    )
