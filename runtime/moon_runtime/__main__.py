"""Answer about image files: python -m moon_runtime FILE.moon IMAGE... (`moon predict` is the same)"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from moon_runtime.answers import printable
from moon_runtime.classifier import Classifier, load
from moon_runtime.drift import DriftMonitor
from moon_runtime.images import SUFFIXES, ImageError

_BATCH = 32
_MAX_INPUT = 2**29  # bytes of an image on standard input: more than any that is accepted
_HEADING = ("file", "verdict", "class", "probability", "p-value")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `run`."""
    add = parser.add_argument
    add("file", metavar="FILE.moon")
    add("images", nargs="+", metavar="IMAGE", help="image files, folders of images, or - for standard input")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object per line")
    form.add_argument("--csv", action="store_true", help="comma-separated values")
    add("--top-k", type=int, default=1, metavar="N", help="most probable classes of each image (default: 1)")
    add("--threads", type=int, default=1, help="threads to compute with (default: 1)")
    add("--limit", type=float, default=1, metavar="N",
        help="allow a file that you trust N times the memory and time (default: 1)")  # fmt: skip
    add("--false-alarm", type=float, default=0.01, help="probability of a false drift alarm (default: 0.01)")


def run(arguments: argparse.Namespace, classifier: Classifier, program: str) -> None:
    """Print an answer about each image. What cannot be read does not stop the others.

    Args:
        arguments: The images, and the options of `add_options`.
        classifier: The network.
        program: What the command is called in messages.

    Raises:
        ImageError: If something could not be read; the others have then been answered.
        ImportError: If Pillow is not installed.
        ValueError: If an option is out of range, or the name of an image is empty.
    """
    if arguments.top_k < 1:
        raise ValueError(f"--top-k must be 1 or more, not {arguments.top_k}")
    found = _find(arguments.images, program)
    write = _writer(arguments, [name for name, _ in found], classifier.classes)
    failed: list[str] = []
    scores, known = [], 0
    for start in range(0, len(found), _BATCH):
        rows, pixels = [], []
        for name, error in found[start : start + _BATCH]:
            try:
                if error:
                    raise ImageError(f"{name}: {error}")
                pixels.append(_read(classifier, name))
                rows.append({"file": name})
            except ImageError as refused:
                failed.append(str(refused))
                if len(found) > 1:
                    print(f"{program}: {printable(failed[-1])}", file=sys.stderr)
                rows.append({"file": name, "error": failed[-1].removeprefix(f"{name}: ")})
        answered = iter(_answers(classifier, pixels, arguments.top_k))
        for row in rows:
            if "error" not in row:
                row |= next(answered)
                scores.append(row["score"])
                known += row["is_known"]
            write(row)
    if len(scores) > 1:
        print(f"{len(scores):,} images: {known:,} known, {len(scores) - known:,} unknown", file=sys.stderr)
    if alarm := _drift(classifier, scores, arguments.false_alarm):
        print(alarm, file=sys.stderr)
    if failed:
        others = "; the others are answered above" if len(failed) < len(found) else ""
        several = f"{len(failed)} of {len(found)} images could not be read{others}"
        raise ImageError(several if len(found) > 1 else failed[0])


def _find(given: list[str], program: str) -> list[tuple[str, str]]:
    """Names of image files, each with what is known to be wrong with it or ""; folders are searched."""
    found: list[tuple[str, str]] = []
    for name in given:
        if not name:
            raise ValueError("the name of an image is empty; is a variable of the shell not set?")
        if os.path.isdir(name):
            found += _search(name, program) or [(name, "no images in this folder")]
        else:
            found.append((name, ""))
    return found


def _search(root: str, program: str) -> list[tuple[str, str]]:
    """The images in a folder, and the folders in it that cannot be read; links to files are followed."""
    found: list[tuple[str, str]] = []

    def refuse(error: OSError) -> None:
        found.append((error.filename, f"cannot be read ({error.strerror})"))

    for folder, folders, files in os.walk(root, onerror=refuse):
        for link in filter(os.path.islink, (os.path.join(folder, name) for name in folders)):
            print(f"{program}: {printable(link)}: a link to a folder, left out; name it to have its images answered",
                  file=sys.stderr)  # fmt: skip
        paths = [Path(folder, name) for name in files if not name.startswith(".")]
        found += [(str(path), "") for path in paths if path.suffix.lower() in SUFFIXES]
    return sorted(found, key=lambda each: Path(each[0]))


