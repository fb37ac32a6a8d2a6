"""Help texts that fit into a terminal: verbs by topic, short usage lines, and examples with their comments."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence

_MANY = 8  # options; more are not listed in the usage line


def columns() -> int:
    """The width of a line of help, as argparse computes it."""
    return max(20, shutil.get_terminal_size().columns - 2)


def paragraph(text: str) -> str:
    """A text in lines that fit."""
    return textwrap.fill(text, columns())


def overview(groups: Mapping[str, Sequence[str]], texts: Mapping[str, str]) -> str:
    """The verbs by topic, each with its description."""
    indent = max(map(len, texts)) + 4
    lines: list[str] = []
    for topic, verbs in groups.items():
        lines += ["", f"{topic}:"]
        for verb in verbs:
            lines += textwrap.wrap(
                texts[verb], columns(), initial_indent=f"  {verb}".ljust(indent), subsequent_indent=" " * indent
            )
    return "\n".join(lines).lstrip("\n")


def examples(text: str) -> str:
    """Examples, `command   comment` in each line; where a line is too long, the comment gets its own line above."""
    width, lines = columns(), []
    for line in text.strip("\n").splitlines():
        command, *comment = re.split(r"(?<=\S)\s{2,}", line, maxsplit=1)
        if len(line) <= width:
            lines.append(line)
        else:
            lines += [f"  # {words}" for words in comment]
            lines.append(
                " \\\n".join(textwrap.wrap(command.strip(), width - 2, initial_indent="  ", subsequent_indent="    "))
            )
    return "\n".join(lines)


def shorten_usage(parser: argparse.ArgumentParser) -> None:
    """Leave options out of the usage line if there are many: the list below it has them all."""
    if len(parser._get_optional_actions()) > _MANY and parser._subparsers is None:
        formatter = parser._get_formatter()
        names = [
            formatter._format_args(action, formatter._get_default_metavar_for_positional(action))
            for action in parser._get_positional_actions()
        ]
        parser.usage = " ".join(["%(prog)s", "[options]", *names])
