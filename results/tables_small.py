"""The tables about the suite of small data, from what `moon bench small --out` wrote into results/small."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

from cells import Blocks, markdown
from kept import Kept

from moon.data.small import FAR
from moon.metrics.statistics import interval
from moon.results.format import interval_text
from moon.suite import summary

BLOCKS = Blocks()
FOLDER = Path(__file__).parent / "small"
BEFORE, NOW = ("moon", "fisher"), ("small", "layers")
NAMES = {"moon": "MOON, LeNet, 95% sparse (default before)", "plain": "plain, LeNet, 95% sparse", "small": "`small`"}


def _results(half: str) -> list[dict[str, Any]]:
    return json.loads((FOLDER / f"{half}.json").read_text(encoding="utf-8"))["results"]


def _table(half: str) -> str:
    rows = []
    for row in summary(_results(half)):
        shares = [f"{100 * row[key]:.1f}" for key in ("near", "far", "worst far", "known", "accuracy")]
        name = f"{NAMES[row['training']]}"
        cells = [name, row["detector"], str(row["runs"]), *shares, f"{row['cpu seconds']:.0f}"]
        rows.append([f"**{cell}**" for cell in cells] if (row["training"], row["detector"]) == NOW else cells)
    headings = ["training", "detector", "runs", "near", "far", "worst far set", "known", "accuracy %", "CPU s"]
    return markdown(headings, rows)


@BLOCKS.add
def small_test(kept: Kept) -> str:
    return _table("test")


@BLOCKS.add
def small_choosing(kept: Kept) -> str:
    return _table("choosing")


@BLOCKS.add
def small_sets(kept: Kept) -> str:
    """What is accepted of each kind of unknown images, before and now, on the test half."""
    rows, differences = [], []
    for benchmark in dict.fromkeys(r["benchmark"] for r in _results("test")):
        before, now = (_accepted(benchmark, *how) for how in (BEFORE, NOW))
        rows.append([benchmark, *(f"{100 * before[key]:.0f} → {100 * now[key]:.0f}" for key in now)])
        differences.append(100 * (now["near"] - before["near"]))
    table = markdown(["benchmark", "near", *FAR, "two other sets"], rows)
    ends = interval_text(*interval(differences), 0, sign=True)
    return f"{table}\nNear, mean difference: {mean(differences):+.0f} {ends} points (95% t interval over benchmarks).\n"


def _accepted(benchmark: str, training: str, detector: str) -> dict[str, float]:
    runs = [r for r in _results("test") if (r["benchmark"], r["training"]) == (benchmark, training)]
    shares = {key: mean(r["accepted"][detector][key] for r in runs) for key in runs[0]["accepted"][detector]}
    kinds = {kind: shares.pop(f"{benchmark}-{kind}") for kind in ("near", *FAR)}
    del shares["known"]
    return kinds | {"others": mean(shares.values())}