def _read(classifier: Classifier, name: str) -> np.ndarray:
    if name == "-":
        return classifier.prepare(BytesIO(sys.stdin.buffer.read(_MAX_INPUT)), "standard input")
    return classifier.prepare(name)


def _answers(classifier: Classifier, pixels: list[np.ndarray], top: int) -> Iterator[dict[str, Any]]:
    """What is printed about each image; "top" are its most probable classes if more than one is asked for."""
    answers = classifier(pixels) if pixels else ()
    chances = classifier.probabilities(pixels) if pixels and top > 1 else None
    for i, answer in enumerate(answers):
        row: dict[str, Any] = answer.as_json()
        if chances is not None:
            best = [answers.label[i], *(k for k in np.argsort(-chances[i], kind="stable") if k != answers.label[i])]
            row["top"] = [{"class": classifier.classes[k], "probability": float(chances[i, k])} for k in best[:top]]
        yield row


def _writer(arguments: argparse.Namespace, names: list[str], classes: list[str]) -> Callable[[dict[str, Any]], None]:
    """A function that prints a row in the form that was asked for."""
    if arguments.json:
        return lambda row: print(json.dumps(row), flush=True)
    if arguments.csv:
        return _csv_writer(min(arguments.top_k, len(classes)))
    name_width = max(len(printable(name)) for name in (*names, "file"))
    class_width = max(len(printable(name)) for name in (*classes, "verdict"))
    widths = (name_width, class_width, class_width, 11, 7)
    headings = [*_HEADING, *(["next"] if arguments.top_k > 1 else [])]

    def line(*cells: str) -> None:
        padded = [c.rjust(w) if i > 2 else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=False))]
        print("  ".join([*padded, *cells[len(widths) :]]).rstrip())

    def write(row: dict[str, Any]) -> None:
        if "error" in row:
            return
        if headings:
            line(*headings)
            headings.clear()
        texts = [printable(row[key]) for key in ("file", "verdict", "class")]
        others = ", ".join(f"{printable(x['class'])} {x['probability']:.3f}" for x in row.get("top", ())[1:])
        line(*texts, _number(row["probability"], ".3f"), _number(row["p_value"], ".4f"), *([others] if others else []))

    return write


def _csv_writer(top: int) -> Callable[[dict[str, Any]], None]:
    """Write the heading of a table with a row for every file, also for those that could not be read."""
    ranks = [f"{name}_{rank}" for rank in range(2, top + 1) for name in ("class", "probability")]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("file", "verdict", "class", "probability", "p_value", "score", *ranks, "error"))

    def write(row: dict[str, Any]) -> None:
        if "error" in row:
            writer.writerow((row["file"], *[""] * (5 + len(ranks)), row["error"]))
            return
        others = [x for other in row.get("top", ())[1:] for x in (other["class"], _number(other["probability"], ".4f"))]
        numbers = (
            _number(row[key], form) for key, form in (("probability", ".4f"), ("p_value", ".6f"), ("score", ".6g"))
        )
        writer.writerow((row["file"], row["verdict"], row["class"], *numbers, *others, ""))

    return write


def _number(value: float | None, form: str) -> str:
    return "nan" if value is None else format(value, form)


def _drift(classifier: Classifier, scores: list[float | None], false_alarm: float) -> str | None:
    """A warning if the scores differ from those of the calibration images.

    The order of files says nothing, and a folder is often sorted by class, so the scores are shuffled.
    """
    finite = np.array([score for score in scores if score is not None])
    monitor = DriftMonitor(classifier.calibration, false_alarm)
    if not len(finite) or not monitor.update(np.random.default_rng(0).permutation(finite)):
        return None
    return (
        f"warning: the scores of these {monitor.seen:,} images differ from those of the calibration images (evidence "
        f"{monitor.capital:.3g}, alarm from {1 / false_alarm:.4g}). Either many are of unknown classes, or images of "
        f"known classes look different now; then fewer than {100 * classifier.accept:.4g}% of them may be accepted, "
        "and the network should be packed again with new validation images"
    )


def main() -> int:
    """Parse the command line and answer; 1 and a line on stderr if something could not be read."""
    parser = argparse.ArgumentParser("python -m moon_runtime", description="Say what images are: a class, or unknown.")
    add_options(parser)
    arguments = parser.parse_args()
    try:
        run(arguments, load(arguments.file, arguments.threads, arguments.limit), parser.prog)
    except (ImportError, OSError, ValueError) as error:
        print(f"{parser.prog}: {printable(str(error))}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
