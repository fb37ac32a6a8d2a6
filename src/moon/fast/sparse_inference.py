"""Reading a sparse network on a CPU: convolutions over the weights that exist, with what follows them in one pass."""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from moon.fast.norm import norm_only, norm_relu

_SOURCE = Path(__file__).with_name("sparse_inference.c")
_CACHE = 2**16  # bytes that a part of a layer may touch: of a first cache
_LIST = 32  # weights of an output in a part, on average, at least: sums are fetched and put back for each
_SPARSE = 0.3  # of the weights: with more, dense products were as fast (docs/LOG.md)

_active: ContextVar[SparseReading | None] = ContextVar("_active", default=None)


def conv_norm_relu(conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """relu(norm(conv(x)) + residual)."""
    reading = _active.get()
    if reading is not None and reading.takes(conv, norm, x, residual):
        return reading.layer(conv, norm, x, residual, cut=True)
    return norm_relu(norm, conv(x), residual)


def conv_norm(conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """norm(conv(x))."""
    reading = _active.get()
    if reading is not None and reading.takes(conv, norm, x, None):
        return reading.layer(conv, norm, x, None, cut=False)
    return norm_only(norm, conv(x))


@contextmanager
def sparse_reading(model: nn.Module, half: bool = False) -> Iterator[bool]:
    """Inside, a sparse network of ours on a CPU is read by its weights that exist; whether it is so is what is given.

    Its weights and statistics must not change meanwhile. Where there is no C compiler a warning says so, and the
    reading is an ordinary one. `half` is float16, faster where the CPU computes in it, and less exact; where it cannot
    be had that is a ValueError.
    """
    why, reading = _obstacle(model), None
    try:
        reading = SparseReading(model, half) if why is None else None
    except OSError as error:
        why = str(error)
        if not half:
            warnings.warn(f"the network is read with dense products, which is slower: {why}", stacklevel=3)
    if half and reading is None:
        raise ValueError(f"it cannot be read in float16: {why}")
    token = _active.set(reading)
    try:
        yield reading is not None
    finally:
        _active.reset(token)
        if reading is not None:
            reading.end()


def _obstacle(model: nn.Module) -> str | None:
    """Why this network is better read with dense products, or None."""
    modules = list(model.modules())
    if not any(vars(type(module)).get("calls_conv_norm", False) for module in modules):
        return "it is none of our residual networks"
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        return "it is not on a CPU"
    if any(module._forward_hooks or module._forward_pre_hooks for module in modules):
        return "somebody else looks at its layers (hooks)"
    layers = [module for module in modules if isinstance(module, nn.Conv2d)]
    exist = sum(int(layer.weight.count_nonzero()) for layer in layers)
    if exist > _SPARSE * sum(layer.weight.numel() for layer in layers):
        return "it is not sparse"
    return None


class Maps:
    """Maps of images as the kernel has them; to torch's functions a tensor (N, C, H, W), made when it is asked for."""

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
        return (
            torch.empty(self.inner.shape, dtype=torch.float32, device="cpu")
            .copy_(self.inner)
            .flatten(0, 1)[: self.images]
        )

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

    def __init__(self, model: nn.Module, half: bool) -> None:
        kernel = _kernel(half)
        if isinstance(kernel, str):
            raise OSError(kernel)
        self._library = kernel
        self.dtype = torch.float16 if half else torch.float32
        self.lanes = self._library.lanes()
        self._modules = set(model.modules())
        self._lists: dict[tuple[nn.Conv2d, nn.BatchNorm2d, torch.Size], _Lists] = {}
        self._spare: dict[tuple[int, ...], list[Tensor]] = {}
        self._threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self._threads)

    def end(self) -> None:
        self._pool.shutdown()

    def takes(
        self, conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor | Maps, residual: Tensor | Maps | None = None
    ) -> bool:
        """Whether the kernel does the same as the modules."""
        is_usual = (
            {conv, norm} <= self._modules and type(conv) is nn.Conv2d and type(norm) is nn.BatchNorm2d
            and not any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in (conv, norm))
            and not norm.training and norm.running_mean is not None and norm.num_features == conv.out_channels
            and conv.groups == 1 and conv.dilation == (1, 1) and conv.stride[0] == conv.stride[1]
            and conv.padding_mode == "zeros" and conv.padding in ((0, 0), (1, 1))
            and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
        )  # fmt: skip
        if not is_usual or not all(_fits(one) for one in (x, residual) if one is not None):
            return False
        rows, columns = self._size(conv, x)
        out = (x.shape[0], conv.out_channels, rows, columns)
        return x.shape[1] == conv.in_channels and min(rows, columns) > 0 and (residual is None or residual.shape == out)

    @staticmethod
    def _size(conv: nn.Conv2d, x: Tensor | Maps) -> tuple[int, int]:
        """Rows and columns of what the layer puts out."""
        padding = int(conv.padding[0])
        sizes = zip(x.shape[2:], conv.kernel_size, strict=True)
        rows, columns = ((size + 2 * padding - kernel) // conv.stride[0] + 1 for size, kernel in sizes)
        return rows, columns

    def layer(
        self, conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor | Maps, residual: Tensor | Maps | None, cut: bool
    ) -> Any:
        """One layer, and what follows it."""
        x = self._laid_out(x)
        key = conv, norm, x.values.shape[1:4]
        if key not in self._lists:
            self._lists[key] = self._listed(conv, norm, x)
        lists, corner = self._lists[key], 1 - int(conv.padding[0])
        rows, columns = self._size(conv, x)
        groups = len(x.values)
        out = self._room(x.images, conv.out_channels, rows, columns)
        more = None if residual is None else self._laid_out(residual)
        tensors = x.values, None if more is None else more.values, out.values, *lists[:4]
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        layer = _Layer(
            *pointers, lists.parts, *x.values.shape[1:4], conv.out_channels, rows, columns, conv.stride[0], corner, cut
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
        with torch.inference_mode(False):  # others may write to it later
            values = spare.pop() if spare else torch.zeros(shape, dtype=self.dtype, device="cpu")
        return Maps(values, images, spare)

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


def _fits(x: Tensor | Maps) -> bool:
    return isinstance(x, Maps) or (x.dtype == torch.float32 and x.device.type == "cpu" and x.ndim == 4)


@cache
def _kernel(half: bool) -> ctypes.CDLL | str:
    """The kernel, or why there is none: it is tried once. Not the error itself, which would keep the model alive."""
    try:
        return _compiled(half)
    except OSError as error:
        return str(error)


def _compiled(half: bool) -> ctypes.CDLL:
    """The kernel for this machine; an OSError says why it cannot be had."""
    named = shlex.split(os.environ.get("CC", ""))
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    compiler = named or ([] if found is None else [found])
    if not compiler:
        raise OSError("there is no C compiler (cc, gcc or clang)")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "reading.so"
        native = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
        flags = ["-O3", native, "-shared", "-fPIC", *(["-DHALF"] if half else [])]
        done = subprocess.run(
            [*compiler, *flags, str(_SOURCE), "-o", str(library)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
            raise OSError(f"{compiler[0]} does not compile {_SOURCE.name}: {said[0] if said else 'no reason given'}")
        kernel = ctypes.CDLL(str(library))
    kernel.lanes.restype = ctypes.c_int64
    kernel.convolve.argtypes = ctypes.POINTER(_Layer), ctypes.c_int64, ctypes.c_int64
    kernel.convolve.restype = None
    return kernel
