"""Parse the command line and call the command; errors become one line on stderr and an exit code.

A command imports the library when it acts. Until then nothing heavy is imported, so that `--help`, `--version` and
errors in the arguments answer at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from moon.cli.stopping import Stop, stopped_by_signals

VERBS = (
    "demo", "train", "score", "pack", "predict", "serve", "export", "grid", "paper", "report", "methods", "bench",
    "data",
)  # fmt: skip
EPILOG = """exit codes:
  0 success   1 unexpected error   2 invalid arguments   3 invalid data   4 damaged checkpoint or model
  5 the loss diverged   6 another process uses the run folder   7 the disk is full
  8 one of several processes that train together was lost   130 stopped with Ctrl-C
  75 stopped by SIGTERM or SIGHUP: the same command resumes"""


def parser() -> argparse.ArgumentParser:
    """Build the parser; the module of each command adds its own arguments."""
    from moon import __version__
    from moon.cli.parsing import Parser

    top = Parser(
        prog="moon", description="Train sparse neural networks that know what they do not know.", epilog=EPILOG
    )
    top.add_argument("--version", action="version", version=f"moon {__version__}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name in VERBS:
        module = import_module(f"moon.cli.{name}")
        text = (module.__doc__ or "").strip()
        epilog = module.EXAMPLES.strip("\n")
        made = verbs.add_parser(name, help=text.replace("%", "%%"), description=text, epilog=epilog)
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        made.set_defaults(act=module.act)
        module.describe(made)
    return top


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """The entry point."""
    stop = Stop()
    with stopped_by_signals(stop):
        try:
            from moon.cli.output import printed_logs, replace_unprintable

            replace_unprintable()
            with printed_logs():
                _run(argv, stop)
        except KeyboardInterrupt:
            stop.leave()
    sys.exit(0)


def _run(argv: Sequence[str] | None, stop: Stop) -> None:
    from moon.cli.arguments import check_data

    arguments, unknown = parser().parse_known_args(argv)
    stop.verb = arguments.verb
    command = f"moon {arguments.verb}"
    if unknown:
        print(f"{command}: unrecognized arguments: {' '.join(unknown)} (see {command} --help)", file=sys.stderr)
        sys.exit(2)
    if os.getcwd() not in sys.path:  # last, so that a file of the user cannot replace a module of Python
        sys.path.append(os.getcwd())
    try:
        check_data(arguments)
        arguments.act(arguments)
    except Exception as error:
        if stop.code is not None:  # an error while it was being stopped, such as a terminal that is gone
            raise KeyboardInterrupt from error
        if arguments.debug:
            raise
        from moon.cli.failing import explained

        code, text = explained(error)
        from moon.cli.output import printable

        print(f"{command}: {printable(text)}", file=sys.stderr)
        sys.exit(code)
