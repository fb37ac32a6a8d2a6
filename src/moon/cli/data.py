"""List benchmarks and data sets; import, download, hold out and verify data sets."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from moon.cli.arguments import add_data, whole
from moon.cli.screen import tracked
from moon.data import (
    SOURCES,
    Benchmark,
    SavedSplit,
    all_benchmarks,
    download_set,
    has_set,
    hold_out,
    import_set,
    set_names,
    verify_sets,
)

EXAMPLES = """
examples:
  moon data                                                             which sets are found, which are missing
  moon data download cifar10
  moon data import cifar-10-python.tar.gz --name cifar10 --split train
  moon data hold-out cifar10 --name cifar10-held
  moon data verify

`moon data ACTION --help` explains an action and its arguments.
"""
_LIST_HELP = """
Benchmarks are built in, or declared in ROOT/benchmarks.toml.

examples:
  moon data list
  moon data list --data ~/data
"""
_IMPORT_HELP = """
The split is saved as ROOT/NAME/SPLIT.npz. The format is recognised by file names:

  CIFAR-10, CIFAR-100   the published .tar.gz, its folder, or one batch; Python or binary version
  MNIST idx             a folder with train-images-idx3-ubyte, t10k-images-idx3-ubyte and their labels, .gz or not
  SVHN                  train_32x32.mat or test_32x32.mat, or their folder
  class folders         SOURCE/<class>/<image>; classes are numbered in alphabetical order
  image list            a .txt file with one '<path> <label>' per line; label -1 for an image of no known class

examples:
  moon data import cifar-10-python.tar.gz --name cifar10 --split train
  moon data import mnist/ --name mnist --split test
  moon data import test_32x32.mat --name svhn
  moon data import dtd/images --name dtd --size 32
  moon data import test_tin.txt --root images/ --name tin
"""
_HOLD_OUT_HELP = """
The other training images become the training images of the new set. Options can then be tuned without using the
test images of the original set.

examples:
  moon data hold-out cifar10 --name cifar10-held
  moon data hold-out mine --name mine-held --share 0.2
"""
_DOWNLOAD_HELP = f"""
A file is verified by its published digest. The same command resumes an interrupted download.

sets:
  {", ".join(SOURCES)}

examples:
  moon data download cifar10
  moon data download svhn --data ~/data
"""
_VERIFY_HELP = """
examples:
  moon data verify
  moon data verify cifar10
