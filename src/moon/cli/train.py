"""Train one network; the same command again goes on from its last checkpoint."""

from __future__ import annotations

import argparse
from pathlib import Path

from moon.cli.arguments import add_data, add_device, add_inexact, device_of, local_device, seconds, whole
from moon.cli.screen import counted, train_on_screen
from moon.data import BENCHMARKS, benchmark
from moon.experiments import build
from moon.experiments.bench import Bench
from moon.training.ranks import Ranks

EXAMPLES = """
examples:
  moon train digits --epochs 20
  moon train cifar10 --topology rigl --sparsity 0.95 --objective moon --seed 0
  moon train cifar10 --objective cross-entropy --rates moon --vote 0.2     the control
  moon train cifar10 --set final=2 --set quiet_epochs=3                    options of the objective
  moon train cifar10 --topology rigl --pattern 2:4                         a pattern that hardware runs
  torchrun --nproc-per-node 4 -m moon train cifar10                        four processes train as one
  moon train digits --objective outlier-exposure --outliers photos         with images of no known class
"""


def describe(parser: argparse.ArgumentParser) -> None:
    def one_of(kind: str, default: str = "%(default)s") -> str:
        return f"{', '.join(build.TABLES[kind])} (default: {default})"

    own = "the objective's"
    add = parser.add_argument
    add("benchmark", help=f"{', '.join(BENCHMARKS)}, or a set of your own")
    add("--objective", default="moon", help=one_of("objective"))
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the objective; repeatable")
    add("--outliers", default="", metavar="SET", help="images of no known class, for the objectives that need some")
    add("--topology", default="rigl", help=one_of("topology"))
    add("--sparsity", type=float, help="share of weights that are zero (default: 0.95, or the pattern's)")
    add("--pattern", default="", metavar="N:M", help="keep N of every M neighbouring inputs, such as 2:4")
    add("--allocation", default="erk", help=one_of("allocation"))
    add("--net", help=one_of("net", "the benchmark's"))
    add("--epochs", type=whole, default=100, help="(default: %(default)s)")
    add("--batch-size", type=whole, default=128, help="(default: %(default)s)")
    add("--seed", type=int, default=0, help="of all chance (default: %(default)s)")
    add("--rates", help=f"learning rates: {one_of('rates', own)}")
    add("--lr", type=float, help="where the learning rate starts, in place of the rates' own")
    add("--vote", type=float, metavar="SHARE", help="of epochs that vote, 0 for none (default: the objective's)")
    add("--weight-decay", type=float, default=5e-4, help="(default: %(default)s)")
    add("--delta-t", type=whole, default=100, metavar="STEPS", help="between rewirings (default: %(default)s)")
    add("--drop", type=float, default=0.3, metavar="SHARE", help="first replaced at a rewiring (default: %(default)s)")
    add("--t-end", type=float, default=0.7, metavar="SHARE", help="of the run that rewires (default: %(default)s)")
    add("--precision", default="float32", help="float32 or bfloat16 (default: %(default)s)")
    add("--out", type=Path, help="run folder (default: runs/<name made from the recipe>)")
    add(
        "--checkpoint-seconds", type=seconds, default=30, metavar="S", help="between checkpoints (default: %(default)s)"
    )
    add("--plain", action="store_true", help="on a GPU: the plain loop, where steps would be replayed from CUDA graphs")
    add_inexact(parser)
    add_data(parser)
    add_device(parser)


def act(arguments: argparse.Namespace) -> None:
    recipe = build.recipe(
        benchmark(arguments.data, arguments.benchmark),
        arguments.objective,
        options=dict(_pair(item) for item in arguments.set),
        rates=arguments.rates,
        lr=arguments.lr,
        vote_share=arguments.vote,
        net=arguments.net,
        topology=arguments.topology,
        sparsity=arguments.sparsity,
        pattern=arguments.pattern,
        outliers=arguments.outliers,
        allocation=arguments.allocation,
        drop_fraction=arguments.drop,
        delta_t_steps=arguments.delta_t,
        t_end_share=arguments.t_end,
        epochs=arguments.epochs,
        batch_size=arguments.batch_size,
        weight_decay=arguments.weight_decay,
        precision=arguments.precision,
        seed=arguments.seed,
    )
    device = device_of(arguments.device or local_device())
    ranks = Ranks.join(device)
    folder = arguments.out or Path("runs", recipe.name)
    bench = Bench.open(arguments.data, arguments.benchmark, outliers=arguments.outliers)
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


def _pair(item: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    if not (key and equals and value):
        raise ValueError(f"--set takes NAME=VALUE, not '{item}'")
    return key, value
