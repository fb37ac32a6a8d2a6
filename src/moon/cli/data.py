"""List benchmarks and data sets; import, download, hold out and verify data sets."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moon.cli.arguments import add_action, add_data, whole
from moon.recipe.names import keys_of
from moon.suggest import counted

if TYPE_CHECKING:
    from rich.table import Table

    from moon.data import Benchmark, DataSet, SavedSplit

EXAMPLES = """
examples:
  moon data                                                             which sets are found, which are missing
  moon data download cifar10
  moon data import photos/ --name pets                                  photos/train/cat/1.jpg, photos/test/cat/2.jpg
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
A split is saved as ROOT/NAME/SPLIT.npz. The format is recognised by file names:

  CIFAR-10, CIFAR-100   the published .tar.gz, its folder, or one batch; Python or binary version
  MNIST idx             a folder with train-images-idx3-ubyte, t10k-images-idx3-ubyte and their labels, .gz or not
  SVHN                  train_32x32.mat or test_32x32.mat, or their folder
  class folders         SOURCE/<class>/<image>, or SOURCE/<split>/<class>/<image>, where <split> is train, val (valid,
                        validation) or test (testing): all splits are then imported, or one with --split
  image list            a .txt file with one '<path> <label>' per line; label -1 for an image of no known class

Classes are numbered in alphabetical order of the training split's folders; other splits are matched by name.

examples:
  moon data import photos/ --name pets --size 64
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
  moon data hold-out mine --name mine-held --share 0.2 --val-share 0.2
  moon data hold-out mine --name mine-held --groups '.*_'   cat/rex_1.jpg and cat/rex_2.jpg together
  moon data hold-out mine --name mine-held --groups objects.csv
"""
_DOWNLOAD_HELP = """
A file is verified by its published digest. The same command resumes an interrupted download.

sets:
  {sets}

tin contains the validation images of Tiny ImageNet, tin-open those of the 176 classes that CIFAR-10 does not have.

examples:
  moon data download cifar10
  moon data download svhn --data ~/data
