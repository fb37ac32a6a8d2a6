"""Checkpoints that survive a kill at any moment: JSON and safetensors under a SHA-256 manifest.

A checkpoint is a folder. It is written under a temporary name, synced to disk and renamed, so that a folder with the
final name is whole; the two newest are kept, and one that does not match its manifest is passed over for the other.
The state is copied at once and written by a thread, so that training does not wait for the disk.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from moon.files import sha256, write_atomic, write_json

_TENSORS, _TREE, _MANIFEST = "tensors.safetensors", "tree.json", "manifest.json"


class DamagedCheckpoint(Exception):
    """What is on disk is not what was written."""


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """`write_atomic` of a safetensors file."""
    plain = _copies(tensors)
    write_atomic(path, lambda partial: partial.write_bytes(save(plain)))  # its own writer hides the file from others


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU; safetensors takes neither views that share memory nor other memory layouts."""
    return {
        name: torch.empty(value.shape, dtype=value.dtype, device="cpu").copy_(value.detach())
        for name, value in tensors.items()
    }


def load_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise DamagedCheckpoint(f"{path}: {error}") from error


class Checkpoints:
    """The checkpoints of one run: a numbered folder each, the two newest kept."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep
        self._thread = futures.ThreadPoolExecutor(1)  # begins with the first task
        self._writing: futures.Future[None] | None = None

    def save(self, number: int, state: dict[str, Any]) -> None:
        """Copy the state, a tree of dicts, lists, plain values and tensors; write it while the caller goes on, and
        then forget the oldest. An error in writing is raised by the next call."""
        self.wait()
        tensors: dict[str, Tensor] = {}
        tree = _pack(state, "", tensors)
        self._writing = self._thread.submit(self._save, number, tree, _copies(tensors))

    def wait(self) -> None:
        """Until what was saved is on disk. Ctrl-C counts only then: nobody else may write into the folder before."""
        if self._writing is None:
            return
        stopped = None
        while not self._writing.done():
            try:
                futures.wait([self._writing])
            except KeyboardInterrupt as error:
                stopped = error
        written, self._writing = self._writing, None
        if stopped is not None:
            raise stopped
        written.result()

    def _save(self, number: int, tree: Any, tensors: dict[str, Tensor]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for passed_over in self._numbers():
            if passed_over >= number:  # a damaged one, or it would have been gone on from
                shutil.rmtree(self._path(passed_over))
        write_atomic(self._path(number), lambda partial: self._write(partial, tree, tensors))
        for old in self._numbers()[: -self.keep]:
            shutil.rmtree(self._path(old))

    def latest(self, say: Callable[[str], object] = print) -> tuple[int, dict[str, Any]] | None:
        """(number, state) of the newest whole checkpoint, or None; a damaged one is passed over, saying so."""
        self.wait()
        numbers = self._numbers()
        for number in reversed(numbers):
            try:
                return number, self._read(self._path(number))
            except DamagedCheckpoint as error:
                say(f"checkpoint damaged, trying the one before it: {error}")
        if numbers:
            raise DamagedCheckpoint(
                f"{self.folder}: none of the {len(numbers)} checkpoint(s) is whole; delete the run folder to start anew"
            )
        return None

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}"

    def _numbers(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdigit())

    @staticmethod
    def _write(partial: Path, tree: Any, tensors: dict[str, Tensor]) -> None:
        partial.mkdir()
        write_json(partial / _TREE, tree)
        (partial / _TENSORS).write_bytes(save(tensors))
        write_json(partial / _MANIFEST, {name: sha256(partial / name) for name in (_TREE, _TENSORS)})

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        try:
            manifest = json.loads((path / _MANIFEST).read_text())
            for name in (_TREE, _TENSORS):
                if sha256(path / name) != manifest[name]:
                    raise DamagedCheckpoint(f"{path / name} does not match its SHA-256")
            return _unpack(json.loads((path / _TREE).read_text()), load_tensors(path / _TENSORS))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedCheckpoint(f"{path}: {error}") from error


def _pack(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The tree as JSON; each tensor goes into `tensors` and leaves its name behind."""
    if isinstance(value, Tensor):
        tensors[path] = value
        return {"tensor": path}
    if isinstance(value, dict):  # as pairs, because JSON turns every key into a string
        return {"pairs": [[key, _pack(item, f"{path}/{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"list": [_pack(item, f"{path}/{index}", tensors) for index, item in enumerate(value)]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise TypeError(f"{path}: a {type(value).__name__} cannot be saved; use tensors, numbers, strings and containers")


def _unpack(node: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    ((kind, content),) = node.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "pairs":
        return {key: _unpack(item, tensors) for key, item in content}
    if kind == "list":
        return [_unpack(item, tensors) for item in content]
    return content
