"""Reading a sparse network on a CPU: convolutions over the weights that exist, with what follows them in one pass."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from moon.fast.norm import norm_only, norm_relu

_SOURCE = Path(__file__).with_name("reading.c")
_CACHE = 2**16  # bytes that a part of a layer may touch: of a first cache
_LIST = 32  # weights of an output in a part, on average, at least: sums are fetched and put back for each
_SPARSE = 0.25  # of the weights: with more, dense products are as fast

_active: SparseReading | None = None


def conv_norm_relu(conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """relu(norm(conv(x)) + residual)."""
    if _active is not None and _active.takes(conv, norm, x):
        return _active.layer(conv, norm, x, residual, cut=True)
    return norm_relu(norm, conv(x), residual)


def conv_norm(conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """norm(conv(x))."""
    if _active is not None and _active.takes(conv, norm, x):
        return _active.layer(conv, norm, x, None, cut=False)
    return norm_only(norm, conv(x))


@contextmanager
def sparse_reading(model: nn.Module, half: bool = False) -> Iterator[bool]:
    """Inside, a sparse network of ours on a CPU is read by its weights that exist; whether it is so is what is given.

    Its weights must not change meanwhile. Where there is no C compiler a warning says so, and the reading is an
    ordinary one. `half` is float16, faster where the CPU computes in it, and less exact; where it cannot be had that is
    a ValueError.
    """
    global _active
    why = _obstacle(model)
    reading = None
    try:
        reading = SparseReading(half) if why is None else None
    except OSError as error:
        why = str(error)
        if not half:
            warnings.warn(f"the network is read with dense products, which is slower: {why}", stacklevel=3)
    if half and reading is None:
        raise ValueError(f"it cannot be read in float16: {why}")
    before, _active = _active, reading
    try:
        yield reading is not None
    finally:
        _active = before
        if reading is not None:
            reading.end()


def _obstacle(model: nn.Module) -> str | None:
    """Why this network is better read with dense products, or None."""
    if not any(getattr(module, "calls_conv_norm", False) for module in model.modules()):
        return "it is none of our residual networks"
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        return "it is not on a CPU"
    exist = sum(int(layer.weight.count_nonzero()) for layer in layers)
    if exist > _SPARSE * sum(layer.weight.numel() for layer in layers):
        return "it is not sparse"
    return None


class Maps:
    """Maps of images as the kernel has them; to everybody else a tensor (N, C, H, W), made when it is asked for."""

    def __init__(self, values: Tensor, images: int, spare: list[Tensor]) -> None:
        self.values, self.images, self._spare = values, images, spare

    def __del__(self) -> None:
        self._spare.append(self.values)  # memory that is new each time costs more than the zeros in it

    @property
    def shape(self) -> torch.Size:
        _, rows, channels, columns, _ = self.values.shape
        return torch.Size((self.images, channels, rows - 2, columns - 2))

    @property
    def inner(self) -> Tensor:
        """Without the frame: groups of images, images, channels, rows, columns."""
        return self.values[:, 1:-1, :, 1:-1].permute(0, 4, 2, 1, 3)

    def tensor(self) -> Tensor:
        return torch.empty(self.inner.shape).copy_(self.inner).flatten(0, 1)[: self.images]

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        plain = partial(tree_map, lambda one: one.tensor() if isinstance(one, Maps) else one)
        return function(*plain(args), **plain(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.tensor(), name)


class _Lists(NamedTuple):
    """The weights of a layer as the kernel reads them."""

    start: Tensor
    offset: Tensor
    value: Tensor
    shift: Tensor
    parts: int


class _Layer(ctypes.Structure):
    """As in reading.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("input", "residual", "out", "start", "offset", "value", "shift")),
        *((name, ctypes.c_int64) for name in ("parts", "in_rows", "inputs", "in_columns")),
        *((name, ctypes.c_int64) for name in ("outputs", "rows", "columns", "stride", "corner", "relu")),
    )