"""
_FEW_CLASSES = 12  # up to this many are listed with their counts
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
    parser = _add_action(actions, "import", _import, "import a set from class folders or a public format", _IMPORT_HELP)
    add = parser.add_argument
    add("source", metavar="SOURCE", type=Path, help="a file or folder in one of the formats below")
    add("--name", required=True, help="name of the new set")
    add("--split", help="train, val or test (default: all splits that SOURCE has as folders, else test)")
    text = "size of the images, 64 or 40x48 (height x width; default: 32 for class folders and lists, else unchanged)"
    add("--size", type=_size, metavar="PIXELS", help=text)
    add("--grey", action="store_true", help="convert the images to one channel")
    text = "accept class folders and lists of images with more than 8 bits: WHITE, such as 65535 or 4095, becomes 255"
    add("--to-8-bit", type=whole, default=0, metavar="WHITE", help=text)
    add("--skip-bad", action="store_true", help="leave out images that cannot be read, and list them beside the set")
    add(
        "--root",
        type=Path,
        metavar="FOLDER",
        help="folder that the paths of an image list are relative to (default: that of the list)",
    )
    add("--replace", action="store_true", help="overwrite a split that has other images")


def _size(text: str) -> int | tuple[int, int]:
    """A size as one number or HEIGHTxWIDTH."""
    from moon.data.benchmarks import size_of

    sides = [whole(side) for side in text.split("x")]
    if len(sides) > 2:
        raise argparse.ArgumentTypeError(f"must be a number or HEIGHTxWIDTH, such as 40x48, not '{text}'")
    return size_of(sides[0], sides[-1])


def _describe_hold_out(actions: Any) -> None:
    summary = "make a set whose test images are training images of another set"
    add = _add_action(actions, "hold-out", _hold_out, summary, _HOLD_OUT_HELP).add_argument
    add("source", metavar="SET", help="the set whose training images are divided")
    add("--name", required=True, help="name of the new set")
    add("--share", type=float, default=0.1, help="share of the training images to test on (default: %(default)s)")
    text = "share to hold out for validation as well, for thresholds (default: none; with --groups, as much as --share)"
    add("--val-share", type=float, metavar="SHARE", help=text)
    add(
        "--groups",
        metavar="PATTERN",
        help="keep images of a group together, such as photos of one object; the group is what PATTERN, a regular "
        "expression, matches in the path of the image; or give a .csv file with the columns file and group",
    )
    add("--replace", action="store_true", help="overwrite splits that have other images")


def _describe_download(actions: Any) -> None:
    text = _DOWNLOAD_HELP.format(sets=", ".join(keys_of("moon.data.download", "SOURCES")))
    parser = _add_action(actions, "download", _download, "download a public set from its official site", text)
    parser.add_argument("name", metavar="SET", help="one of the sets below")


def _describe_verify(actions: Any) -> None:
    summary = "read sets and compare them with the published ones"
    parser = _add_action(actions, "verify", _verify, summary, _VERIFY_HELP)
    parser.add_argument("name", metavar="SET", nargs="?", help="the set (default: all sets under ROOT)")


def _add_action(
    actions: Any, name: str, perform: Callable[[argparse.Namespace], None], summary: str, epilog: str
) -> argparse.ArgumentParser:
    """Add the parser of an action; `--data` may also be given before the action."""
    parser = add_action(actions, name, summary, epilog, perform=perform)
    text = "folder of data sets (default: $MOON_DATA, else ./data)"
    parser.add_argument("--data", type=Path, metavar="ROOT", default=argparse.SUPPRESS, help=text)
    return parser


def act(arguments: argparse.Namespace) -> None:
    arguments.perform(arguments)


def _import(arguments: argparse.Namespace) -> None:
    from moon.cli.screen import tracked
    from moon.data import find_splits, import_set, import_splits, path_of

    names = "size", "grey", "to_8_bit", "skip_bad", "replace"
    settings: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    settings["track"] = lambda images: tracked(images, "decoding")
    place = arguments.data, arguments.source, arguments.name
    if arguments.split is None and arguments.root is None and find_splits(arguments.source).splits:
        for saved in import_splits(*place, **settings):
            _print_saved(saved)
        return
    _print_saved(import_set(*place, arguments.split or "test", image_root=arguments.root, **settings))
    if arguments.split is None:
        name = arguments.name
        print("imported as the test split; --split train or --split val imports another one")
        if not path_of(arguments.data, name, "train").exists():
            print(f"to train on these images: --split train, then moon data hold-out {name} --name {name}-held")


def _hold_out(arguments: argparse.Namespace) -> None:
    from moon.data import hold_out

    settings: dict[str, Any] = {key: getattr(arguments, key) for key in ("val_share", "groups", "replace")}
    for saved in hold_out(arguments.data, arguments.source, arguments.name, arguments.share, **settings):
        _print_saved(saved)


def _print_saved(saved: SavedSplit) -> None:
    from moon.cli.output import printable

    images = saved.dataset.images
    size = f"{counted(len(images), 'image')} of {'x'.join(map(str, images.shape[1:]))}"
    same = "" if saved.is_new else "already exists, with the same "
    print(f"{printable(saved.path)}: {same}{size}\n  {_classes_of(saved.dataset)}")


def _classes_of(dataset: DataSet) -> str:
    """Describe the classes: names and counts of a few, else their number and the range of their counts."""
    import numpy as np

    from moon.cli.output import printable

    labels, counts = np.unique(dataset.labels[dataset.labels >= 0], return_counts=True)
    unknown = int((dataset.labels < 0).sum())
    parts = [f"{counted(unknown, 'image')} of no known class (label -1)"] if unknown else []
    if len(labels):
        few, low, high = len(labels) <= _FEW_CLASSES, counts.min(), counts.max()
        names = [printable(dataset.classes[label]) if dataset.classes else str(label) for label in labels]
        shown = [f"{name} {count:,}" for name, count in zip(names, counts, strict=True)] if few else names[:3]
        spread = (
            "" if few else f" of {counted(int(low), 'image')}" if low == high else f" of {low:,} to {high:,} images"
        )
        heading = f"{len(labels):,} class{'' if len(labels) == 1 else 'es'}{spread}"
        parts.insert(0, f"{heading}: {', '.join(shown)}{'' if few else ', ...'}")
    return "; ".join(parts)


def _download(arguments: argparse.Namespace) -> None:
    from rich import get_console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    from moon.data import download_set

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = get_console()
    with Progress(*columns, transient=True, console=console, disable=not console.is_interactive) as bar:
        tasks: dict[str, TaskID] = {}

        def progress(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done)

        paths = download_set(arguments.name, arguments.data, progress)
    for path in paths:
        print(path)


def _verify(arguments: argparse.Namespace) -> None:
    from moon.cli.output import printable
    from moon.cli.screen import tracked
    from moon.data import verify_sets

    for line in verify_sets(arguments.data, arguments.name, lambda paths: tracked(paths, "verifying")):
        print(printable(line))


def _list(arguments: argparse.Namespace) -> None:
    from moon.cli.help import paragraph
    from moon.cli.output import printable, show_table
    from moon.data import all_benchmarks, set_names
    from moon.data.embedded import EMBEDDED_SPLITS, INSTALL, is_installed
    from moon.data.small import SMALL_SETS, SUITE

    root: Path = arguments.data
    benchmarks, errors = all_benchmarks(root)
    print(f"Benchmarks, with the sets that are found (✓) and missing (✗) under {root}")
    show_table(_benchmark_table(root, [b for b in benchmarks if b.name not in SMALL_SETS]))
    print(paragraph(f"small benchmarks, drawn when used: small-NAME; NAME is one of {', '.join(SUITE)}"))
    listed = {name for b in benchmarks for name in (b.known_set, *b.near, *b.far)}
    if others := [name for name in set_names(root) if name not in listed]:
        print(f"other sets under {root}: {printable(', '.join(others))}")
    if absent := [name for name in EMBEDDED_SPLITS if name not in SMALL_SETS and not is_installed(name)]:
        print(f"the images of {', '.join(absent)} are in packages that are not installed: {INSTALL}")
    if not root.is_dir():
        print(f"{root} does not exist; set the data root with --data or MOON_DATA")
    for error in errors:
        print(printable(error))


def _benchmark_table(root: Path, benchmarks: list[Benchmark]) -> Table:
    from rich import box
    from rich.table import Table

    from moon.data import has_set

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
