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
"""
JSON = "the file, its size and the number of runs"


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="run folders, or folders of them")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="HTML file to write (default: report.html in the first folder)"
    )
    parser.add_argument("--title", default="", help="title of the page")


def act(arguments: argparse.Namespace) -> dict[str, Any]:
    if missing := [name for name in ("jinja2", "matplotlib") if find_spec(name) is None]:
        raise ValueError(f"the report needs {' and '.join(missing)}; pip install {' '.join(missing)}")
    from moon.files import check_writable
    from moon.report.page import write_report

    target = arguments.out or arguments.runs[0] / "report.html"
    if target.suffix != ".html":
        raise ValueError(f"{target}: the report must be an .html file (--out)")
    check_writable(target, "choose another file (--out)")
    runs = write_report(arguments.runs, target, arguments.title)
    print(f"{target}: {len(runs)} run{'s' if len(runs) > 1 else ''}, {target.stat().st_size / 1e6:.1f} MB")
    return {"file": target, "runs": len(runs), "bytes": target.stat().st_size}
