"""Read one hostile source in a process of its own, with little memory, and print the answer as JSON."""

from __future__ import annotations

import json
import os
import resource
import sys
import sysconfig
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from cases import value_of

import moon
from moon.data.dataset import load
from moon.data.decoding import decode_rgb
from moon.data.image_files import read_folders, read_list
from moon.data.readers import read_any
from moon.data.toml_file import read_toml
from moon.errors import DamagedCheckpoint, DataError
from moon.records import read_json

MEMORY = 2 * 2**30
SECONDS = 10  # of processor time: other programs may keep the machine busy
# What Python itself opens while it reads a source.
_OWN = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")] + [sys.base_prefix]
_STARTS = (
    "subprocess.Popen",
    "os.exec",
    "os.posix_spawn",
    "os.system",
    "os.fork",
    "pickle.find_class",
    "socket.connect",
)


def _read(reader: str, path: Path) -> str:
    if reader == "image":
        return value_of(np.asarray(decode_rgb(path, path).image), [])
    if reader in ("toml", "json"):
        return repr((read_toml if reader == "toml" else read_json)(path))[:200]
    if reader == "log":
        from moon.run.log import read_log

        return repr(read_log(path.parent))[:200]
    if reader == "moon file":
        from moon.export.reading import read_file

        return repr(sorted(read_file(path)[1]))[:200]
    if reader == "packed network":
        return repr(moon.load(path).metadata)[:200]
    if reader == "npz":
        dataset = load(path.parents[1], path.parent.name, path.stem)
    elif reader == "folders":
        dataset = read_folders(path, 8)
    elif reader == "list":
        dataset = read_list(path, size=8)
    else:
        dataset = read_any(path, "train", size=8)
    return value_of(dataset.images, dataset.labels)


def main(reader: str, folder: str, path: str) -> None:
    """Print what reading the source leads to, what it started and what it opened outside of its folder."""
    root = os.path.realpath(folder)
    started: list[str] = []
    outside: list[str] = []
    found = [find_spec(name) for name in ("moon", "moon_runtime")]
    own = [place for spec in found if spec for place in spec.submodule_search_locations or ()]
    inside = [root, *map(os.path.realpath, [*_OWN, *own])]

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _STARTS:
            started.append(event)
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            opened = os.path.realpath(os.fsdecode(arguments[0]))
            if not any(opened == place or opened.startswith(f"{place}/") for place in inside):
                outside.append(opened)

    if reader == "log":
        import_module("moon.run.log")  # before anything is watched: torch reads files of the system
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    sys.addaudithook(watch)
    answer: dict[str, Any] = {}
    try:
        answer["value"] = _read(reader, Path(folder) / path)
    except (DataError, DamagedCheckpoint) as error:
        answer["refused"] = str(error)
    except BaseException as error:
        is_documented = reader == "json" and isinstance(error, ValueError)  # what `read_json` raises
        answer["refused" if is_documented else "unforeseen"] = f"{type(error).__name__}: {error}"[:500]
    answer |= {"started": list(started), "outside": list(outside)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
