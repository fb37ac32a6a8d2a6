"""Unknown sets on the command line: the options that name them, and the message if there are none."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moon.grid import DataFacts
    from moon.recipe import Recipe


def add_unknown_sets(parser: argparse.ArgumentParser) -> None:
    """Add `--near` and `--far`."""
    for group in ("near", "far"):
        text = f"{group} unknown sets (default: the benchmark's)"
        parser.add_argument(f"--{group}", nargs="+", default=[], metavar="SET", help=text)


def no_unknown_set(benchmark: str, root: Path) -> str:
    """Say that a benchmark has no unknown set, and how to name some."""
    return (
        f"{benchmark}: no unknown set was found under {root}; name sets with --near and --far (moon score, moon grid), "
        f"or declare them in {root / 'benchmarks.toml'}; moon data shows what exists"
    )


def data_facts(root: Path, near: tuple[str, ...] = (), far: tuple[str, ...] = ()) -> Callable[[Recipe], DataFacts]:
    """Return a function that reads the current data of a recipe; the data of each benchmark are read once.

    `near` and `far` are unknown sets in place of the benchmarks'.
    """
    from moon.cli.screen import tracked
    from moon.grid import DataFacts
    from moon.run.images import BenchmarkImages
    from moon.score.files import digests

    @cache
    def facts(name: str, outliers: str) -> DataFacts:
        images = BenchmarkImages.open(
            root, name, near, far, outliers, track=lambda items: tracked(items, f"reading {name}")
        )
        if not images.unknown:
            print(f"nothing is scored: {no_unknown_set(name, root)}")
        groups = {"near": images.benchmark.near, "far": images.benchmark.far}
        found = {group: [name for name in names if name in images.unknown] for group, names in groups.items()}
        return DataFacts(images.fingerprint(), {"sha256": digests(images)} | found)

    return lambda recipe: facts(recipe.benchmark, recipe.outliers)
