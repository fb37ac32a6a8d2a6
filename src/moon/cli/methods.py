"""List every method with its kind, summary, paper and card, or explain one."""

from __future__ import annotations

import argparse
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moon.recipe.methods import Method

EXAMPLES = """
examples:
  moon methods
  moon methods detector     all of one kind
  moon methods vos          one method: its formula, options and card
  moon methods ebo:scaled   a variant of a detector
"""


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="KIND or NAME", help="show only this kind or method")


def act(arguments: argparse.Namespace) -> None:
    from moon.recipe.methods import find, methods

    name = arguments.name
    found = methods() if name is None else find(name)
    if name is None or name == found[0].kind:
        _list(found)
    else:
        print("\n\n".join(_explained(method) for method in found))


def _list(found: list[Method]) -> None:
    """One table per kind, narrow enough for a terminal of 80 columns."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from moon.cli.help import paragraph
    from moon.cli.output import show_table
    from moon.recipe.names import KINDS

    for kind in dict.fromkeys(method.kind for method in found):
        table = Table(title=kind, title_justify="left", title_style="bold", box=box.SIMPLE, pad_edge=False)
        table.add_column("name", no_wrap=True, min_width=16)
        table.add_column("summary (paper)", min_width=20)
        table.add_column("card or module", no_wrap=True)
        for method in found:
            if method.kind == kind:
                paper = f" [dim]({method.paper})[/]" if method.paper else ""
                table.add_row(method.name, escape(method.summary) + paper, method.source.rpartition("/")[2])
        show_table(table)
        if more := KINDS[kind].more:
            print(f"{paragraph(f'and {more}')}\n")


def _explained(method: Method) -> str:
    lines = [f"{method.title}, {method.kind} `{method.name}`", f"{method.summary[0].upper()}{method.summary[1:]}."]
    if method.paper:
        lines.append(f"paper: {method.paper}")
    lines += ["", *([textwrap.indent(method.about, "  "), ""] if method.about else [])]
    if method.options:
        lines.append("options: " + ", ".join(f"{key}={_shown(value)}" for key, value in method.options.items()))
        lines += [textwrap.fill(text, 80, initial_indent="  ", subsequent_indent="    ") for text in method.unset]
    if method.facts:
        lines.append("from the run: " + ", ".join(method.facts))
    use = f"{'score RUN' if method.kind == 'detector' else 'train digits'} --{method.kind} {method.name}"
    use += " --outliers photos" if "outliers" in method.facts else ""
    return "\n".join([*lines, f"use:     moon {use}", f"see:     {method.source}"])


def _shown(value: Any) -> str:
    """The value of an option: functions, classes and objects by their names."""
    if value is None or isinstance(value, int | float | str | list | tuple | dict):
        return repr(value)
    return getattr(value, "__name__", type(value).__name__.lower())
