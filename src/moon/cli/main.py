"""Parse the command line and call the command; errors become one line on stderr and an exit code.

A command imports the library when it acts. Until then nothing heavy is imported, so that `--help`, `--version` and
errors in the arguments answer at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from importlib import import_module
from typing import NoReturn

from moon.cli.stopping import Stop, stopped_by_signals
from moon.cli.streams import flush, is_unread, open_closed

GROUPS = {
    "start": ("demo", "data", "methods"),
    "train and compare": ("train", "score", "grid", "report", "paper", "bench"),
    "use a network": ("pack", "predict", "serve", "export"),
    "shell": ("completion",),
}
VERBS = tuple(verb for verbs in GROUPS.values() for verb in verbs)
ANSWERS = ("predict", "methods", "completion")  # verbs that only print, so that --quiet would leave nothing
EPILOG = """exit codes:
  0 success   1 unexpected error   2 invalid arguments   3 invalid data
  4 damaged checkpoint or model   5 the loss diverged
  6 another process uses the run folder   7 the disk is full
  8 one of several processes that train together was lost
  130 stopped with Ctrl-C: the same command resumes
  75 stopped by SIGTERM or SIGHUP: the same command resumes"""


def parser() -> argparse.ArgumentParser:
    """Build the parser; the module of each command adds its own arguments.

    A module whose `act` returns what a script would want to know describes it in `JSON`.
    """
    from moon import __version__
    from moon.cli.help import examples, overview, paragraph, shorten_usage
    from moon.cli.parsing import Parser

    modules = {name: import_module(f"moon.cli.{name}") for name in VERBS}
    texts = {name: (module.__doc__ or "").strip() for name, module in modules.items()}
    about = f"Train sparse neural networks that know what they do not know.\n\n{overview(GROUPS, texts)}"
    top = Parser(prog="moon", usage="moon [-h] [--version] COMMAND ...", description=about, epilog=EPILOG)
    top.add_argument("--version", action="version", version=f"moon {__version__}")
    verbs = top.add_subparsers(prog="moon", dest="verb", metavar="COMMAND", required=True, help=argparse.SUPPRESS)
    for name, module in modules.items():
        made = verbs.add_parser(
            name, help=texts[name], description=paragraph(texts[name]), epilog=examples(module.EXAMPLES)
        )
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        if name not in ANSWERS:
            made.add_argument("--quiet", action="store_true", help="print warnings and errors only")
        if hasattr(module, "JSON"):
            made.add_argument("--json", action="store_true", help=f"print only this, as JSON: {module.JSON}")
        made.set_defaults(act=module.act)
        module.describe(made)
        shorten_usage(made)
    return top


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """The entry point."""
    stop = Stop()
    open_closed()
    with stopped_by_signals(stop):
        try:
            from moon.cli.output import printed_logs, replace_unprintable

            replace_unprintable()
            with printed_logs():
                _run(argv, stop)
        except KeyboardInterrupt:
            stop.leave()
        finally:
            flush()
    sys.exit(0)


def _act(arguments: argparse.Namespace) -> None:
    """Call the command, and print what it returns if JSON was asked for."""
    is_json = getattr(arguments, "json", False) and arguments.verb not in ANSWERS
    from moon.cli.output import Incomplete

    failure = None
    with _silence() if is_json or getattr(arguments, "quiet", False) else nullcontext():
        try:
            value = arguments.act(arguments)
        except Incomplete as error:
            value, failure = error.value, error
    if is_json and value is not None:
        import json

        print(json.dumps(value, indent=2, default=str))
    if failure is not None:
        raise failure


@contextmanager
def _silence() -> Iterator[None]:
    """Context in which nothing is printed to standard output."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        yield


def _run(argv: Sequence[str] | None, stop: Stop) -> None:
    from moon.cli.arguments import check_data

    arguments, unknown = parser().parse_known_args(argv)
    stop.verb = arguments.verb
    command = f"moon {arguments.verb}"
    if unknown:
        print(f"{command}: unrecognized arguments: {' '.join(unknown)}; see {command} --help", file=sys.stderr)
        sys.exit(2)
    with suppress(FileNotFoundError):  # the folder may have been deleted
        if os.getcwd() not in sys.path:  # last, so that a file of the user cannot replace a module of Python
            sys.path.append(os.getcwd())
    try:
        check_data(arguments)
        _act(arguments)
        sys.stdout.flush()
    except Exception as error:
        if stop.code is not None:  # an error while it was being stopped, such as a terminal that is gone
            raise KeyboardInterrupt from error
        if isinstance(error, BrokenPipeError) and is_unread(1):
            if arguments.verb not in ANSWERS:  # their reader has seen enough, as in `moon predict ... | head`
                print(f"{command}: stopped, because the reader of its output is gone{stop.advice}", file=sys.stderr)
            sys.exit(1)
        if arguments.debug:
            raise
        from moon.cli.failing import explained

        code, text = explained(error)
        from moon.cli.output import printable

        print(f"{command}: {printable(text)}", file=sys.stderr)
        sys.exit(code)
