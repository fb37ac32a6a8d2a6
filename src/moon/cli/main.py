"""Parse the command line and call the command; errors become one line on stderr and an exit code."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import NoReturn

from rich import get_console

from moon import __version__
from moon.cli import bench, data, demo, grid, methods, paper, report, score, train
from moon.data import DataError
from moon.recipe import PARAMETERS
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

# The first match wins, because a DataError is also a ValueError.
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
  0 success   1 unexpected error   2 invalid arguments   3 invalid data   4 damaged checkpoint or model
  5 the loss diverged   6 another process uses the run folder   130 stopped with Ctrl-C"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(2)


def parser() -> argparse.ArgumentParser:
    """Build the parser; the module of each command adds its own arguments."""
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


class _Printer(logging.Handler):
    """Prints what the library logs, above a progress bar if there is one; warnings go to stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            print(self.format(record), file=sys.stderr)
            return
        get_console().print(self.format(record), highlight=False, markup=False, soft_wrap=True)


def _print_logs() -> None:
    logger = logging.getLogger("moon")
    if not any(isinstance(handler, _Printer) for handler in logger.handlers):
        logger.addHandler(_Printer())
    logger.setLevel(logging.INFO)


def _with_flags(message: str) -> str:
    """The message of the library with command-line flags for the parameters that it names in parentheses."""
    for parameter in PARAMETERS.values():
        message = message.replace(f"({parameter.setting})", f"(--{parameter.name.replace('_', '-')})")
    return message


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """The entry point."""
    _print_logs()  # building the parser may log already: it looks methods up
    arguments, unknown = parser().parse_known_args(argv)
    if unknown:
        verb = f"moon {arguments.verb}"
        print(f"{verb}: unrecognized arguments: {' '.join(unknown)} (see {verb} --help)", file=sys.stderr)
        sys.exit(2)
    try:
        arguments.act(arguments)
    except KeyboardInterrupt:
        print("\nmoon: stopped; the same command resumes from the last checkpoint, if there is one", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if arguments.debug:
            raise
        code = next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
        text = _with_flags(str(error))
        if isinstance(error, OSError) and error.filename is not None and error.strerror:
            text = f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}"
        if code == 1:
            text = f"{type(error).__name__}: {(text.splitlines() or [''])[0]} (--debug shows the traceback)"
        print(f"moon {arguments.verb}: {text}", file=sys.stderr)
        sys.exit(code)
    sys.exit(0)
