"""Write one self-contained HTML page about runs: tables, figures, example images, and every recipe."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

EXAMPLES = """
examples:
  moon report runs/demo                             all runs in a folder
  moon report runs/cifar10-... runs/cifar10-... --out page.html
  moon report runs/grid --detector knn --against "moon 95%"     all methods against one, by its name on the page
  moon report runs/grid --figures figures                       the figures also as PDF, for a paper
"""
JSON = "the file, its size and the number of runs"


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="run folders, or folders of them")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="HTML file to write (default: report.html in the first folder)"
    )
    parser.add_argument("--title", default="", help="title of the page")
    parser.add_argument(
        "--detector",
        metavar="NAME",
        help="detector of the figures, comparisons and the table of methods (default: the choice of auto, else what "
        "moon pack uses)",
    )
    parser.add_argument(
        "--against",
        metavar="METHOD",
        help="compare all methods with this one (default: those that differ in one setting)",
    )
    parser.add_argument("--figures", type=Path, metavar="DIR", help="folder to write the figures to as well, as PDF")


def act(arguments: argparse.Namespace) -> dict[str, Any]:
    if missing := [name for name in ("jinja2", "matplotlib") if find_spec(name) is None]:
        raise ValueError(f"the report needs {' and '.join(missing)}; pip install {' '.join(missing)}")
    from moon.files import check_writable
    from moon.report.page import write_report
    from moon.suggest import counted

    target = arguments.out or arguments.runs[0] / "report.html"
    if target.suffix != ".html":
        raise ValueError(f"{target}: the report must be an .html file (--out)")
    check_writable(target, "choose another file (--out)")
    if arguments.figures is not None:
        check_writable(arguments.figures, "choose another folder (--figures)")
    chosen = {name: getattr(arguments, name) for name in ("detector", "against", "figures")}
    runs = write_report(arguments.runs, target, arguments.title, **chosen)
    print(f"{target}: {counted(len(runs), 'run')}, {target.stat().st_size / 1e6:.1f} MB")
    if arguments.figures is not None:
        print(f"figures as PDF: {arguments.figures}")
    return {"file": target, "runs": len(runs), "bytes": target.stat().st_size}
