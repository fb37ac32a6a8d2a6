"""List the benchmarks and what is found of them; import a data set from a public format, hold images out, download or
verify one."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from moon.cli.arguments import add_data, whole
from moon.cli.screen import tracked
from moon.data import BENCHMARKS, DataError, DataSet, declarations, declared, has, load, open_set, save
from moon.data.dataset import path_of, split_off, verify
from moon.data.download import SOURCES, fetch
from moon.data.embedded import NAMES as EMBEDDED
from moon.data.readers import read_any
from moon.suggest import did_you_mean

SPLITS = ("train", "val", "test")
EXAMPLES = """
examples:
  moon data
  moon data import cifar-10-python.tar.gz --name cifar10 --split train
  moon data import mnist/ --name mnist --split test                     idx files, .gz or not
  moon data import test_32x32.mat --name svhn --split test
  moon data import dtd/images --name dtd --split test --size 32         class folders
  moon data download cifar10                                            from its own home, checked, resumable
  moon data hold-out cifar10 --name cifar10-held                        to choose by what is no test image
  moon data verify                                                      every set under the root
  moon data import test_tin.txt --root images/ --name tin --split test  an image list
"""


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        default="list",
        choices=("list", "import", "hold-out", "download", "verify"),
        help="(default: list)",
    )
    parser.add_argument(
        "source", nargs="?", type=Path, help="what to import, or the set to take from, download or verify"
    )
    parser.add_argument("--name", help="name of the set to make")
    parser.add_argument("--split", default="test", help="train, val or test (default: %(default)s)")
    parser.add_argument(
        "--size", type=whole, default=32, help="of images from folders and lists (default: %(default)s)"
    )
    parser.add_argument(
        "--share", type=float, default=0.1, help="of the training images that is held out (default: %(default)s)"
    )
    parser.add_argument("--replace", action="store_true", help="what was imported under this name before")
    parser.add_argument("--root", type=Path, help="what the paths of an image list start from (default: its folder)")
    add_data(parser)


def act(arguments: argparse.Namespace) -> None:
    if arguments.action == "list":
        _list(arguments.data)
    elif arguments.action == "download":
        _download(arguments)
    elif arguments.action == "verify":
        _verify(arguments)
    elif arguments.action == "hold-out":
        _hold_out(arguments)
    else:
        _import(arguments)


def _import(arguments: argparse.Namespace) -> None:
    if arguments.source is None or arguments.name is None:
        raise ValueError("import needs a source and --name; see the examples in moon data --help")
    if arguments.split not in SPLITS:
        raise ValueError(f"--split is train, val or test, not '{arguments.split}'{did_you_mean(arguments.split, SPLITS)}")
    _check_name(arguments.name)
    dataset = read_any(
        arguments.source, arguments.split, arguments.root, arguments.size, lambda items: tracked(items, "decoding")
    )
    _put(dataset, arguments, arguments.split)


def _check_name(name: str) -> None:
    if name in BENCHMARKS and BENCHMARKS[name].lists:
        raise ValueError(f"'{name}' is read from OpenOOD's lists; choose another --name")
    if name in EMBEDDED:
        raise ValueError(f"'{name}' is the name of an embedded set; choose another --name")


def _put(dataset: DataSet, arguments: argparse.Namespace, split: str) -> None:
    """Save a split under the root, never over another."""
    target = path_of(arguments.data, arguments.name, split)
    if target.exists() and not arguments.replace:
        if load(arguments.data, arguments.name, split).digest() == dataset.digest():
            print(f"{target}: is there already, the same")
            return
        raise ValueError(f"{target}: exists with other images; give another --name, or --replace it")
    path = save(dataset, arguments.data, arguments.name, split)
    print(f"{path}: {len(dataset.labels):,} images of {'x'.join(map(str, dataset.images.shape[1:]))}")


def _hold_out(arguments: argparse.Namespace) -> None:
    """A set whose test images are a part of another's training images, which its own training images are without."""
    if arguments.source is None or arguments.name is None:
        raise ValueError("hold-out needs the set to take from and --name; see the examples in moon data --help")
    if not 0 < arguments.share < 1:
        raise ValueError(f"--share must be above 0 and below 1, not {arguments.share}")
    _check_name(arguments.name)
    if arguments.name == str(arguments.source) or arguments.name in BENCHMARKS:
        raise ValueError(f"'{arguments.name}' is a set of its own; choose another --name")
    whole = open_set(arguments.data, str(arguments.source), "train")
    assert isinstance(whole, DataSet)  # without lists
    held, rest = split_off(whole, arguments.share)
    _put(rest, arguments, "train")
    _put(held, arguments, "test")


def _download(arguments: argparse.Namespace) -> None:
    if arguments.source is None:
        raise ValueError(f"download needs the name of a set: {', '.join(SOURCES)}")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def progress(name: str, done: int, whole: int | None) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=whole)
            bar.update(tasks[name], completed=done)

        paths = fetch(str(arguments.source), arguments.data, progress)
    for path in paths:
        print(path)


def _verify(arguments: argparse.Namespace) -> None:
    """Read every split under the root, or of one set, and compare what is published with its digest."""
    wanted = "*" if arguments.source is None else str(arguments.source)
    paths = sorted(path for path in arguments.data.glob(f"{wanted}/*.npz") if not path.parent.name.startswith("."))
    if not paths:
        there = sorted({path.parent.name for path in arguments.data.glob("*/*.npz")})
        named = "" if wanted == "*" else f" '{wanted}'{did_you_mean(wanted, there)}"
        raise DataError(f"{arguments.data}: no set{named} to verify")
    bad = 0
    for path in tracked(paths, "verifying"):
        name, split = path.parent.name, path.stem
        try:
            print(f"{name}/{split}: {verify(load(arguments.data, name, split), name, split)}")
        except DataError as error:
            bad += 1
            print(error)
    if bad:
        raise DataError(f"{bad} of {len(paths)} cannot be used; import them again")


def _list(root: Path) -> None:
    def mark(text: str, there: bool) -> str:
        return f"[green]✓{text}[/]" if there else f"[dim]✗{text}[/]"

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("benchmark", "known", "near unknown", "far unknown"):
        table.add_column(heading)
    rows, broken = list(BENCHMARKS.values()), []
    for name, declaration in declarations(root).items():
        try:
            rows.append(declared(root, name, declaration))
        except DataError as error:
            broken.append(str(error))
    for row in rows:
        own = ", ".join(mark(split, has(root, row.known_set, split, row)) for split in ("train", "test"))
        near, far = (", ".join(mark(n, has(root, n, "test", row)) for n in names) for names in (row.near, row.far))
        table.add_row(row.name, own, near, far)
    console = Console()
    console.print(f"Benchmarks: what is found (✓) under {root}, and what is missing (✗)")
    console.print(table)
    found = {path.parent.name for path in root.glob("*/*.npz")} if root.is_dir() else set()
    if extra := found - {name for row in rows for name in (row.known_set, *row.near, *row.far)}:
        console.print(f"also under {root}: {', '.join(sorted(extra))}")
    if not root.is_dir():
        console.print(f"{root} is no folder; --data or MOON_DATA says where the sets are")
    for line in broken:
        console.print(line, highlight=False, markup=False)
