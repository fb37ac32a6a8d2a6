"""Evidence that is too large for memory: tensors in temporary files, and work on tensors chunk by chunk.

A `DiskTensor` is an ordinary tensor whose memory is a file, so all code works with it. Code that reads it with
`chunks`, `mapped` and `taken` needs memory for one chunk only. Tensors in memory have the same chunks, and therefore
the same results, bit by bit.
"""

from __future__ import annotations

import logging
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_log = logging.getLogger(__name__)

MEMORY_GIB = 4.0  # evidence of a set that needs more goes to disk
_CHUNK = 2**25  # numbers in a chunk, 128 MiB of float32: the training features of CIFAR-10 are one chunk
_GIB = 2**30
_MOUNTS = Path("/proc/self/mountinfo")  # Linux only


class DiskTensor(Tensor):
    """A tensor whose memory is a file. Results of operations are ordinary tensors.

    Files of tensors that are computed from this one go to `folder`.
    """

    # Results are ordinary tensors.
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]
    folder: Path
    _pages: mmap.mmap
    _offset: int

    @staticmethod
    def of_pages(
        pages: mmap.mmap, folder: Path, dtype: torch.dtype, shape: tuple[int, ...], offset: int = 0
    ) -> DiskTensor:
        """The tensor that a file contains from byte `offset` on, in this machine's byte order; not an empty one."""
        count = torch.Size(shape).numel()
        made = torch.frombuffer(pages, dtype=dtype, count=count, offset=offset).view(shape).as_subclass(DiskTensor)
        made.folder, made._pages, made._offset = folder, pages, offset
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.clone().__reduce_ex__(protocol)  # a pickled one is an ordinary tensor

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self.clone()

    def release(self, start: int = 0, stop: int | None = None) -> None:
        """Let the operating system reclaim the memory of rows; they are read again when they are needed."""
        if not hasattr(self._pages, "madvise"):  # Windows
            return
        row = self.element_size() * self.stride(0)
        first = (self._offset + start * row) // mmap.PAGESIZE * mmap.PAGESIZE
        last = self._offset + (len(self) if stop is None else min(stop, len(self))) * row
        self._pages.madvise(mmap.MADV_DONTNEED, first, last - first)


def chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the rows of tensors of the same length, many at a time: the same rows of each tensor."""
    total = len(tensors[0])
    rows = max(1, _CHUNK // max(1, *(tensor.shape[1:].numel() for tensor in tensors)))
    if total <= rows:
        yield tensors
    for start in range(0, total, rows) if total > rows else ():
        yield tuple(tensor[start : start + rows] for tensor in tensors)
        for tensor in tensors:
            if isinstance(tensor, DiskTensor):
                tensor.release(start, start + rows)


def mapped(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Apply a function to the rows of tensors of the same length; a row of its result must not depend on other rows.

    If one of the tensors is on disk, so is the result, unless its rows are single numbers.
    """
    folder = next((tensor.folder for tensor in tensors if isinstance(tensor, DiskTensor)), None)
    if folder is None:
        return function(*tensors)
    rows = Rows(folder)
    for parts in chunks(*tensors):
        rows.add(function(*parts))
    return rows.tensor()


def taken(tensor: Tensor, index: Tensor) -> Tensor:
    """Return `tensor[index]`, rows by number or by a mask, in memory."""
    if not isinstance(tensor, DiskTensor):
        return tensor[index]
    index = torch.arange(len(tensor))[index]  # of a mask, or counted from the end; checked as torch does
    found = torch.empty((len(index), *tensor.shape[1:]), dtype=tensor.dtype)
    start = 0
    for (part,) in chunks(tensor):
        here = ((index >= start) & (index < start + len(part))).nonzero().squeeze(1)
        found[here] = part[index[here] - start]
        start += len(part)
    return found


