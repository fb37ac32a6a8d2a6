"""Arguments that several verbs share."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        type=Path,
        metavar="ROOT",
        default=Path(os.environ.get("MOON_DATA", "data")),
        help="folder of data sets, <name>/<split>.npz (default: $MOON_DATA, else ./data)",
    )


def add_inexact(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--inexact",
        action="store_true",
        help="on a GPU: the fastest kernels, whose sums have no fixed order; the last bits differ from run to run",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: cuda where there is one)")


def local_device() -> str | None:
    """The GPU of this process among those that torchrun started, or None to choose as usual."""
    if "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        return f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
    return None


def whole(text: str) -> int:
    """The type of arguments that are counts."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not '{text}'") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def seconds(text: str) -> float:
    """The type of arguments that are times."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, not '{text}'") from None
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be at least 0, not {text}")
    return number


def device_of(name: str | None) -> torch.device:
    """The device of that name, tried out."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device '{name}' cannot be used ({str(error).splitlines()[0]})") from None
    return device
