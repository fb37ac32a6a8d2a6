"""List every method with its kind, summary, paper and card, or explain one."""

from __future__ import annotations

import argparse
import textwrap

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from moon.recipe.methods import Method, find, methods

EXAMPLES = """
examples:
  moon methods
  moon methods detector     all of one kind
  moon methods vos          one method: its formula, options and card
"""
_USE = {
    "objective": "moon train digits --objective {}",
    "topology": "moon train digits --topology {}",
    "allocation": "moon train digits --allocation {}",
    "rates": "moon train digits --rates {}",
    "detector": "moon score RUN --detector {}",
    "net": "moon train digits --net {}",
    "preset": "moon train digits --preset {}",
}


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="KIND or NAME", help="show only this kind or method")


def act(arguments: argparse.Namespace) -> None:
    name = arguments.name
    found = methods() if name is None else find(name)
    if name is None or name == found[0].kind:
        _list(found)
    else:
        print("\n\n".join(_explained(method) for method in found))


def _list(found: list[Method]) -> None:
    """One table per kind, narrow enough for a terminal of 80 columns."""
    console = Console()
    for kind in dict.fromkeys(method.kind for method in found):
        table = Table(title=kind, title_justify="left", title_style="bold", box=box.SIMPLE, pad_edge=False)
        table.add_column("name", no_wrap=True, min_width=16)
        table.add_column("summary (paper)")
        table.add_column("card or module", no_wrap=True)
        for method in found:
            if method.kind == kind:
                paper = f" [dim]({method.paper})[/]" if method.paper else ""
                table.add_row(method.name, escape(method.summary) + paper, method.source.rpartition("/")[2])
        console.print(table)


def _explained(method: Method) -> str:
    lines = [f"{method.title}, {method.kind} `{method.name}`", f"{method.summary[0].upper()}{method.summary[1:]}."]
    if method.paper:
        lines.append(f"paper: {method.paper}")
    lines += ["", textwrap.indent(method.about, "  "), ""]
    if method.options:
        lines.append("options: " + ", ".join(f"{key}={value!r}" for key, value in method.options.items()))
    if method.facts:
        lines.append("from the run: " + ", ".join(method.facts))
    use = _USE[method.kind].format(method.name) + (" --outliers photos" if "outliers" in method.facts else "")
    return "\n".join([*lines, f"use:     {use}", f"see:     {method.source}"])
