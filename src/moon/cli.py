"""The verbs of `moon`. Errors are one line on stderr and an exit code; a traceback comes with --debug alone."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

EXIT_OTHER, EXIT_ARGUMENTS, EXIT_DATA, EXIT_DAMAGED, EXIT_DIVERGED, EXIT_LOCKED, EXIT_STOPPED = 1, 2, 3, 4, 5, 6, 130

EXIT_CODES = """exit codes:
  0 done   2 bad arguments   3 bad data   4 damaged checkpoint or model   5 the loss diverged
  6 another process works in the run folder   130 stopped with Ctrl-C"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(EXIT_ARGUMENTS)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """The entry point: parse, act, and turn what went wrong into one line and an exit code."""
    arguments = _parser().parse_args(argv)
    from moon.data import DataError
    from moon.training import DamagedCheckpoint, Diverged, RunLocked

    codes: list[tuple[type[BaseException], int]] = [
        (DataError, EXIT_DATA),
        (DamagedCheckpoint, EXIT_DAMAGED),
        (Diverged, EXIT_DIVERGED),
        (RunLocked, EXIT_LOCKED),
        (ValueError, EXIT_ARGUMENTS),
        (OSError, EXIT_DATA),
    ]
    try:
        arguments.act(arguments)
    except KeyboardInterrupt:
        print("\nmoon: stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        sys.exit(EXIT_STOPPED)
    except tuple(kind for kind, _ in codes) as error:
        if arguments.debug:
            raise
        print(f"moon {arguments.verb}: {error}", file=sys.stderr)
        sys.exit(next(code for kind, code in codes if isinstance(error, kind)))
    except Exception as error:
        if arguments.debug:
            raise
        first = (str(error).splitlines() or [""])[0]
        print(f"moon {arguments.verb}: {type(error).__name__}: {first} (--debug shows where)", file=sys.stderr)
        sys.exit(EXIT_OTHER)
    sys.exit(0)


def _parser() -> argparse.ArgumentParser:
    from moon import __version__
    from moon.data import BENCHMARKS
    from moon.experiments.build import NAMES

    def one_of(kind: str) -> str:
        return f"{', '.join(NAMES[kind])} (default: %(default)s)"

    parser = _Parser(
        prog="moon",
        description="Train sparse neural networks that know what they do not know.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"moon {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    def verb(name: str, act: Callable[[argparse.Namespace], None], text: str, epilog: str) -> Any:
        made = verbs.add_parser(
            name,
            help=text,
            description=text,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.set_defaults(act=act)
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        return made

    def with_data(made: argparse.ArgumentParser) -> None:
        made.add_argument(
            "--data",
            type=Path,
            metavar="ROOT",
            default=Path(os.environ.get("MOON_DATA", "data")),
            help="folder of data sets, <name>/<split>.npz (default: $MOON_DATA, else ./data)",
        )

    def with_device(made: argparse.ArgumentParser) -> None:
        made.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: cuda where there is one)")

    demo = verb(
        "demo", _demo,
        "Train plain RigL and MOON + RigL at 95%% sparsity on images that come inside packages, and compare them.",
        "example:\n  moon demo\n  moon demo --seeds 3      mean and deviation over three seeds",
    )  # fmt: skip
    demo.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder of the runs (default: %(default)s)")
    demo.add_argument("--epochs", type=_whole, default=15, help="of each run (default: %(default)s)")
    demo.add_argument("--seeds", type=_whole, default=1, help="runs of each method (default: %(default)s)")
    with_device(demo)

    train = verb(
        "train", _train,
        "Train one network; the same command again goes on from its last checkpoint.",
        "examples:\n"
        "  moon train digits --epochs 20\n"
        "  moon train cifar10 --topology rigl --sparsity 0.95 --objective moon --seed 0\n"
        "  moon train cifar10 --objective cross-entropy --rates moon --vote 0.2     the control\n"
        "  moon train cifar10 --set final=2 --set quiet_epochs=3                    options of the objective",
    )  # fmt: skip
    train.add_argument("benchmark", help=f"{', '.join(BENCHMARKS)}, or a set of your own")
    train.add_argument("--objective", default="moon", help=one_of("objective"))
    train.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the objective; repeatable",
    )
    train.add_argument("--topology", default="rigl", help=one_of("topology"))
    train.add_argument(
        "--sparsity", type=float, default=0.95, help="share of weights that are zero (default: %(default)s)"
    )
    train.add_argument("--allocation", default="erk", help=one_of("allocation"))
    train.add_argument("--net", help=f"{', '.join(NAMES['net'])} (default: the benchmark's)")
    train.add_argument("--epochs", type=_whole, default=100, help="(default: %(default)s)")
    train.add_argument("--batch-size", type=_whole, default=128, help="(default: %(default)s)")
    train.add_argument("--seed", type=int, default=0, help="of all chance (default: %(default)s)")
    train.add_argument(
        "--rates",
        help="learning rates: plain (0.1 to 1e-6) or moon (0.12 to 0.008, held) (default: the objective's)",
    )
    train.add_argument(
        "--vote",
        type=float,
        metavar="SHARE",
        help="share of epochs that vote, 0 for none (default: the objective's)",
    )
    train.add_argument("--lr", type=float, help="start of the learning rate, in place of the recipe's")
    train.add_argument("--weight-decay", type=float, default=5e-4, help="(default: %(default)s)")
    train.add_argument("--delta-t", type=_whole, default=100, help="steps between rewirings (default: %(default)s)")
    train.add_argument("--drop", type=float, default=0.3, help="first share replaced (default: %(default)s)")
    train.add_argument("--t-end", type=float, default=0.7, help="share of the run that rewires (default: %(default)s)")
    train.add_argument("--precision", default="float32", help="float32 or bfloat16 (default: %(default)s)")
    train.add_argument("--out", type=Path, help="run folder (default: runs/<name made from the recipe>)")
    train.add_argument(
        "--checkpoint-seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="least time between checkpoints (default: 30)",
    )
    with_data(train)
    with_device(train)

    score = verb(
        "score", _score,
        "Score a finished run with detectors on unknown sets; writes scores.json, scores.npz and scores.png.",
        "examples:\n"
        "  moon score runs/digits-...\n"
        "  moon score runs/cifar10-... --detector msp odin ebo knn klm\n"
        "  moon score runs/cifar10-... --near cifar100-part tin --detector ebo ebo:released",
    )  # fmt: skip
    score.add_argument("run", type=Path, help="run folder")
    score.add_argument(
        "--detector", nargs="+", action="extend", metavar="NAME",
        help=f"{' '.join(NAMES['detector'])}, NAME:released, or all (default: all)",
    )  # fmt: skip
    for group in ("near", "far"):
        score.add_argument(
            f"--{group}",
            nargs="+",
            default=[],
            metavar="SET",
            help=f"{group} unknown sets (default: the benchmark's)",
        )
    with_data(score)
    with_device(score)

    data = verb(
        "data", _data,
        "List the benchmarks and what is found of them, or import a data set from a public format.",
        "examples:\n"
        "  moon data\n"
        "  moon data import cifar-10-python.tar.gz --name cifar10 --split train\n"
        "  moon data import mnist/ --name mnist --split test          idx files, .gz or not\n"
        "  moon data import test_32x32.mat --name svhn --split test\n"
        "  moon data import dtd/images --name dtd --split test --size 32        class folders\n"
        "  moon data import test_tin.txt --root images/ --name tin --split test  an image list",
    )  # fmt: skip
    data.add_argument("action", nargs="?", default="list", choices=("list", "import"), help="(default: list)")
    data.add_argument("source", nargs="?", type=Path, help="what to import")
    data.add_argument("--name", help="name of the set to make")
    data.add_argument("--split", default="test", help="train, val or test (default: %(default)s)")
    data.add_argument("--size", type=_whole, default=32, help="of images from folders and lists (default: %(default)s)")
    data.add_argument("--root", type=Path, help="what the paths of an image list start from (default: its folder)")
    with_data(data)
    return parser


def _whole(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def _device(name: str | None):
    import torch

    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device '{name}' cannot be used ({str(error).splitlines()[0]})") from None
    return device


@contextmanager
def _progress(recipe) -> Iterator[dict[str, Any]]:
    """A bar over the whole run with loss, accuracy, sparsity, w and time left: the callbacks of `run`."""
    import time

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=_console()) as bar:
        label = f"{recipe.objective} {recipe.topology} s{recipe.seed}"  # short: a terminal may have 80 columns
        task = bar.add_task(label, total=recipe.epochs, state="")
        shown: dict[str, Any] = {"record": "", "at": 0.0, "steps": 1, "loss": ""}

        def refresh(completed: float) -> None:
            bar.update(task, completed=completed, state=f"{shown['loss']} {shown['record']}")

        def on_start(training) -> None:
            shown["steps"] = len(training.batches)
            refresh(training.next_epoch)

        def on_step(epoch: int, step: int, loss: Callable[[], float]) -> None:
            if time.monotonic() - shown["at"] > 0.3:  # reading the loss waits for the device
                shown["at"], shown["loss"] = time.monotonic(), f"loss {loss():.2f}"
                refresh(epoch + (step + 1) / shown["steps"])

        def on_epoch(record: dict) -> None:
            w = f" w {record['w']:.2f}" if "w" in record else ""
            shown["record"] = f"acc {record['val_accuracy']:.1%} sparse {1 - record['density']:.1%}{w}"
            refresh(record["epoch"] + 1)

        yield {"on_start": on_start, "on_step": on_step, "on_epoch": on_epoch, "say": bar.console.print}
        refresh(recipe.epochs)  # a run that was finished before has not moved the bar


def _console():
    from rich.console import Console

    return Console(soft_wrap=False)


def _track(items: list[str], what: str) -> Iterable[str]:
    from rich.progress import track

    return track(items, what, transient=True, console=_console())


def _train_one(recipe, folder: Path, bench, device, checkpoint_seconds: float = 30.0) -> dict[str, Any]:
    from moon.experiments.run import run

    with _progress(recipe) as callbacks:
        return run(recipe, folder, bench, device=device, checkpoint_seconds=checkpoint_seconds, **callbacks)


def _train(arguments: argparse.Namespace) -> None:
    from moon.data import benchmark
    from moon.experiments import build
    from moon.experiments.run import Bench

    options = dict(_pair(item) for item in arguments.set)
    recipe = build.recipe(
        benchmark(arguments.data, arguments.benchmark),
        arguments.objective,
        options=options,
        rates=arguments.rates,
        lr=arguments.lr,
        vote_share=arguments.vote,
        net=arguments.net,
        topology=arguments.topology,
        sparsity=arguments.sparsity,
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
    device = _device(arguments.device)
    folder = arguments.out or Path("runs", recipe.name)
    bench = Bench.open(arguments.data, arguments.benchmark)
    result = _train_one(recipe, folder, bench, device, arguments.checkpoint_seconds)
    known = result["known"]
    print(
        f"{folder}: accuracy {known['accuracy']:.2%}, ECE {known['ece']:.4f}, sparsity {1 - result['density']:.2%}, "
        f"{result['voters'] or 'no'} votes, {result['seconds']:.0f} s\nnext: moon score {folder}"
    )


def _pair(item: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    if not (key and equals and value):
        raise ValueError(f"--set takes NAME=VALUE, not '{item}'")
    return key, value


def _score(arguments: argparse.Namespace) -> None:
    from moon.experiments.recipe import Recipe
    from moon.experiments.run import Bench, load_result
    from moon.experiments.score import score_run

    recipe = Recipe.load(arguments.run / "recipe.json")
    load_result(arguments.run)
    names = None if arguments.detector in (None, ["all"]) else list(dict.fromkeys(arguments.detector))
    bench = Bench.open(arguments.data, recipe.benchmark, tuple(arguments.near), tuple(arguments.far))
    result, scores = score_run(arguments.run, bench, names, device=_device(arguments.device), track=_track)
    _show({recipe.objective: [result]}, {recipe.objective: scores}, arguments.run / "scores.png", recipe.name)
    if bench.missing:
        print(f"not found under {arguments.data} and left out: {', '.join(bench.missing)}")


def _show(methods: dict[str, list], scores: dict[str, Any], picture: Path, title: str) -> None:
    """The tables of scored runs, and the picture of known against unknown where matplotlib is installed."""
    from importlib.util import find_spec

    from moon.experiments.figures import score_histograms
    from moon.experiments.tables import known_table, unknown_table

    console = _console()
    console.print(known_table(methods))
    console.print(unknown_table(methods))
    if find_spec("matplotlib") is None:
        print("no picture: matplotlib is not installed (pip install 'moon-sparse[demo]')")
        return
    detector = next(iter(next(iter(scores.values()))))
    score_histograms(scores, detector, picture, title)
    print(f"picture: {picture}")


def _demo(arguments: argparse.Namespace) -> None:
    from moon.experiments import demo
    from moon.experiments.run import Bench
    from moon.experiments.score import score_run

    device = _device(arguments.device)
    bench = Bench.open(Path(), demo.BENCHMARK)
    results: dict[str, list] = {}
    first_scores: dict[str, Any] = {}
    for method, recipes in demo.recipes(arguments.epochs, arguments.seeds).items():
        for recipe in recipes:
            folder = arguments.out / recipe.name
            _train_one(recipe, folder, bench, device)
            result, scores = score_run(folder, bench, device=device, track=_track)
            results.setdefault(method, []).append(result)
            first_scores.setdefault(method, scores)
    title = f"A {demo.SPARSITY:.0%}-sparse LeNet on digits it knows and images it does not"
    _show(results, first_scores, arguments.out / "known-against-unknown.png", title)
    if arguments.seeds == 1:
        print("one seed: no claim which method is better; moon demo --seeds 3 shows the spread")


def _data(arguments: argparse.Namespace) -> None:
    if arguments.action == "list":
        _list_data(arguments.data)
        return
    from rich.progress import track

    from moon.data import save
    from moon.data.embedded import NAMES as EMBEDDED
    from moon.data.readers import read_any

    if arguments.source is None or arguments.name is None:
        raise ValueError("import needs a source and --name; see the examples in moon data --help")
    dataset = read_any(
        arguments.source,
        arguments.split,
        arguments.root,
        arguments.size,
        lambda items: track(items, "decoding", transient=True, console=_console()),
    )
    if arguments.name in EMBEDDED:
        raise ValueError(f"'{arguments.name}' is the name of an embedded set; choose another --name")
    path = save(dataset, arguments.data, arguments.name, arguments.split)
    print(f"{path}: {len(dataset.labels):,} images of {'x'.join(map(str, dataset.images.shape[1:]))}")


def _list_data(root: Path) -> None:
    from rich.table import Table

    from moon.data import BENCHMARKS, has

    def mark(text: str, there: bool) -> str:
        return f"[green]{text}[/]" if there else f"[red]{text} (missing)[/]"

    table = Table(title=f"Benchmarks, and what is found under {root}", title_justify="left")
    for heading in ("benchmark", "train / test", "near unknown", "far unknown"):
        table.add_column(heading)
    for row in BENCHMARKS.values():
        own = " / ".join(mark(split, has(root, row.name, split)) for split in ("train", "test"))
        near, far = (", ".join(mark(n, has(root, n, "test")) for n in names) for names in (row.near, row.far))
        table.add_row(row.name, own, near, far)
    console = _console()
    console.print(table)
    others = sorted(p.parent.name for p in root.glob("*/*.npz")) if root.is_dir() else []
    extra = sorted(set(others) - {n for row in BENCHMARKS.values() for n in (row.name, *row.near, *row.far)})
    if extra:
        console.print(f"also under {root}: {', '.join(extra)}")
