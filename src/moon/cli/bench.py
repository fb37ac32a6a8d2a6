"""Time training steps, scoring or inference, or measure rejection on small data sets."""

from __future__ import annotations

import argparse
import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moon.cli import bench_kernels, bench_predict, bench_small, bench_steps
from moon.cli.arguments import add_action, add_data, add_device, add_inexact, device_of, whole

if TYPE_CHECKING:
    import torch

    from moon.data import Benchmark

EXAMPLES = """
examples:
  moon bench train                                       MOON and cross-entropy, ResNet-18
  moon bench score --queries 2000 --bank 2000            all detectors
  moon bench predict                                     moon-runtime against ONNX Runtime and others, on this CPU
  moon bench small                                       what packed files accept, on small data sets

`moon bench ACTION --help` explains an action and its arguments.
"""
_TRAIN_HELP = """
examples:
  moon bench train --objective all --topology rigl
  moon bench train --objective moon --topology all
  moon bench train --topology dense rigl --precision bfloat16
  moon bench train --precision bfloat16 --kernels        what a GPU does in a step
"""
_SCORE_HELP = """
examples:
  moon bench score --queries 2000 --bank 2000
  moon bench score --queries 50000 --bank 50000 --from-evidence
"""


def describe(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="what", metavar="ACTION", title="actions", required=True)
    _describe_train(_add_action(actions, "train", _train, "time training steps", _TRAIN_HELP))
    _describe_score(_add_action(actions, "score", _score, "time scoring with detectors", _SCORE_HELP))
    summary = "time the inference of sparse networks on a CPU"
    bench_predict.describe(_add_action(actions, "predict", bench_predict.measure, summary, bench_predict.HELP))
    summary = "measure what packed files accept, on twelve small data sets"
    small = add_action(actions, "small", summary, bench_small.HELP, measure=bench_small.measure)
    small.add_argument("--out", type=Path, metavar="FILE", help="also write the results as JSON")
    bench_small.describe(small)


def _add_action(
    actions: Any, name: str, measure: Callable[[argparse.Namespace], dict[str, Any]], summary: str, epilog: str
) -> argparse.ArgumentParser:
    parser = add_action(actions, name, summary, epilog, measure=measure)
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the results as JSON")
    add_data(parser)
    return parser


def _describe_train(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--objective",
        nargs="+",
        default=["moon"],
        metavar="NAME",
        help="objectives to time, or all; cross-entropy is always included (default: moon)",
    )
    add("--topology", nargs="+", default=["rigl"], metavar="NAME", help="topologies to time, or all (default: rigl)")
    add("--batch-size", type=whole, default=128, help="images per batch (default: %(default)s)")
    add("--precision", default="float32", help="float32 or bfloat16 (default: %(default)s)")
    add("--steps", type=whole, help="steps per contender and round (default: one epoch on a GPU, else 5)")
    add("--rounds", type=whole, default=8, help="number of rounds (default: %(default)s)")
    add("--images", type=whole, default=50_000, help="images per epoch, to estimate 100 epochs (default: %(default)s)")
    add("--kernels", action="store_true", help="also show what the GPU does in a captured step, kernel by kernel")
    _describe_network(parser)


