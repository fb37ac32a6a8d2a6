"""Answers about image files: python -m moon_runtime [--json] FILE.moon IMAGE..."""

from __future__ import annotations

import argparse
import json
import sys

from moon_runtime.answers import Answer, printable
from moon_runtime.classifier import load
from moon_runtime.images import ImageError


def _line(path: str, answer: Answer) -> str:
    name = "" if answer.is_known else f"{printable(answer.name)}, "
    return (f"{printable(path)}: {printable(answer.verdict)} "
            f"({name}probability {answer.probability:.3f}, p-value {answer.p_value:.4f})")  # fmt: skip


def _json(path: str, answer: Answer) -> str:
    return json.dumps({"file": path, **answer.as_json()})


def main() -> int:
    """Print one line for each image; 1 if something could not be read."""
    parser = argparse.ArgumentParser("python -m moon_runtime", description="Say what images are: a class, or unknown.")
    parser.add_argument("file", metavar="FILE.moon")
    parser.add_argument("images", metavar="IMAGE", nargs="+")
    parser.add_argument("--json", action="store_true", help="print a JSON object for each image")
    parser.add_argument("--threads", type=int, default=1, help="default: 1")
    arguments = parser.parse_args()
    try:
        classifier = load(arguments.file, arguments.threads)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    status = 0
    for path in arguments.images:
        try:
            answer = classifier(path)[0]
        except (ImageError, ImportError) as error:
            print(error, file=sys.stderr)
            status = 1
        else:
            print((_json if arguments.json else _line)(path, answer), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