"""


def describe(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    parser.set_defaults(perform=_list)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions (default: list)")
    _add_action(actions, "list", _list, "list the benchmarks and which of their sets are found", _LIST_HELP)
    _describe_import(actions)
    _describe_hold_out(actions)
    _describe_download(actions)
    _describe_verify(actions)


def _describe_import(actions: Any) -> None:
    parser = _add_action(actions, "import", _import, "import one split of a set from a public format", _IMPORT_HELP)
    add = parser.add_argument
    add("source", metavar="SOURCE", type=Path, help="a file or folder in one of the formats below")
    add("--name", required=True, help="name of the new set")
    add("--split", default="test", help="train, val or test (default: %(default)s)")
    add(
        "--size",
        type=whole,
        default=32,
        metavar="PIXELS",
        help="height and width of images from class folders and image lists (default: %(default)s)",
    )
    add(
        "--root",
        type=Path,
        metavar="FOLDER",
        help="folder that the paths of an image list are relative to (default: that of the list)",
    )
    add("--replace", action="store_true", help="overwrite a split that has other images")


def _describe_hold_out(actions: Any) -> None:
    summary = "make a set whose test images are training images of another set"
    add = _add_action(actions, "hold-out", _hold_out, summary, _HOLD_OUT_HELP).add_argument
    add("source", metavar="SET", help="the set whose training images are divided")
    add("--name", required=True, help="name of the new set")
    add("--share", type=float, default=0.1, help="share of the training images to hold out (default: %(default)s)")
    add("--replace", action="store_true", help="overwrite splits that have other images")


def _describe_download(actions: Any) -> None:
    parser = _add_action(actions, "download", _download, "download a public set from its official site", _DOWNLOAD_HELP)
    parser.add_argument("name", metavar="SET", help="one of the sets below")


def _describe_verify(actions: Any) -> None:
    summary = "read sets and compare them with the published ones"
    parser = _add_action(actions, "verify", _verify, summary, _VERIFY_HELP)
    parser.add_argument("name", metavar="SET", nargs="?", help="the set (default: all sets under ROOT)")


def _add_action(
    actions: Any, name: str, perform: Callable[[argparse.Namespace], None], summary: str, text: str
) -> argparse.ArgumentParser:
    """Add a parser for an action; `--data` and `--debug` may be given before or after the action."""
    parser = actions.add_parser(
        name,
        allow_abbrev=False,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=text.strip("\n"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(perform=perform)
    add = partial(parser.add_argument, default=argparse.SUPPRESS)  # a default would override a value given before
    add("--data", type=Path, metavar="ROOT", help="folder of data sets (default: $MOON_DATA, else ./data)")
    add("--debug", action="store_true", help="show the traceback of an error")
    return parser


def act(arguments: argparse.Namespace) -> None:
    arguments.perform(arguments)


def _import(arguments: argparse.Namespace) -> None:
    saved = import_set(
        arguments.data,
        arguments.source,
        arguments.name,
        arguments.split,
        image_root=arguments.root,
        size=arguments.size,
        replace=arguments.replace,
        track=lambda images: tracked(images, "decoding"),
    )
    _print_saved(saved)


def _hold_out(arguments: argparse.Namespace) -> None:
    for saved in hold_out(arguments.data, arguments.source, arguments.name, arguments.share, replace=arguments.replace):
        _print_saved(saved)


def _print_saved(saved: SavedSplit) -> None:
    images = saved.dataset.images
    size = f"{len(images):,} images of {'x'.join(map(str, images.shape[1:]))}"
    print(f"{saved.path}: {size}" if saved.is_new else f"{saved.path}: already exists, with the same {size}")


def _download(arguments: argparse.Namespace) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def progress(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done)

        paths = download_set(arguments.name, arguments.data, progress)
    for path in paths:
        print(path)


def _verify(arguments: argparse.Namespace) -> None:
    for line in verify_sets(arguments.data, arguments.name, lambda paths: tracked(paths, "verifying")):
        print(line)


def _list(arguments: argparse.Namespace) -> None:
    root: Path = arguments.data
    benchmarks, errors = all_benchmarks(root)
    console = Console()
    console.print(f"Benchmarks, with the sets that are found (✓) and missing (✗) under {root}")
    console.print(_benchmark_table(root, benchmarks))
    listed = {name for b in benchmarks for name in (b.known_set, *b.near, *b.far)}
    if others := [name for name in set_names(root) if name not in listed]:
        console.print(f"other sets under {root}: {', '.join(others)}")
    if not root.is_dir():
        console.print(f"{root} is not a folder; set the data root with --data or MOON_DATA")
    for error in errors:
        console.print(str(error), highlight=False, markup=False)


def _benchmark_table(root: Path, benchmarks: list[Benchmark]) -> Table:
    def mark(text: str, is_found: bool) -> str:
        return f"[green]✓{text}[/]" if is_found else f"[dim]✗{text}[/]"

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("benchmark", "known", "near unknown", "far unknown"):
        table.add_column(heading)
    for benchmark in benchmarks:
        known = [mark(split, has_set(root, benchmark.known_set, split, benchmark)) for split in ("train", "test")]
        near, far = (
            [mark(name, has_set(root, name, "test", benchmark)) for name in names]
            for names in (benchmark.near, benchmark.far)
        )
        table.add_row(benchmark.name, *(", ".join(cells) for cells in (known, near, far)))
    return table
