"""Measure what a training step or a score costs beside what it is compared with, in one interleaved run."""

from __future__ import annotations

import argparse
import datetime
import os
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from moon import timing as speed
from moon.cli.arguments import add_device, add_inexact, device_of, whole
from moon.cli.screen import counted, tracked
from moon.data import BENCHMARKS, Benchmark
from moon.files import write_json
from moon.recipe import build
from moon.run.train import hardware, set_exact, software

EXAMPLES = """
examples:
  moon bench train                                       MOON and plain cross-entropy, ResNet-18
  moon bench train --objective all --topology rigl
  moon bench train --objective moon --topology all
  moon bench train --topology dense rigl --precision bfloat16
  moon bench score --queries 2000 --bank 2000
  moon bench score --queries 50000 --bank 50000 --from-evidence
"""


def describe(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("what", choices=("train", "score"), help="steps of training, or scoring with detectors")
    add("--objective", nargs="+", default=["moon"], metavar="NAME", help="or all; beside cross-entropy (default: moon)")
    add("--topology", nargs="+", default=["rigl"], metavar="NAME", help="or all (default: rigl)")
    add("--benchmark", default="cifar10", help="whose image shape and net to take (default: %(default)s)")
    add("--net", help="(default: the benchmark's)")
    add("--sparsity", type=float, help="(default: 0.95)")
    add("--batch-size", type=whole, default=128, help="(default: %(default)s)")
    add("--precision", default="float32", help="float32, bfloat16 to train or float16 to score (default: %(default)s)")
    add("--steps", type=whole, help="of each contender in a round (default: an epoch's on a GPU, else 5)")
    add("--rounds", type=whole, default=8, help="(default: %(default)s)")
    add("--images", type=whole, default=50_000, help="of an epoch, to tell what 100 take (default: %(default)s)")
    add("--queries", type=whole, default=5000, help="images to score (default: %(default)s)")
    add("--bank", type=whole, default=5000, help="images to fit detectors on (default: %(default)s)")
    add("--from-evidence", action="store_true", help="score made-up evidence, as if it had been kept: nothing is read")
    add("--out", type=Path, metavar="FILE", help="write the figures as JSON too")
    add_inexact(parser)
    add_device(parser)


def act(arguments: argparse.Namespace) -> None:
    if arguments.batch_size < 2:
        raise ValueError("a batch of one has no statistics; give --batch-size 2 or more")
    if arguments.out is not None:
        _check_out(arguments.out)  # refused before anything is measured
    if arguments.from_evidence and arguments.precision != "float32":
        raise ValueError("from evidence nothing is read; leave out --precision")
    device = device_of(arguments.device)
    set_exact(not arguments.inexact)
    row = build.pick(BENCHMARKS, arguments.benchmark, "benchmark")
    result = _train(arguments, row, device) if arguments.what == "train" else _score(arguments, row, device)
    if arguments.out is not None:
        about = {
            "date": datetime.date.today().isoformat(),
            "hardware": hardware(device),
            "software": software(),
            "benchmark": arguments.benchmark,
            "net": arguments.net or row.net,
            "exact": not arguments.inexact,
        }
        write_json(arguments.out, about | result)
        print(f"written: {arguments.out}")


def _check_out(path: Path) -> None:
    """Refuse a file that cannot be written."""
    if path.is_dir():
        raise ValueError(f"--out {path} is a folder; name a file in it, such as {path / 'bench.json'}")
    folder = path.parent
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {path}: {folder} is a file, not a folder")
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise ValueError(f"--out {path}: nothing can be written into {folder}; name another folder")


def _names(kind: str, given: list[str]) -> list[str]:
    table = build.TABLES[kind]
    if given == ["all"]:
        return list(table)
    for name in given:
        build.pick(table, name, kind)  # refused before anything is built
    return given


_TEXTS = ("objective", "topology", "detector", "loop")


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, no_wrap=True, justify="left" if heading in _TEXTS else "right")
    return table


