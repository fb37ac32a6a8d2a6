"""Run the torture tools one after another, and write one summary.

    python -m tests.torture --minutes 10                                               a third of the time for each
    python -m tests.torture --jobs 16 --kills 1000 --damages 3000 --all-points         until these counts are reached
    python -m tests.torture --jobs 16 --kills 1000 --minutes 9 --summary torture.json  or until the time is over

It needs moon's dependencies and `PYTHONPATH=src`, no installation and no network. What needs a package that is missing
is left out, and said so. Everything runs on the CPU, with one thread per process.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

UNITS = {"kill": "kills", "crash": "points", "damage": "damages"}


def versions() -> dict[str, Any]:
    """What the summary says about the software and the machine."""
    import os

    import torch

    from moon import __version__

    return {"moon": __version__, "python": platform.python_version(), "torch": torch.__version__,
            "machine": platform.machine(), "cores": os.cpu_count()}  # fmt: skip


def table(found: list[dict[str, Any]]) -> str:
    """The counts of all tools, one line for each."""
    columns = ["tool", "tried", "identical", "refused", "said", "findings", "seconds", "per minute and worker"]
    rows = [columns]
    for facts in found:
        counts, tried = facts["counts"], facts["counts"][UNITS[facts["tool"]]]
        rate = 60 * tried / max(facts["seconds"], 1) / facts["jobs"]
        cells = [facts["tool"], tried, *(counts.get(name, "-") for name in columns[2:5]), len(facts["findings"])]
        rows.append([str(cell) for cell in (*cells, facts["seconds"], f"{rate:.1f}")])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def shares(facts: dict[str, Any]) -> str:
    """What was tried, by command and phase."""
    split = sorted(f"{number} {name}" for name, number in facts["counts"].items() if ", " in name)
    return f"{facts['tool']}: {'; '.join(split)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="of all tools together (default: 10, or no limit with a count)")
    parser.add_argument("--kills", type=int, help="how many kills; with this or the next two, only these tools run")
    parser.add_argument(
        "--only", nargs="+", metavar="COMMAND", help="with --kills: kill only these, such as serve pack"
    )
    parser.add_argument("--damages", type=int, help="how many damages")
    parser.add_argument("--all-points", action="store_true", help="every crash point")
    parser.add_argument("--jobs", type=int, default=1, help="how many trials at the same time (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--summary", type=Path, metavar="FILE", help="write the counts and findings of all as JSON")
    arguments = parser.parse_args()
    counts = {"kill": arguments.kills, "crash": 10**9 if arguments.all_points else None, "damage": arguments.damages}
    tools = [tool for tool in UNITS if counts[tool] is not None] or list(UNITS)
    minutes = arguments.minutes
    if minutes is None:
        minutes = float("inf") if any(counts.values()) else 10.0
    end, found, codes = time.monotonic() + 60 * minutes, [], []
    for number, tool in enumerate(tools):
        left = max(0.1, (end - time.monotonic()) / 60 / (len(tools) - number))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "summary.json")
            options = ["--minutes", str(left), "--seed", str(arguments.seed), "--jobs", str(arguments.jobs)]
            options += ["--summary", str(path)] + (["--count", str(counts[tool])] if counts[tool] is not None else [])
            options += ["--only", *arguments.only] if arguments.only and tool == "kill" else []
            codes.append(subprocess.run([sys.executable, "-m", f"tests.torture.{tool}", *options]).returncode)
            found += [json.loads(path.read_bytes())] if path.exists() else []
    print(table(found), *map(shares, found), sep="\n")
    if arguments.summary is not None:
        argv = ["python", "-m", "tests.torture", *sys.argv[1:]]
        facts = {"command": " ".join(argv), **versions(), "tools": found, "complete": len(found) == len(tools)}
        arguments.summary.write_text(json.dumps(facts, indent=1) + "\n")
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
