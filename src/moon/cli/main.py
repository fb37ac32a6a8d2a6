"""Parse, act, and turn what went wrong into one line on stderr and an exit code; --debug shows the traceback."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from moon import __version__
from moon.cli import bench, data, demo, grid, methods, paper, report, score, train
from moon.data import DataError
from moon.training import DamagedCheckpoint, Diverged, RunLocked

VERBS = {
    "demo": demo,
    "train": train,
    "score": score,
    "grid": grid,
    "paper": paper,
    "report": report,
    "methods": methods,
    "bench": bench,
    "data": data,
}

# The first that fits counts: a DataError is a ValueError too.
EXIT_CODES: dict[type[Exception], int] = {
    DataError: 3,
    DamagedCheckpoint: 4,
    Diverged: 5,
    RunLocked: 6,
    ValueError: 2,
    OSError: 3,
    Exception: 1,
}
EPILOG = """exit codes:
  0 done   1 an unforeseen error   2 bad arguments   3 bad data   4 damaged checkpoint or model
  5 the loss diverged   6 another process works in the run folder   130 stopped with Ctrl-C"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(2)


def parser() -> argparse.ArgumentParser:
    """The whole grammar: every verb's module describes its own part."""
    layout = argparse.RawDescriptionHelpFormatter
    top = _Parser(
        prog="moon",
        allow_abbrev=False,
        description="Train sparse neural networks that know what they do not know.",
        epilog=EPILOG,
        formatter_class=layout,
    )
    top.add_argument("--version", action="version", version=f"moon {__version__}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, module in VERBS.items():
        text = (module.__doc__ or "").strip()
        made = verbs.add_parser(
            name,
            allow_abbrev=False,
            help=text.replace("%", "%%"),
            description=text,
            epilog=module.EXAMPLES.strip("\n"),
            formatter_class=layout,
        )
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        made.set_defaults(act=module.act)
        module.describe(made)
    return top


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """The entry point."""
    arguments, unknown = parser().parse_known_args(argv)
    if unknown:
        verb = f"moon {arguments.verb}"
        print(f"{verb}: unrecognized arguments: {' '.join(unknown)} (see {verb} --help)", file=sys.stderr)
        sys.exit(2)
    try:
        arguments.act(arguments)
    except KeyboardInterrupt:
        print(
            "\nmoon: stopped; the same command goes on from the last checkpoint, if there is one yet", file=sys.stderr
        )
        sys.exit(130)
    except Exception as error:
        if arguments.debug:
            raise
        code = next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
        text = str(error)
        if isinstance(error, OSError) and error.filename is not None and error.strerror:
            text = f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}"
        if code == 1:
            text = f"{type(error).__name__}: {(text.splitlines() or [''])[0]} (--debug shows where)"
        print(f"moon {arguments.verb}: {text}", file=sys.stderr)
        sys.exit(code)
    sys.exit(0)
