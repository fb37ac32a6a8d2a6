"""`moon bench predict`: the time of inference on a CPU, with moon-runtime and with programs for dense networks."""

from __future__ import annotations

import argparse
from typing import Any

from moon.cli.arguments import fraction, whole

HELP = """
Compares moon-runtime with PyTorch and, if they are installed, with ONNX Runtime and OpenVINO. Networks: resnet18
(images of 32x32), resnet50 and mobilenet_v2 (224x224), every other registered network, or an import path. Masks are
ERK's, and weights random. MOON_INSTRUCTIONS=avx2 (or base, avx512, neon) times other kernels of moon-runtime.

examples:
  moon bench predict
  moon bench predict --net resnet50 mobilenet_v2 --batch 1 --rounds 20
  moon bench predict --precision float32 float16 --out results/bench/predict-mine.json
"""


def describe(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--net", nargs="+", default=["resnet18"], help="networks, or import paths (default: resnet18)")
    add(
        "--benchmark", help="benchmark whose image shape to use (default: one that the network is made for, or cifar10)"
    )
    add("--sparsity", nargs="+", type=fraction, default=[0.9, 0.95, 0.99], help="sparsities (default: 0.9 0.95 0.99)")
    add("--batch", nargs="+", type=whole, default=[1, 32], help="images per call (default: 1 32)")
    add("--threads", nargs="+", type=whole, help="numbers of threads (default: 1 2)")
    add(
        "--precision",
        nargs="+",
        choices=("float32", "float16"),
        default=["float32"],
        help="in which moon-runtime computes: float32, float16 (default: float32)",
    )
    add("--rounds", type=whole, default=10, help="number of rounds (default: %(default)s)")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    from moon import timing
    from moon.cli.screen import tracked
    from moon.data import find_benchmark
    from moon.run.machine import cores, software

    given = None if arguments.benchmark is None else find_benchmark(arguments.data, arguments.benchmark)
    pairs = [(net, given or timing.benchmark_for(net)) for net in arguments.net]
    threads = arguments.threads or [1, 2][: cores()]
    about = timing.machine()
    print(f"{about['hardware']}, load {about['load']} before the measurement", flush=True)
    records: list[dict[str, Any]] = []
    for net, benchmark in pairs:
        found = [
            timing.time_predictions(
                net, benchmark, sparsity, batches=arguments.batch, threads=threads,
                precisions=arguments.precision, rounds=arguments.rounds, track=tracked,
            )
            for sparsity in arguments.sparsity
        ]  # fmt: skip
        _show(found)
        records += found
    _explain(records)
    return about | {"software": software() | timing.versions(), "predict": records}


def _show(records: list[dict[str, Any]]) -> None:
    """Print the tables of one network."""
    from moon.cli.output import new_table, show_table
    from moon.timing import OURS

    first = records[0]
    names = list(dict.fromkeys(row["contender"] for row in first["times"]))
    ours = [name for name in names if name.startswith(OURS)]
    has_one = any(row["threads"] == 1 for row in first["times"])
    has_more = has_one and any(row["threads"] > 1 for row in first["times"])
    channels, rows, columns = first["input"]
    title = f"A call of {first['net']}, {channels}x{rows}x{columns}, {first['instructions']}: milliseconds"
    headings = ["sparsity", "batch", "threads", *names, *(["CPU time"] if has_one else [])]
    shown = new_table(title, *headings, *(["threads x"] if has_more else []), "limit", "difference")
    for record in records:
        for batch, threads in dict.fromkeys((row["batch"], row["threads"]) for row in record["times"]):
            row = {r["contender"]: r for r in record["times"] if (r["batch"], r["threads"]) == (batch, threads)}
            own = row[ours[0]] if ours else {}
            cells = [f"{record['sparsity']:.4g}", str(batch), str(threads)]
            cells += [_cell(row[name], name == record["base"]) for name in names]
            cells += [_times(own.get("cpu_speedup"))] if has_one else []
            cells += [_times(own.get("over_one_thread"))] if has_more else []
            differences = ", ".join(f"{row[name]['difference']:.0e}" for name in ours)
            shown.add_row(*cells, _times(record["limit"]), differences)
        shown.add_section()
    show_table(shown)
    sizes = new_table(
        f"One file of {first['net']}, and a new Python process that answers one image with it",
        "sparsity", "float16 MB", "float32 MB", "dense float32 MB", "first answer s", "on the CPU s", "memory MB",
    )  # fmt: skip
    for record in records:
        size, answer = record["bytes"], record["first_answer"]
        sizes.add_row(
            f"{record['sparsity']:.4g}", *(f"{size[name] / 1e6:.2f}" for name in ("float16", "float32", "dense")),
            f"{answer['seconds']:.2f}", f"{answer['cpu_seconds']:.2f}", f"{answer['bytes'] / 1e6:.0f}",
        )  # fmt: skip
    show_table(sizes)


def _cell(row: dict[str, Any], is_base: bool) -> str:
    milliseconds = row["milliseconds"]
    text = f"{milliseconds:.2f}" if milliseconds < 100 else f"{milliseconds:.0f}"
    return text if is_base else f"{text} ({_times(row['speedup'])})"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.1f}x"


def _explain(records: list[dict[str, Any]]) -> None:
    """Print what the columns mean, and what is missing."""
    from rich.console import Console

    from moon.suggest import counted
    from moon.timing import OURS

    base, rounds = records[0]["base"], counted(records[0]["rounds"], "round")
    Console().print(
        f"In parentheses: the time of {base} divided by it, the median over {rounds} of times in the same round.\n"
        f"CPU time: this ratio for {OURS} and one thread, with the time that the thread spent on the CPU, which other "
        "processes affect less.\n"
        "threads x: the time with one thread divided by it. limit: FLOPs of the dense network divided by those of the "
        "non-zero weights.\n"
        "difference: the largest difference of a logit from PyTorch's. first answer: from the first import to the "
        "answer. memory: the largest resident set.",
        highlight=False,
    )
    for name, reason in {name: reason for record in records for name, reason in record["not_compared"].items()}.items():
        shown = reason if name in reason else f"{name}: {reason}"
        print(f"not compared: {shown}")
