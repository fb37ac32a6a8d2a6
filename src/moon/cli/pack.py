"""Pack a finished run or a checkpoint into one small file that answers with a class or "unknown", with a guarantee."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from moon.cli.arguments import add_checkpoint, add_data, add_device, check_checkpoint, device_of, fraction, whole
from moon.cli.unknown_sets import add_unknown_sets
from moon.recipe import names_of
from moon.recipe.names import PACKED

if TYPE_CHECKING:
    from moon.deploy import Guarantee

EXAMPLES = """
examples:
  moon pack runs/digits-... -o digits.moon
  moon pack runs/digits-... -o digits.moon --detector mls     smaller: no training features are kept
  moon pack runs/digits-... --detector auto                   the detector that moon score chose, or the rule
  moon pack runs/cifar10-... --accept 0.99 --confidence 0.95  99% of known images are accepted, with 95% confidence
  moon pack runs/cifar10-... --per-class                      a threshold for each predicted class
  moon pack --checkpoint best.pt --net timm:resnet18 --benchmark pets -o pets.moon
  moon predict digits.moon photo.png                          ask the file
"""
JSON = "the file, its size, detector and threshold, and what was measured"


def describe(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", nargs="?", type=Path, metavar="RUN", help="the folder of a finished run")
    add_checkpoint(parser)
    add(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="the file to write (default: NAME.moon, as the run or checkpoint)",
    )
    add(
        "--detector",
        metavar="NAME",
        default=PACKED,
        help=f"{' '.join(name for name in names_of('detector') if name not in ('odin', 'rotpred'))}, NAME:released, "
        "NAME:scaled or NAME:unscaled, NAME:OPTION=VALUE, fisher:NAME+NAME (a combination), or auto (what moon score "
        "--detector auto chose for the run, else by its rule) (default: %(default)s)",
    )
    add("--accept", type=fraction, default=0.95, help="share of known images to accept (default: %(default)s)")
    add(
        "--confidence",
        type=fraction,
        help="accept this share of all known images with this confidence (default: on average over calibration images)",
    )
    add("--per-class", action="store_true", help="a threshold for each predicted class")
    add(
        "--bank",
        type=whole,
        metavar="N",
        default=10_000,
        help="training images whose features knn, fisher and nnguide keep (default: %(default)s)",
    )
    add(
        "--precision",
        choices=("float16", "float32", "int8"),
        default="float16",
        help="type of the stored weights (default: %(default)s)",
    )
    add(
        "--check",
        type=int,
        metavar="N",
        default=2000,
        help="images of each test set on which the file is measured; 0: generated images only (default: %(default)s)",
    )
    add("--force", action="store_true", help="pack a network that has learned nothing, too")
    add_unknown_sets(parser)
    add_data(parser)
    add_device(parser)


def act(arguments: argparse.Namespace) -> dict[str, Any]:
    from moon.cli.screen import tracked
    from moon.deploy import Guarantee, pack_run
    from moon.deploy.packing import pack_checkpoint
    from moon.files import check_output
    from moon.recipe import Recipe
    from moon.run.folder import load_result
    from moon.run.images import BenchmarkImages

    check_checkpoint(arguments, [] if arguments.run is None else [arguments.run], {})
    run, file = cast(Path, arguments.run), arguments.checkpoint
    path = arguments.out or Path(f"{run.resolve().name if file is None else file.stem}.moon")
    if file is None and not run.exists():
        raise ValueError(f"{run}: no such folder; give the folder of a finished run")
    if file is None and not (run / "recipe.json").exists():
        raise ValueError(f"{run}: is not the folder of a run; it has no recipe.json")
    check_output(path, "choose another file (--out)")
    if arguments.check < 0:
        raise ValueError("--check must be 0 or more images of each set")
    guarantee = Guarantee(arguments.accept, arguments.confidence, arguments.per_class)
    benchmark, outliers = arguments.benchmark, ""
    if file is None:
        load_result(run)  # fails before images are read
        recipe = Recipe.load(run / "recipe.json")
        benchmark, outliers = recipe.benchmark, recipe.outliers
    images = BenchmarkImages.open(
        arguments.data,
        benchmark,
        tuple(arguments.near),
        tuple(arguments.far),
        outliers,
        track=lambda items: tracked(items, "reading images"),
    )
    settings: dict[str, Any] = {"bank": arguments.bank, "precision": arguments.precision, "checked": arguments.check}
    settings |= {"force": arguments.force, "device": device_of(arguments.device), "track": tracked}
    if file is None:
        facts = pack_run(run, images, path, arguments.detector, guarantee, **settings)
    else:
        width = 1.0 if arguments.width is None else arguments.width
        facts = pack_checkpoint(file, arguments.net, width, images, path, arguments.detector, guarantee, **settings)
    _show(path, facts, guarantee)
    return {"file": path, **facts}


def _show(path: Path, facts: dict[str, Any], guarantee: Guarantee) -> None:
    """Print what was packed, and what the file does with test images."""
    from moon.cli.output import printable, readable_size, show_table
    from moon.suggest import counted

    size, dense = readable_size(facts["bytes"]), readable_size(facts["dense_bytes"])
    print(f"{path}: {size} ({dense} as dense float32 weights)")
    kept = ""
    if facts["features_kept"]:
        part = readable_size(facts["detector_bytes"])
        kept = f", with features of {facts['features_kept']:,} training images ({part} of the file; mls keeps none)"
    temperature = facts["detector_temperature"]
    scaled = f" of logits / {temperature['value']:.3g} ({temperature['from']})" if temperature else ""
    print(f"detector: {facts['detector']}{scaled}{kept}")
    if "auto" in facts:
        print(f"auto: {facts['detector']}, {printable(facts['auto'])}")
    print(f"threshold: {guarantee.describe()}; from {counted(facts['calibration_images'], 'validation image')}")
    if facts["measured"]:
        show_table(_table(facts["measured"]))
    verdict = facts["rejection"]["verdict"]
    print(f"verdict: {verdict}{' (--near)' if verdict.endswith('not measured') else ''}")
    print(f"next: moon predict {path} IMAGE")


def _table(measured: dict[str, dict[str, float]]) -> Any:
    from rich import box
    from rich.table import Table

    title = "On test images; in brackets with float32 weights and all training features"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 2, 0, 0))
    table.add_column("images")
    for heading in ("number", "accepted", "accuracy", "AUROC"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in measured.items():
        accepted = row["accepted"] if name == "known" else 1 - row["rejected"]
        accuracy = f"{row['accuracy']:.1%} ({row['accuracy_float32']:.1%})" if name == "known" else ""
        area = f"{100 * row['auroc']:.2f} ({100 * row['auroc_float32']:.2f})" if name != "known" else ""
        which = f"{name} (detector chosen on it)" if row.get("chosen_on") else name
        table.add_row(which, f"{row['images']:,}", f"{accepted:.1%}", accuracy, area)
    return table