class Rows:
    """Collects the rows of a tensor, batch by batch, in memory or in a temporary file in `folder`.

    The file has no name, or is deleted when it is closed: nothing is left behind even if the process is killed.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder: Any = folder
        self._parts: list[Tensor] = []
        self._file: Any = None
        self._count = 0

    def add(self, part: Tensor) -> None:
        """Append rows; rows of single numbers are always collected in memory."""
        if self._folder is None or part.ndim == 1:
            self._parts.append(part)
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115  (closed by `tensor`)
        self._file.write(part.detach().contiguous().cpu().view(torch.uint8).numpy())
        self._parts, self._count = [part[:0]], self._count + len(part)

    def tensor(self) -> Tensor:
        """Return the tensor of all rows."""
        if not self._count:
            return torch.cat(self._parts)
        with self._file as file:
            file.flush()
            pages = mmap.mmap(file.fileno(), 0)
        none = self._parts[0]
        return DiskTensor.of_pages(pages, self._folder, none.dtype, (self._count, *none.shape[1:]))


@dataclass(frozen=True)
class Storage:
    """Where `read` keeps evidence: in memory, or in temporary files if it is large.

    Args:
        inputs: The number of inputs.
        folder: Where to put the files; if it does not exist yet, they are put into the nearest parent that does.
        memory_gib: Evidence that needs more memory than this is kept in files. Evidence on a GPU stays there.
        what: The inputs in words, for messages.
        copies: How many times evidence of this size may exist at the same time, for the check of the free space: by
            default once unchanged, and once with features of length 1 and scaled logits.

    Example:
        >>> from pathlib import Path
        >>> import torch
        >>> from moon import Storage
        >>> storage = Storage(inputs=50_000, folder=Path())  # 50,000 times 512 features and 10 logits: 0.1 GiB
        >>> storage.place(torch.zeros(1, 10), torch.zeros(1, 512)) is None  # in memory
        True
    """

    inputs: int
    folder: Path
    memory_gib: float = MEMORY_GIB
    what: str = "inputs"
    copies: int = 2

    def place(self, logits: Tensor, features: Tensor) -> Path | None:
        """Decide from the first batch where to keep evidence. If in files, this is logged.

        If the folder cannot be written to, the files are put into the system's folder for temporary files. A folder
        that is in memory itself (tmpfs) is used as well, with a warning.

        Args:
            logits: The logits of the first batch.
            features: Its features.

        Returns:
            The folder of the files, or None for memory.

        Raises:
            ValueError: If there is not enough space in the folder.
        """
        features_gib = self.inputs * features.shape[1] * features.element_size() / _GIB
        logits_gib = self.inputs * logits.shape[1] * 8 / _GIB  # in float64
        size = features_gib + logits_gib
        if size <= self.memory_gib or features.device.type != "cpu":
            return None
        temporary = Path(tempfile.gettempdir())
        nearest = next(path for path in (self.folder, *self.folder.absolute().parents) if path.is_dir())
        folder = nearest if os.access(nearest, os.W_OK) else temporary
        needed = self.copies * size
        if (free := shutil.disk_usage(folder).free / _GIB) < needed:
            raise ValueError(
                f"the evidence of {self.inputs:,} {self.what} needs {_size(needed)} on disk, because it is larger than "
                f"{_size(self.memory_gib)}, but {folder} has {_size(free)} free; free some space, write to another "
                "disk, or allow more memory"
            )
        why = "" if folder == nearest else f" ({nearest} cannot be written to)"
        kind = _memory_type(folder)
        instead = "set TMPDIR to a folder on a disk" if folder == temporary else "write to a disk"
        _log.log(
            logging.WARNING if kind else logging.INFO,
            "the evidence of %s %s takes %s, more than the %s that are allowed in memory, so it is kept in temporary "
            "files in %s, at most %s, which are deleted afterwards%s",
            *(f"{self.inputs:,}", self.what, _size(size), _size(self.memory_gib), f"{folder}{why}", _size(needed)),
            kind and f"; this saves no memory, because that folder is in memory as well ({kind}): {instead}",
        )
        return folder


def _memory_type(folder: Path) -> str:
    """The type of a folder's file system if it is in memory; empty if it is not, or not known (other than on Linux)."""
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
        device = folder.stat().st_dev
    except OSError:
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    types = [line.partition(" - ")[2].split(" ")[0] for line in mounts if line.split(" ")[2:3] == [number]]
    return types[0] if types and types[0] in ("tmpfs", "ramfs") else ""


def _size(gib: float) -> str:
    """A size in words, such as 1.5 GiB."""
    return f"{gib:.3g} GiB" if gib >= 0.1 else f"{1024 * gib:.3g} MiB"
