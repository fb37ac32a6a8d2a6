"""Checkpoints that survive a kill at any time: JSON and safetensors files with a SHA-256 manifest.

A checkpoint is a folder. It is written under a temporary name, synced to disk and renamed, so a folder with the final
name is complete. The two newest are kept; one that does not match its manifest is skipped. The state is copied
immediately and written by a thread, so training does not wait for the disk.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from moon.errors import DamagedCheckpoint, DataError
from moon.files import open_regular, own_folder, remove, sha256, write_atomic, write_json
from moon.records import read_json, read_limited

_log = logging.getLogger(__name__)

_TENSORS, _TREE, _MANIFEST = "tensors.safetensors", "tree.json", "manifest.json"
_MAX_TREE_BYTES = 2**28  # about four million values that are not tensors


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file atomically, from tensors of any device and layout."""
    copies = _copies(tensors)
    write_atomic(path, lambda partial: partial.write_bytes(save(copies)))  # save_file creates private files


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous copies on the CPU; safetensors supports neither shared memory nor other layouts."""
    return {
        name: torch.empty(value.shape, dtype=value.dtype, device="cpu").copy_(value.detach())
        for name, value in tensors.items()
    }


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file to the CPU. Raises DamagedCheckpoint if it is missing or not a safetensors file."""
    try:
        open_regular(path).close()  # opening a named pipe would wait for a writer
        return load_file(path)
    except (SafetensorError, OSError, DataError) as error:
        raise DamagedCheckpoint(f"{path}: {error}") from error


class Checkpoints:
    """The checkpoints of one run, a numbered folder each.

    Args:
        folder: The folder that contains them; created by the first `save`.
        keep: How many of the newest are kept.

    Attributes:
        about: Facts about the run, such as its number of threads. They are added to every state that is saved, under
            the key "about".

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import torch
        >>> from moon import Checkpoints
        >>> with TemporaryDirectory() as folder:
        ...     checkpoints = Checkpoints(Path(folder))
        ...     checkpoints.save(1, {"weight": torch.ones(2), "lr": 0.1})
        ...     checkpoints.latest()
        (1, {'weight': tensor([1., 1.]), 'lr': 0.1})
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep
        self.about: dict[str, Any] = {}
        self._thread = futures.ThreadPoolExecutor(1)  # the thread starts with the first task
        self._writing: futures.Future[None] | None = None

    def save(self, number: int, state: dict[str, Any]) -> None:
        """Save a state, and delete all but the `keep` newest checkpoints.

        The state is copied before this returns and written in the background. If writing fails, the next call of
        `save`, `wait` or `latest` raises the error.

        Args:
            number: The number of the checkpoint; existing ones with this number or a higher one are deleted.
            state: Tensors, numbers, strings and None, in dicts and lists.

        Raises:
            TypeError: If the state contains anything else.
        """
        self.wait()
        tensors: dict[str, Tensor] = {}
        tree = _pack(state | ({"about": self.about} if self.about else {}), "", tensors)
        self._writing = self._thread.submit(self._save, number, tree, _copies(tensors))

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk.

        A KeyboardInterrupt is raised only afterwards: before that, no other process may write to the folder.
        """
        if self._writing is None:
            return
        interrupt = None
        while not self._writing.done():
            try:
                futures.wait([self._writing])
            except KeyboardInterrupt as error:
                interrupt = error
        written, self._writing = self._writing, None
        if interrupt is not None:
            raise interrupt
        written.result()

    def _save(self, number: int, tree: Any, tensors: dict[str, Tensor]) -> None:
        own_folder(self.folder)
        for newer in self._numbers():
            if newer >= number:  # it is damaged, otherwise the run would have been resumed from it
                remove(self._path(newer))
        write_atomic(self._path(number), lambda partial: self._write(partial, tree, tensors))
        for old in self._numbers()[: -self.keep]:
            remove(self._path(old))

    def latest(self) -> tuple[int, dict[str, Any]] | None:
        """Load the newest checkpoint. Damaged ones are skipped with a warning in the log.

        Returns:
            Its number and state; None if there are no checkpoints.

        Raises:
            DamagedCheckpoint: If all checkpoints are damaged.
        """
        self.wait()
        numbers = self._numbers()
        for number in reversed(numbers):
            try:
                return number, self._read(self._path(number))
            except DamagedCheckpoint as error:
                _log.warning("skipping a damaged checkpoint: %s", error)
        if numbers:
            raise DamagedCheckpoint(
                f"{self.folder}: all {len(numbers)} checkpoint(s) are damaged; delete the run folder to start again"
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
            manifest = read_json(path / _MANIFEST)
            for name in (_TREE, _TENSORS):
                if sha256(path / name) != manifest[name]:
                    raise DamagedCheckpoint(f"{path / name} does not match its SHA-256")
            return _unpack(json.loads(read_limited(path / _TREE, _MAX_TREE_BYTES)), load_tensors(path / _TENSORS))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedCheckpoint(f"{path}: {error}") from error


@contextmanager
def written_at_exit(checkpoints: Checkpoints | None) -> Iterator[None]:
    """Context that ends only when all saved checkpoints are on disk, even if there is an exception.

    If writing fails, the error is raised, or only logged if there is already an exception.
    """
    try:
        yield
    except BaseException:
        if checkpoints is not None:
            try:
                checkpoints.wait()
            except Exception as error:
                _log.warning("the last checkpoint was not written: %s", error)
        raise
    if checkpoints is not None:
        checkpoints.wait()


def _pack(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The state as JSON values; tensors are moved to `tensors` and replaced by their names."""
    if isinstance(value, Tensor):
        tensors[path] = value
        return {"tensor": path}
    if isinstance(value, dict):  # as pairs, because the keys of a JSON object are always strings
        return {"pairs": [[key, _pack(item, f"{path}/{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"list": [_pack(item, f"{path}/{index}", tensors) for index, item in enumerate(value)]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise TypeError(f"{path}: a {type(value).__name__} cannot be saved; use tensors, numbers, strings and containers")


def _unpack(node: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    """The inverse of `_pack`."""
    ((kind, content),) = node.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "pairs":
        return {key: _unpack(item, tensors) for key, item in content}
    if kind == "list":
        return [_unpack(item, tensors) for item in content]
    return content