def _describe_score(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--queries", type=whole, default=5000, help="images to score (default: %(default)s)")
    add("--bank", type=whole, default=5000, help="images to fit detectors on (default: %(default)s)")
    add("--precision", default="float32", help="float32 or, on a CPU, float16 (default: %(default)s)")
    add(
        "--from-evidence",
        action="store_true",
        help="score random evidence without forward passes, as with kept evidence",
    )
    _describe_network(parser)


def _describe_network(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--benchmark", default="cifar10", help="benchmark whose image shape and network to use (default: %(default)s)")
    add("--net", help="network, or its import path, package.module:function (default: the benchmark's)")
    add("--sparsity", type=float, help="sparsity of the network (default: 0.95)")
    add_inexact(parser)
    add_device(parser)


def act(arguments: argparse.Namespace) -> None:
    from moon.files import write_json
    from moon.run.machine import software

    if arguments.out is not None:
        _check_out(arguments.out)  # fails before anything is measured
    result = arguments.measure(arguments)
    if arguments.out is not None:
        about = {"date": datetime.date.today().isoformat(), "software": software()}
        write_json(arguments.out, about | result)
        print(f"written: {arguments.out}")


def _check_out(path: Path) -> None:
    """Raise a ValueError if the file cannot be written."""
    if path.is_dir():
        raise ValueError(f"--out {path} is a folder; give a file in it, such as {path / 'bench.json'}")
    folder = path.parent
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {path}: {folder} is a file, not a folder")
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise ValueError(f"--out {path}: {folder} is not writable; choose another folder")


def _names(kind: str, given: list[str]) -> list[str]:
    from moon.recipe import pick, table

    if given == ["all"]:
        names = list(table(kind))
        if without := [name for name in names if kind == "objective" and "teachers" in pick(kind, name).takes()]:
            print(f"left out: {', '.join(without)}, which needs trained networks")
        return [name for name in names if name not in without]
    for name in given:
        pick(kind, name)  # fails before anything is built
    return given


def _train(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.batch_size < 2:
        raise ValueError("BatchNorm needs at least two images; give --batch-size 2 or more")
    if arguments.kernels and device_of(arguments.device).type != "cuda":
        raise ValueError("--kernels needs a GPU, where steps are captured")
    return _on_device(arguments, _time_train)


def _score(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.from_evidence and arguments.precision != "float32":
        raise ValueError("--from-evidence runs no forward pass; remove --precision")
    return _on_device(arguments, _time_score)


def _on_device(
    arguments: argparse.Namespace, measure: Callable[[argparse.Namespace, Benchmark, torch.device], dict[str, Any]]
) -> dict[str, Any]:
    """What was measured, and on which device and network."""
    from moon.data import find_benchmark
    from moon.run.machine import cudnn_mode, hardware

    device = device_of(arguments.device)
    benchmark = find_benchmark(arguments.data, arguments.benchmark)
    with cudnn_mode(not arguments.inexact):
        result = measure(arguments, benchmark, device)
    return {
        "hardware": hardware(device),
        "benchmark": arguments.benchmark,
        "net": arguments.net or benchmark.net,
        "exact": not arguments.inexact,
        **result,
    }


def _time_train(arguments: argparse.Namespace, benchmark: Benchmark, device: torch.device) -> dict[str, Any]:
    from moon.cli.screen import training_threads
    from moon.recipe import make_recipe
    from moon.run.machine import hardware

    recipe = make_recipe(benchmark, net=arguments.net, batch_size=arguments.batch_size)
    with training_threads(recipe, benchmark, device):
        return {"hardware": hardware(device)} | _time_steps(arguments, benchmark, device)


def _time_steps(arguments: argparse.Namespace, benchmark: Benchmark, device: torch.device) -> dict[str, Any]:
    from moon import timing
    from moon.cli.screen import tracked
    from moon.recipe import Recipe
    from moon.run.machine import hardware
    from moon.suggest import counted

    topologies = _names("topology", arguments.topology)
    pairs = [(o, t) for t in topologies for o in (timing.BASE, *_names("objective", arguments.objective))]
    contenders = list(dict.fromkeys(pairs))
    steps_per_epoch = -(-arguments.images // arguments.batch_size)
    arguments.steps = arguments.steps or (steps_per_epoch if device.type == "cuda" else 5)
    rounds = f"{counted(arguments.rounds, 'round')} of {counted(arguments.steps, 'step')}"
    network = arguments.net or benchmark.net
    print(
        f"timing {counted(len(contenders), 'method')}, {rounds} of {arguments.batch_size} images each: {network} on "
        f"{hardware(device)}",
        flush=True,
    )
    settings = {"net": arguments.net, "batch_size": arguments.batch_size, "precision": arguments.precision}
    sparsity = _sparsity(arguments)
    records = timing.time_steps(
        benchmark, contenders, device=device, steps=arguments.steps, rounds=arguments.rounds, track=tracked,
        **settings, **sparsity,
    )  # fmt: skip
    for times in (record[loop] for record in records for loop in timing.LOOPS if loop in record):
        times["seconds_of_100_epochs"] = times["milliseconds"] * steps_per_epoch / 10
    limits = timing.step_limits(benchmark, device=device, **settings)
    title = f"A training step of {network}, batch {arguments.batch_size}, {arguments.precision}, on {hardware(device)}"
    bench_steps.show(title, records, limits, steps_per_epoch)
    bench_steps.explain(rounds, arguments.images, limits)
    result = {
        **{name: getattr(arguments, name) for name in ("steps", "rounds", "images", "batch_size", "precision")},
        **({"sparsity": Recipe.sparsity} | sparsity),
        "limits": limits,
        "train": records,
    }
    if arguments.kernels:
        captured = [(record["objective"], record["topology"]) for record in records if "captured" in record]
        result["kernels"] = bench_kernels.profile(captured, benchmark, device, settings | sparsity)
    return result


def _sparsity(arguments: argparse.Namespace) -> dict[str, float]:
    """The sparsity as a setting of `make_recipe`, which has a default and accepts none for a dense network."""
    return {} if arguments.sparsity is None else {"sparsity": arguments.sparsity}


def _time_score(arguments: argparse.Namespace, benchmark: Benchmark, device: torch.device) -> dict[str, Any]:
    from rich.console import Console

    from moon import timing
    from moon.cli.output import new_table, show_table
    from moon.cli.screen import tracked
    from moon.recipe import table
    from moon.run.machine import hardware

    result = timing.time_scores(
        benchmark, table("detector"), device=device, net=arguments.net, bank=arguments.bank,
        queries=arguments.queries, from_evidence=arguments.from_evidence, precision=arguments.precision, track=tracked,
        **_sparsity(arguments),
    )  # fmt: skip
    title = f"Scoring {arguments.queries:,} images, bank {arguments.bank:,}, on {hardware(device)}"
    shown = new_table(title, "detector", "scoring s", "total s", texts=("detector",))
    for name, reason in result["left_out"].items():
        print(f"{name} is left out: {reason}")
    for name, seconds in sorted(result["alone"].items(), key=lambda item: -item[1]):
        shown.add_row(name, f"{result['own'][name]:.3f}", f"{seconds:.3f}")
    show_table(shown)
    Console().print(
        "scoring: fitting and scoring only; total: including the forward passes that the detector needs. Detectors "
        "that perturb the images (odin) need separate forward passes and are not timed.",
        highlight=False,
    )
    if arguments.from_evidence:
        print(f"all {len(result['alone'])} from evidence: {result['from_evidence']:.2f} s")
        return {"score": result}
    print(
        f"all {len(result['alone'])} with shared forward passes: {result['together']:.2f} s, {result['ratio']:.2f} of "
        f"the slowest one alone ({result['slowest']})\n"
        f"of which forward passes {sum(result['reading'].values()):.2f} s, from kept evidence "
        f"{result['from_evidence']:.2f} s"
    )
    if result["limit"] is not None:
        print(
            f"limit: their matrix products take {result['limit']:.2f} s at the rate of a large float32 matrix product"
        )
    if result["dense_reading"] is not None:
        if result["limit"] is not None:
            print(f"with the non-zero weights only: {result['limit_sparse']:.2f} s")
        print(
            f"forward passes with dense products would take {result['dense_reading']:.0f} s, extrapolated from the "
            "validation images"
        )
    return {"score": result}
