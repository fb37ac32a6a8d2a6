"""An argument parser whose errors are one line and suggest the nearest word."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NoReturn

from moon.cli.output import printable
from moon.suggest import did_you_mean

_KINDS = {"verb": "command", "shell": "shell"}  # what a positional argument is called


class Parser(argparse.ArgumentParser):
    """Parses the arguments of a command; subparsers that it makes are of this class as well."""

    def __init__(self, **settings: Any) -> None:
        defaults = {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(**(defaults | settings))

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {printable(message)}; see {self.prog} --help", file=sys.stderr)
        sys.exit(2)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As in argparse, but an unknown option is reported before missing arguments, which may be its consequence."""
        words = list(sys.argv[1:] if args is None else args)
        self._check_options(words)
        return super().parse_known_args(words, namespace)

    def _check_options(self, words: Sequence[str]) -> None:
        own = takewhile(lambda word: word != "--", words)
        if self._subparsers is not None:  # what follows the first word belongs to a subparser
            own = takewhile(lambda word: word.startswith("-"), own)
        for word in own:
            name = word.partition("=")[0]
            if word[1:] and word.startswith("-") and name not in self._option_string_actions and os.path.exists(word):
                self.error(f"'{word}' is read as an option; put -- before names of files that begin with -")
            if name.startswith("--") and " " not in word and name not in self._option_string_actions:
                self.error(f"unknown option '{name}'{did_you_mean(name, self._option_string_actions)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        kind = "value" if action.option_strings else _KINDS.get(action.dest, "action")
        suggestion = did_you_mean(str(value), choices) or f"; choose from: {', '.join(choices)}"
        where = f" of {action.option_strings[-1]}" if action.option_strings else ""
        self.error(f"unknown {kind} '{value}'{where}{suggestion}")