def _train(arguments: argparse.Namespace, row: Benchmark, device: torch.device) -> dict:
    topologies = _names("topology", arguments.topology)
    contenders = [(o, t) for t in topologies for o in (speed.BASE, *_names("objective", arguments.objective))]
    epoch = -(-arguments.images // arguments.batch_size)
    arguments.steps = arguments.steps or (epoch if device.type == "cuda" else 5)
    settings = {"net": arguments.net, "batch_size": arguments.batch_size, "precision": arguments.precision}
    sparsity = {} if arguments.sparsity is None else {"sparsity": arguments.sparsity}
    rows = speed.time_steps(
        row, list(dict.fromkeys(contenders)), device=device, steps=arguments.steps, rounds=arguments.rounds,
        track=tracked, **settings, **sparsity,
    )  # fmt: skip
    limits = speed.limits(row, device=device, **settings)
    title = (
        f"A training step of {arguments.net or row.net}, batch {arguments.batch_size}, {arguments.precision}, "
        f"on {hardware(device)}"
    )
    table = _table(title, "objective", "topology", "loop", "ms", "ratio", "by base", "100 epochs")
    for r in rows:
        for loop in ("plain", "captured"):
            if loop in r:
                own = r[loop]
                own["seconds_of_100_epochs"] = own["milliseconds"] * epoch / 10
                ratio = f"{own['ratio']:.3f} ±{(own['ratio_high'] - own['ratio_low']) / 2:.3f}"
                table.add_row(
                    r["objective"], r["topology"], loop, f"{own['milliseconds']:.2f}", ratio,
                    f"{own['by_base']:.3f}", f"{own['seconds_of_100_epochs']:.0f} s",
                )  # fmt: skip
    table.add_section()
    for name, key in (("products", "matrix_milliseconds"), ("and memory", "milliseconds")):
        table.add_row("limit", name, "", f"{limits[key]:.2f}", "", "", f"{limits[key] * epoch / 10:.0f} s")
    Console().print(table)
    for r in rows:
        if "plain_because" in r:
            print(f"{r['objective']} {r['topology']} is not captured: {r['plain_because']}")
    Console().print(
        f"ratio: to the first line in the same loop, median over {counted(arguments.rounds, 'round')} of "
        f"{counted(arguments.steps, 'step')} in turn, ± half the width of their middle half; "
        f"by base: to {speed.BASE} on the same topology; "
        f"100 epochs are of {arguments.images:,} images.\n"
        f"limit: {limits['flops'] / 1e9:.3g} GFLOP at {limits['matrix_flops_per_second'] / 1e12:.3g} TFLOP/s, "
        f"{limits['traffic_bytes'] / 1e9:.2f} GB at {limits['bytes_per_second'] / 1e9:.0f} GB/s, both measured here",
        highlight=False,
    )
    counts = {"steps": arguments.steps, "rounds": arguments.rounds, "images": arguments.images}
    sizes = {"batch_size": arguments.batch_size, "precision": arguments.precision, **(sparsity or {"sparsity": 0.95})}
    return counts | sizes | {"limits": limits, "train": rows}


def _score(arguments: argparse.Namespace, row: Benchmark, device: torch.device) -> dict:
    result = speed.time_scores(
        row, build.TABLES["detector"], device=device, net=arguments.net, bank=arguments.bank,
        queries=arguments.queries, from_evidence=arguments.from_evidence, precision=arguments.precision, track=tracked,
        **({} if arguments.sparsity is None else {"sparsity": arguments.sparsity}),
    )  # fmt: skip
    table = _table(
        f"Scoring {arguments.queries:,} images, bank {arguments.bank:,}, on {hardware(device)}",
        "detector", "own s", "alone s",
    )  # fmt: skip
    for name, reason in result["left_out"].items():
        print(f"{name} is left out: {reason}")
    for name, seconds in sorted(result["alone"].items(), key=lambda item: -item[1]):
        table.add_row(name, f"{result['own'][name]:.3f}", f"{seconds:.3f}")
    Console().print(table)
    Console().print(
        "own: fitting and scoring; alone: with the reading of the images that it needs. Detectors that change the "
        "images (odin) share no reading and are not timed.",
        highlight=False,
    )
    if arguments.from_evidence:
        print(f"all {len(result['alone'])} from evidence: {result['from_evidence']:.2f} s")
        return {"score": result}
    print(
        f"all {len(result['alone'])} from one reading: {result['together']:.2f} s, {result['ratio']:.2f} of the "
        f"slowest alone ({result['slowest']})\n"
        f"of it reading {sum(result['reading'].values()):.2f} s, from kept evidence {result['from_evidence']:.2f} s\n"
        f"limit: the reading's products take {result['limit']:.2f} s at the rate of a large float32 matrix product"
    )
    if result["dense_reading"] is not None:
        print(
            f"those with weights that exist {result['limit_sparse']:.2f} s; "
            f"a plain reading with all of them {result['dense_reading']:.0f} s, at the pace of the validation images"
        )
    return {"score": result}