class SparseReading:
    """The kernel, and the layers that it has seen."""

    def __init__(self, half: bool) -> None:
        self._library = _compiled(half)
        self.dtype = torch.float16 if half else torch.float32
        self.lanes = self._library.lanes()
        self._lists: dict[tuple[nn.Conv2d, nn.BatchNorm2d, torch.Size], _Lists] = {}
        self._spare: dict[tuple[int, ...], list[Tensor]] = {}
        self._threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self._threads)

    def end(self) -> None:
        self._pool.shutdown()

    def takes(self, conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor | Maps) -> bool:
        """Whether the kernel does the same as the modules."""
        (down, right), (height, width) = conv.stride, conv.kernel_size
        return (
            type(conv) is nn.Conv2d and type(norm) is nn.BatchNorm2d and not norm.training
            and norm.running_mean is not None and conv.groups == 1 and conv.dilation == (1, 1)
            and conv.padding_mode == "zeros" and conv.padding in ((0, 0), (1, 1)) and down == right
            and not (conv._forward_hooks or conv._forward_pre_hooks or norm._forward_hooks or norm._forward_pre_hooks)
            and not torch.is_grad_enabled() and (isinstance(x, Maps) or x.dtype == torch.float32)
            and x.shape[2] + 2 * conv.padding[0] >= height and x.shape[3] + 2 * conv.padding[1] >= width
        )  # fmt: skip

    def layer(
        self, conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor | Maps, residual: Tensor | Maps | None, cut: bool
    ) -> Any:
        """One layer, and what follows it."""
        x = self._laid_out(x)
        key = conv, norm, x.values.shape[1:4]
        if key not in self._lists:
            self._lists[key] = self._listed(conv, norm, x)
        lists, stride, padding = self._lists[key], conv.stride[0], int(conv.padding[0])
        rows, columns = (
            (size + 2 * padding - kernel) // stride + 1
            for size, kernel in zip(x.shape[2:], conv.kernel_size, strict=True)
        )
        groups = len(x.values)
        out = self._room(x.images, conv.out_channels, rows, columns)
        more = None if residual is None else self._laid_out(residual)
        tensors = x.values, None if more is None else more.values, out.values, *lists[:4]
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        layer = _Layer(
            *pointers, lists.parts, *x.values.shape[1:4], conv.out_channels, rows, columns, stride, 1 - padding, cut
        )
        ends = [groups * rows * thread // self._threads for thread in range(self._threads + 1)]
        act = self._library.convolve
        for done in [self._pool.submit(act, ctypes.byref(layer), *ends[i : i + 2]) for i in range(self._threads)]:
            done.result()
        return out

    def _laid_out(self, x: Tensor | Maps) -> Maps:
        if isinstance(x, Maps):
            return x
        maps, whole = self._room(*x.shape), len(x) // self.lanes
        inner = maps.inner
        inner[:whole] = x[: whole * self.lanes].unflatten(0, (whole, self.lanes))
        if rest := len(x) % self.lanes:
            inner[whole, :rest] = x[-rest:]
        return maps

    def _room(self, images: int, channels: int, rows: int, columns: int) -> Maps:
        """Memory for maps, with their frame of zeros, which nobody writes to."""
        shape = -(-images // self.lanes), rows + 2, channels, columns + 2, self.lanes
        spare = self._spare.setdefault(shape, [])
        return Maps(spare.pop() if spare else torch.zeros(shape, dtype=self.dtype), images, spare)

    def _listed(self, conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Maps) -> _Lists:
        """The layer's weights and BatchNorm, which is a factor and a shift of each output."""
        assert norm.running_mean is not None
        assert norm.running_var is not None
        factor = (norm.running_var.double() + norm.eps).rsqrt()
        factor = factor if norm.weight is None else factor * norm.weight.double()
        bias = -norm.running_mean.double() if conv.bias is None else conv.bias.double() - norm.running_mean.double()
        shift = bias * factor if norm.bias is None else bias * factor + norm.bias.double()
        output, channel, row, column = conv.weight.detach().nonzero(as_tuple=True)
        value = conv.weight.detach()[output, channel, row, column].double() * factor[output]
        _, _, inputs, columns, lanes = x.values.shape
        window = inputs * conv.kernel_size[0] * min(columns, 18)  # vectors that sixteen places are made of
        touched = len(value) * (4 + self.dtype.itemsize) + window * lanes * self.dtype.itemsize
        parts = max(1, min(-(-touched // _CACHE), inputs, len(value) // (_LIST * conv.out_channels)))
        where = channel * parts // inputs * conv.out_channels + output
        offset = (row * inputs + channel) * columns + column
        order = offset.argsort()
        order = order[where[order].argsort(stable=True)]
        count = where.bincount(minlength=parts * conv.out_channels)
        start = torch.cat([torch.zeros(1, dtype=torch.int64), count.cumsum(0)])
        return _Lists(
            start.int(), offset[order].int(), value[order].to(self.dtype), shift.to(self.dtype).contiguous(), parts
        )


@cache
def _compiled(half: bool) -> ctypes.CDLL:
    """The kernel for this machine; an OSError says why it cannot be had."""
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise OSError("there is no C compiler (cc, gcc or clang)")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "reading.so"
        native = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
        flags = ["-O3", native, "-shared", "-fPIC", *(["-DHALF"] if half else [])]
        done = subprocess.run(
            [*compiler.split(), *flags, str(_SOURCE), "-o", str(library)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
            raise OSError(f"{compiler} does not compile {_SOURCE.name}: {said[0] if said else 'no reason given'}")
        found = ctypes.CDLL(str(library))
    found.lanes.restype = ctypes.c_int64
    found.convolve.argtypes = ctypes.POINTER(_Layer), ctypes.c_int64, ctypes.c_int64
    found.convolve.restype = None
    return found
