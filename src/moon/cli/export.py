"""Export a packed file or a run to ONNX, or a run to PyTorch's own formats."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from moon.cli.arguments import add_data
from moon.files import check_output

EXAMPLES = """
examples:
  moon export digits.moon --onnx digits.onnx               pixels in; class, probability, score, p-value, verdict out
  moon export digits.moon --onnx digits.onnx --pixels float
  moon export runs/digits-... --onnx digits.onnx           packs the run first, as `moon pack` does
  moon export runs/digits-... --onnx digits.onnx --network-only     logits and features of any network
  moon export runs/digits-... --torch digits.pt2           for torch.export.load
  moon export runs/digits-... --state-dict digits.safetensors
"""


def describe(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", type=Path, metavar="FILE|RUN", help="a .moon file, or the folder of a finished run")
    add("--onnx", type=Path, metavar="FILE", help="ONNX model to write")
    add("--torch", type=Path, metavar="FILE", help="program of torch.export to write (.pt2); needs a run")
    add("--state-dict", type=Path, metavar="FILE", help="dense weights to write (.safetensors); needs a run")
    add(
        "--pixels",
        choices=("uint8", "float"),
        help="input of the ONNX model: uint8 images (N, H, W, C), or float images (N, C, H, W) of 0 to 1; both are "
        "normalised in the graph (default: uint8)",
    )
    add(
        "--network-only",
        action="store_true",
        help="ONNX of a run without its detector, from normalised images to logits and features; for networks with "
        "operators that the runtime lacks",
    )
    add_data(parser)


def act(arguments: argparse.Namespace) -> None:
    _check_arguments(arguments)
    from moon.deploy.formats import write_network_onnx, write_onnx, write_state_dict, write_torch

    if arguments.onnx and arguments.network_only:
        _report(arguments.onnx, write_network_onnx(arguments.source, arguments.onnx))
    elif arguments.onnx:
        with TemporaryDirectory() as folder:
            packed = arguments.source
            if packed.is_dir():
                packed = Path(folder) / "packed.moon"
                _pack(arguments.source, arguments.data, packed)
            _report(arguments.onnx, write_onnx(packed, arguments.onnx, arguments.pixels or "uint8"))
    if arguments.torch:
        _report(arguments.torch, write_torch(arguments.source, arguments.torch))
    if arguments.state_dict:
        _report(arguments.state_dict, write_state_dict(arguments.source, arguments.state_dict))


def _check_arguments(arguments: argparse.Namespace) -> None:
    """Raise a ValueError if the arguments do not fit together, or a FileNotFoundError if there is no source."""
    source = arguments.source
    if not (arguments.onnx or arguments.torch or arguments.state_dict):
        raise ValueError("nothing to write; give --onnx, --torch or --state-dict")
    if arguments.onnx is None and (arguments.pixels or arguments.network_only):
        raise ValueError("--pixels and --network-only belong to --onnx")
    if arguments.pixels and arguments.network_only:
        raise ValueError("--network-only takes normalised images; leave --pixels out")
    if not source.exists():
        raise FileNotFoundError(2, "no such file or folder", str(source))
    for flag, given in (("torch", arguments.torch), ("state-dict", arguments.state_dict),
                        ("network-only", arguments.network_only)):  # fmt: skip
        if given and not source.is_dir():
            raise ValueError(f"{source}: is a file; --{flag} needs the folder of a run")
    if source.is_dir() and not (source / "recipe.json").exists():
        raise ValueError(f"{source}: is not the folder of a run; it has no recipe.json")
    taken = {source.resolve(): "the source"}
    for flag, path in (("onnx", arguments.onnx), ("torch", arguments.torch), ("state-dict", arguments.state_dict)):
        if path is not None:
            check_output(path, f"choose another file (--{flag})")
            if (other := taken.setdefault(path.resolve(), f"--{flag}")) != f"--{flag}":
                raise ValueError(f"{path}: is also {other}; choose another file (--{flag})")
    needed = ["onnx", "onnxscript"] if arguments.onnx else []
    if missing := [name for name in needed if find_spec(name) is None]:
        raise ValueError(f"--onnx needs {' and '.join(missing)}; pip install {' '.join(missing)}")


def _pack(run: Path, data: Path, path: Path) -> None:
    """Pack a run with the default settings of `moon pack`."""
    from moon.deploy import pack_run
    from moon.recipe import Recipe
    from moon.run.folder import load_result
    from moon.run.images import BenchmarkImages

    load_result(run)  # fails before images are read
    recipe = Recipe.load(run / "recipe.json")
    images = BenchmarkImages.open(data, recipe.benchmark, outliers=recipe.outliers)
    pack_run(run, images, path, checked=0)


def _report(path: Path, checked: str) -> None:
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB; {checked}")
