"""Train one network; running the same command again resumes from the last checkpoint."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from moon.cli.arguments import (
    add_checkpoint_seconds,
    add_data,
    add_device,
    add_inexact,
    add_parameters,
    device_of,
    local_device,
    pair,
)
from moon.data import BENCHMARKS
from moon.recipe import PARAMETERS

EXAMPLES = """
examples:
  moon train digits --epochs 20
  moon train cifar10 --topology rigl --sparsity 0.95 --objective moon --seed 0
  moon train cifar10 --preset control                                  cross-entropy with MOON's rates and vote
  moon train cifar10 --set final=2 --set quiet_epochs=3                options of the objective
  moon train digits --log tensorboard csv                              TensorBoard, and metrics.csv
  moon train cifar10 --topology rigl --pattern 2:4                     a pattern that hardware supports
  torchrun --nproc-per-node 4 -m moon train cifar10                    four processes train as one
  moon train digits --objective outlier-exposure --outliers photos     with images of no known class
"""


JSON = "the folder, and the content of its result.json"
LOGGERS = ("tensorboard", "csv", "wandb")


def describe(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("benchmark", help=f"{', '.join(BENCHMARKS)}, or a data set of your own")
    add_parameters(parser)
    text = "an option of the objective or topology"
    add("--set", type=pair, action="append", default=[], metavar="NAME=VALUE", help=text)
    add("--out", type=Path, metavar="FOLDER", help="run folder (default: runs/<name made from the recipe>)")
    add_checkpoint_seconds(parser)
    add(
        "--log", nargs="+", choices=(*LOGGERS, "none"), metavar="LOGGER",
        help=f"where the log is written besides log.jsonl: {', '.join(LOGGERS)} (offline), several of them, or none "
        "(default: tensorboard if it is installed)",
    )  # fmt: skip
    add("--plain", action="store_true", help="on a GPU: use the plain loop instead of CUDA graphs")
    add_inexact(parser)
    add_data(parser)
    add_device(parser)


def act(arguments: argparse.Namespace) -> dict[str, Any] | None:
    from moon.errors import RankLost

    # Read by `import torch`: without it, C++ traces are printed if the process that serves the common store is lost.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        return _train(arguments)
    except RankLost as error:
        _leave(error, arguments.debug)


def _train(arguments: argparse.Namespace) -> dict[str, Any] | None:
    from moon.cli.screen import can_be_packed, train_on_screen
    from moon.recipe.expand import recipe_of
    from moon.run.images import BenchmarkImages
    from moon.run.learning import warn_at_end
    from moon.run.loggers import check_loggers
    from moon.suggest import counted
    from moon.training.ranks import Ranks

    given = {name: getattr(arguments, name) for name in PARAMETERS}
    recipe = recipe_of(arguments.data, given, dict(arguments.set))
    device = device_of(arguments.device or local_device())
    ranks = Ranks.join(device)
    folder = arguments.out or Path("runs", recipe.name)
    _check_folder(folder)
    images = BenchmarkImages.open(arguments.data, arguments.benchmark, outliers=recipe.outliers)
    if arguments.log is not None and "none" in arguments.log and len(arguments.log) > 1:
        raise ValueError("--log none cannot be combined with other loggers")
    loggers = None if arguments.log is None else [name for name in arguments.log if name != "none"]
    result = train_on_screen(
        recipe, folder, images, device, arguments.checkpoint_seconds, ranks, arguments.plain, not arguments.inexact,
        check_loggers(loggers),
    )  # fmt: skip
    if not ranks.is_first:
        return None
    known = result["known"]
    zeros, sparsity = result.get("zeros"), 1 - result["density"]
    share = "" if zeros is None or sparsity - zeros < 0.01 else f" ({zeros:.2%} of all matrices)"
    print(
        f"{folder}: accuracy {known['accuracy']:.2%}, ECE {known['ece']:.4f}, sparsity {sparsity:.2%}{share}, "
        f"{counted(result['voters'], 'vote')}, {result['seconds']:.0f} s"
    )
    warn_at_end(known["accuracy"], images.splits["test"].labels, recipe)
    if images.unknown:
        print(f"next: moon score {folder}")
    else:
        pack = f", or moon pack {folder}" if can_be_packed(images) else ""
        print(f"next: moon score {folder} --near SET, on a set of unknown images{pack}")
    return {"folder": folder, **result}


def _leave(error: Exception, debug: bool) -> NoReturn:
    """Print the loss of a process, and end at once: an ordinary exit waits for the lost one as long as torch does."""
    from moon.cli.failing import explained
    from moon.cli.stopping import RESUMES
    from moon.training import peers

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):  # torchrun sends one as soon as a process is lost
        signal.signal(number, signal.SIG_IGN)
    code, text = explained(error)
    with suppress(OSError):  # the terminal may be gone; the signals that would end the process are ignored now
        if debug:
            traceback.print_exception(error)
        print(f"moon train: {text}; {RESUMES}", file=sys.stderr, flush=True)
        sys.stdout.flush()
    peers.close()
    os._exit(code)


def _check_folder(folder: Path) -> None:
    """Raise a ValueError if the folder contains something other than a run, or a new run cannot be written there."""
    from moon.files import check_writable

    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if "recipe.json" in names:
        return
    check_writable(folder, "choose another folder (--out)")
    if others := [name for name in names if name != "lock" and name[0] != "."]:
        raise ValueError(f"{folder}: contains {others[0]} but no run; choose an empty or new folder (--out)")
