"""Train one network; the same command again goes on from its last checkpoint."""

from __future__ import annotations

import argparse
from pathlib import Path

from moon.cli.arguments import add_data, add_device, add_inexact, device_of, local_device, seconds, whole
from moon.cli.screen import counted, train_on_screen
from moon.data import BENCHMARKS, benchmark
from moon.recipe import build
from moon.recipe.expand import AXES
from moon.recipe.recipe import Recipe
from moon.run.images import Bench
from moon.training.ranks import Ranks

EXAMPLES = """
examples:
  moon train digits --epochs 20
  moon train cifar10 --topology rigl --sparsity 0.95 --objective moon --seed 0
  moon train cifar10 --preset control                                      a training that has a name
  moon train cifar10 --set final=2 --set quiet_epochs=3                    options of the objective
  moon train cifar10 --topology rigl --pattern 2:4                         a pattern that hardware runs
  torchrun --nproc-per-node 4 -m moon train cifar10                        four processes train as one
  moon train digits --objective outlier-exposure --outliers photos         with images of no known class
"""


def describe(parser: argparse.ArgumentParser) -> None:
    """What makes the recipe is left out (None) where it is not given: a preset, the method or the recipe says it."""

    def one_of(kind: str, default: str) -> str:
        return f"{', '.join(build.TABLES[kind])} (default: {default})"

    own = "the objective's"
    add = parser.add_argument
    add("benchmark", help=f"{', '.join(BENCHMARKS)}, or a set of your own")
    add("--preset", help=f"a training that has a name: {one_of('preset', 'none')}; what is given beside it counts more")
    add("--objective", help=one_of("objective", "moon"))
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the objective; repeatable")
    add("--outliers", metavar="SET", help="images of no known class, for the objectives that need some")
    add("--topology", help=one_of("topology", Recipe.topology))
    add("--sparsity", type=float, help=f"share of weights that are zero (default: {Recipe.sparsity}, or the pattern's)")
    add("--pattern", metavar="N:M", help="keep N of every M neighbouring inputs, such as 2:4")
    add("--allocation", help=one_of("allocation", Recipe.allocation))
    add("--net", help=one_of("net", "the benchmark's"))
    add("--epochs", type=whole, help=f"(default: {Recipe.epochs})")
    add("--batch-size", type=whole, help=f"(default: {Recipe.batch_size})")
    add("--seed", type=int, help=f"of all chance (default: {Recipe.seed})")
    add("--rates", help=f"learning rates: {one_of('rates', own)}")
    add("--lr", type=float, help="where the learning rate starts, in place of the rates' own")
    add("--vote", type=float, metavar="SHARE", help="of epochs that vote, 0 for none (default: the objective's)")
    add("--weight-decay", type=float, help=f"(default: {Recipe.weight_decay})")
    add("--delta-t", type=whole, metavar="STEPS", help=f"between rewirings (default: {Recipe.delta_t_steps})")
    add("--drop", type=float, metavar="SHARE", help=f"first replaced at a rewiring (default: {Recipe.drop_fraction})")
    add("--t-end", type=float, metavar="SHARE", help=f"of the run that rewires (default: {Recipe.t_end_share})")
    add("--precision", help=f"float32 or bfloat16 (default: {Recipe.precision})")
    add("--out", type=Path, help="run folder, new or this run's (default: runs/<name made from the recipe>)")
    add(
        "--checkpoint-seconds", type=seconds, default=30, metavar="S", help="between checkpoints (default: %(default)s)"
    )
    add("--plain", action="store_true", help="on a GPU: the plain loop, where steps would be replayed from CUDA graphs")
    add_inexact(parser)
    add_data(parser)
    add_device(parser)


def act(arguments: argparse.Namespace) -> None:
    words = {called: getattr(arguments, word) for word, (called, _) in AXES.items() if word != "benchmark"}
    recipe = build.asked(
        benchmark(arguments.data, arguments.benchmark),
        {called: value for called, value in words.items() if value is not None},
        dict(_pair(item) for item in arguments.set),
    )
    device = device_of(arguments.device or local_device())
    ranks = Ranks.join(device)
    folder = arguments.out or Path("runs", recipe.name)
    _check_own(folder)
    bench = Bench.open(arguments.data, arguments.benchmark, outliers=recipe.outliers)
    result = train_on_screen(
        recipe, folder, bench, device, arguments.checkpoint_seconds, ranks, arguments.plain, not arguments.inexact
    )
    if not ranks.is_first:
        return
    known = result["known"]
    print(
        f"{folder}: accuracy {known['accuracy']:.2%}, ECE {known['ece']:.4f}, sparsity {1 - result['density']:.2%}, "
        f"{counted(result['voters'], 'vote')}, {result['seconds']:.0f} s\nnext: moon score {folder}"
    )


def _check_own(folder: Path) -> None:
    """Refuse a folder that has something in it, but no run."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if "recipe.json" not in names and (others := [name for name in names if name != "lock" and name[0] != "."]):
        raise ValueError(f"{folder}: holds {others[0]}, but no run; give another --out, a run has a folder of its own")


def _pair(item: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    if not (key and equals and value):
        raise ValueError(f"--set takes NAME=VALUE, not '{item}'")
    return key, value
