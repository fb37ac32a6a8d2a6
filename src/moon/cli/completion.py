"""Print a script that completes commands, options and names of methods in a shell."""

from __future__ import annotations

import argparse

EXAMPLES = """
examples:
  moon completion bash > ~/.local/share/bash-completion/completions/moon
  moon completion zsh > ~/.zfunc/_moon          and `fpath+=~/.zfunc` before compinit in ~/.zshrc
"""


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def act(arguments: argparse.Namespace) -> None:
    import shtab

    from moon.cli.main import parser

    top = parser()
    _add_completions(top)
    print(shtab.complete(top, arguments.shell))


def _add_completions(parser: argparse.ArgumentParser) -> None:
    """Let options that take methods, files or folders complete them; this parser is never used to parse."""
    import shtab

    from moon.data import BENCHMARKS
    from moon.recipe.names import KINDS, names_of

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            action.help = "commands"  # what is not listed is not completed
            for made in action.choices.values():
                _add_completions(made)
        elif action.dest in KINDS:  # the option of a kind of methods has its name
            more = ["auto"] if action.dest == "detector" else []
            action.choices = [*names_of(action.dest), *more]
        elif action.dest == "benchmark" and action.choices is None:
            action.choices = list(BENCHMARKS)
        elif action.dest in ("run", "runs", "out", "data"):
            action.complete = shtab.DIRECTORY  # pyright: ignore[reportAttributeAccessIssue]
        elif action.dest in ("file", "source", "images", "checkpoint", "pretrained", "onnx", "torch", "state_dict"):
            action.complete = shtab.FILE  # pyright: ignore[reportAttributeAccessIssue]
