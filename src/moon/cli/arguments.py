"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from moon.recipe import PARAMETERS, names_of
from moon.recipe.names import KINDS

if TYPE_CHECKING:
    import torch

Number = TypeVar("Number", int, float)


def add_action(actions: Any, name: str, summary: str, epilog: str, **defaults: Any) -> argparse.ArgumentParser:
    """Add the parser of an action, such as `train` of `moon bench`; `--debug` may precede or follow the action."""
    description = f"{summary[0].upper()}{summary[1:]}."
    parser = actions.add_parser(name, help=summary, description=description, epilog=epilog.strip("\n"))
    parser.set_defaults(**defaults)
    # A default would override a value that is given before the action.
    parser.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
    )
    return parser


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        type=Path,
        metavar="ROOT",
        default=Path(os.environ.get("MOON_DATA", "data")),
        help="folder of data sets, <name>/<split>.npz (default: $MOON_DATA, else ./data)",
    )


def check_data(arguments: argparse.Namespace) -> None:
    """Raise a ValueError if the data root is a file; one that does not exist matters only where data are read."""
    root = getattr(arguments, "data", None)
    if isinstance(root, Path) and root.exists() and not root.is_dir():
        where = "MOON_DATA" if str(root) == os.environ.get("MOON_DATA") else "--data"
        raise ValueError(f"{root}: is a file, not a folder; give the folder that contains the data sets ({where})")


def add_inexact(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--inexact",
        action="store_true",
        help="let the last bits of results vary: use the fastest kernels of a GPU, and resume with any number of CPU "
        "threads and processes",
    )


_TOPICS = {
    "what is trained": ("preset", "net", "width", "pretrained", "objective", "outliers", "augment", "teachers"),
    "sparsity": ("topology", "sparsity", "allocation", "pattern", "first_mask", "drop", "delta_t", "t_end"),
}
_OTHER_TOPIC = "optimization"


def add_parameters(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add a flag for each parameter of a run, by topic; with `several` each takes a list of values."""
    topics = {topic: parser.add_argument_group(topic) for topic in (*_TOPICS, _OTHER_TOPIC)}
    for parameter in PARAMETERS.values():
        if parameter.name == "benchmark":  # positional
            continue
        text = parameter.help
        if parameter.table:
            text += f": {', '.join([*names_of(parameter.table), *filter(None, [KINDS[parameter.table].more])])}"
        if parameter.default:
            text += f" (default: {parameter.default})"
        topic = next((topic for topic, names in _TOPICS.items() if parameter.name in names), _OTHER_TOPIC)
        topics[topic].add_argument(
            f"--{parameter.name.replace('_', '-')}",
            type=parameter.type if parameter.minimum is None else whole,
            metavar=parameter.metavar,
            nargs="+" if several else None,
            help=text.replace("%", "%%"),
        )


def pair(text: str) -> tuple[str, str]:
    """Parse an argument of the form NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, not '{text}'")
    return name, value


def add_checkpoint_seconds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint-seconds",
        type=seconds,
        default=30,
        metavar="S",
        help="minimum time between checkpoints, in seconds (default: %(default)s)",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: cuda if available)")


def local_device() -> str | None:
    """Return the GPU of this process if torchrun started it, else None."""
    if "LOCAL_RANK" not in os.environ:
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    return f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"


def whole(text: str) -> int:
    """Parse a count: an integer of at least 1."""
    return _parsed(text, int, "an integer", lambda number: number >= 1, "at least 1")


def fraction(text: str) -> float:
    """Parse a share above 0 and below 1."""
    return _parsed(text, float, "a number between 0 and 1", lambda number: 0 < number < 1, "above 0 and below 1")


def seconds(text: str) -> float:
    """Parse a duration in seconds."""
    return _parsed(text, float, "a number of seconds", lambda number: 0 <= number < float("inf"), "at least 0")


def gib(text: str) -> float:
    """Parse an amount of memory in GiB."""
    return _parsed(text, float, "a number of GiB", lambda number: number >= 0, "at least 0")


def _parsed(
    text: str, kind: Callable[[str], Number], expected: str, is_allowed: Callable[[Number], bool], allowed: str
) -> Number:
    """Parse a number; an error says what is expected, or which numbers are allowed."""
    try:
        number = kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be {expected}, not '{text}'") from None
    if not is_allowed(number):
        raise argparse.ArgumentTypeError(f"must be {allowed}, not {text}")
    return number


def device_of(name: str | None) -> torch.device:
    """Return the device of this name, or the default; raise a ValueError if a test allocation on it fails."""
    import torch

    from moon.run.machine import usable_device

    return usable_device(name or ("cuda" if torch.cuda.is_available() else "cpu"))


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a checkpoint in place of a run."""
    add = parser.add_argument_group("a checkpoint instead of runs").add_argument
    add("--checkpoint", type=Path, metavar="FILE", help="weights: safetensors, or a state_dict of PyTorch")
    add("--net", help="their network: resnet18, torchvision:NAME, timm:NAME, openood:NAME, package.module:function")
    add("--width", type=float, help="factor of its channels, if it is a wider or narrower ResNet of moon (default: 1)")
    add("--benchmark", help="the benchmark that it was trained on")


def check_checkpoint(arguments: argparse.Namespace, runs: Sequence[Path], also: Mapping[str, object]) -> None:
    """Raise a ValueError unless there are runs, or a checkpoint with all that belongs to it and `also`."""
    own = {"--net NET": arguments.net, "--width": arguments.width, "--benchmark NAME": arguments.benchmark}
    needs = {name: value for name, value in own.items() if name != "--width"} | {**also}
    if arguments.checkpoint is None:
        if given := [name.split()[0] for name, value in own.items() if value is not None]:
            raise ValueError(f"{given[0]} is for a checkpoint (--checkpoint FILE); a run folder already contains it")
        if not runs:
            raise ValueError(f"name a run folder, or a checkpoint (--checkpoint FILE {' '.join(needs)})")
    elif runs:
        raise ValueError(f"give run folders or a checkpoint, not both ({runs[0]}, {arguments.checkpoint})")
    elif missing := [name.split()[0] for name, value in needs.items() if value is None]:
        raise ValueError(f"a checkpoint also needs {', '.join(missing)}")
