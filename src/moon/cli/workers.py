"""Options for where the runs of a grid are executed, and how many at a time."""

from __future__ import annotations

import argparse

from moon.cli.arguments import add_checkpoint_seconds, add_inexact, whole


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add the options for where to run and how many runs at a time."""
    add = parser.add_argument
    add("--jobs", type=whole, help="runs at a time (default: one per core, or one per GPU)")
    add("--per-gpu", type=whole, default=1, help="runs at a time on each GPU (default: %(default)s)")
    text = "CPU threads of each run (default: OMP_NUM_THREADS, else one for small networks and a share of the cores"
    add("--threads", type=whole, help=f"{text} for others)")
    add("--device", help="cpu, cuda or cuda:1, ... (default: all GPUs, else cpu)")
    add("--ray", nargs="?", const="local", metavar="ADDRESS", help="run on Ray: local (default), auto, or an address")
    add("--gpus", type=float, default=0.0, help="GPUs per run on Ray; fractions share one (default: %(default)s)")
    add_inexact(parser)
    add("--retries", type=int, default=3, help="retries if a run's process or machine fails (default: %(default)s)")
    add("--retry-failed", action="store_true", help="also retry runs that failed because of their settings or data")
    add_checkpoint_seconds(parser)
