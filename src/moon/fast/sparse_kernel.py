"""Convolution, BatchNorm, residual and ReLU of a sparse layer on a CPU, in one pass over its non-zero weights."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor, nn

from moon.fast.c_library import Layer, load_library
from moon.fast.feature_maps import FeatureMaps

_CACHE = 2**16  # bytes that a part of a layer may access, to stay in the L1 cache
_WEIGHTS = 32  # minimum average number of weights per output in a part, which loads and stores the sums


class _SparseWeights(NamedTuple):
    """The weights of a layer as lists, see sparse_inference.c."""

    start: Tensor
    offset: Tensor
    value: Tensor
    shift: Tensor
    parts: int


class SparseKernel:
    """The compiled kernel with the weights of one model.

    The weights of a layer are converted when it is first computed, so they must not change afterwards.

    Args:
        model: The model whose layers may be computed.
        half: Whether to compute in float16.

    Raises:
        OSError: If the kernel cannot be compiled on this machine.
    """

    def __init__(self, model: nn.Module, half: bool) -> None:
        library = load_library(half)
        if isinstance(library, str):
            raise OSError(library)
        self._library = library
        self.dtype = torch.float16 if half else torch.float32
        self.lanes = self._library.lanes()
        self._modules = set(model.modules())
        self.weights: dict[tuple[nn.Conv2d, nn.BatchNorm2d, torch.Size], _SparseWeights] = {}
        self._free: dict[tuple[int, ...], list[Tensor]] = {}  # memory of deleted feature maps, by shape
        self._threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self._threads)

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown()

    def supports(
        self, conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor | FeatureMaps, residual: Tensor | FeatureMaps | None
    ) -> bool:
        """Whether the kernel supports these modules and inputs."""
        is_usual = (
            {conv, norm} <= self._modules and type(conv) is nn.Conv2d and type(norm) is nn.BatchNorm2d
            and not any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in (conv, norm))
            and not norm.training and norm.running_mean is not None and norm.num_features == conv.out_channels
            and conv.groups == 1 and conv.dilation == (1, 1) and conv.stride[0] == conv.stride[1]
            and conv.padding_mode == "zeros" and conv.padding in ((0, 0), (1, 1))
            and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
        )  # fmt: skip
        if not is_usual or not all(_is_supported(value) for value in (x, residual) if value is not None):
            return False
        rows, columns = self._size(conv, x)
        out = (x.shape[0], conv.out_channels, rows, columns)
        return x.shape[1] == conv.in_channels and min(rows, columns) > 0 and (residual is None or residual.shape == out)

    @staticmethod
    def _size(conv: nn.Conv2d, x: Tensor | FeatureMaps) -> tuple[int, int]:
        """Rows and columns of the output."""
        padding = int(conv.padding[0])
        sizes = zip(x.shape[2:], conv.kernel_size, strict=True)
        rows, columns = ((size + 2 * padding - kernel) // conv.stride[0] + 1 for size, kernel in sizes)
        return rows, columns

    def compute(
        self,
        conv: nn.Conv2d,
        norm: nn.BatchNorm2d,
        x: Tensor | FeatureMaps,
        residual: Tensor | FeatureMaps | None,
        relu: bool,
    ) -> FeatureMaps:
        """norm(conv(x)) + residual, then ReLU if `relu`; `supports` must be true for these arguments."""
        x = self._to_maps(x)
        key = conv, norm, x.values.shape[1:4]
        if key not in self.weights:
            self.weights[key] = self._convert(conv, norm, x)
        weights, corner = self.weights[key], 1 - int(conv.padding[0])
        rows, columns = self._size(conv, x)
        groups = len(x.values)
        out = self._allocate(x.images, conv.out_channels, rows, columns)
        added = None if residual is None else self._to_maps(residual)
        tensors = x.values, None if added is None else added.values, out.values, *weights[:4]
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        sizes = weights.parts, *x.values.shape[1:4], conv.out_channels, rows, columns
        layer = Layer(*pointers, *sizes, conv.stride[0], corner, relu)
        ends = [groups * rows * thread // self._threads for thread in range(self._threads + 1)]
        convolve = self._library.convolve
        jobs = [self._pool.submit(convolve, ctypes.byref(layer), *ends[i : i + 2]) for i in range(self._threads)]
        for job in jobs:
            job.result()
        return out

    def _to_maps(self, x: Tensor | FeatureMaps) -> FeatureMaps:
        if isinstance(x, FeatureMaps):
            return x
        maps, complete = self._allocate(*x.shape), len(x) // self.lanes
        inner = maps.inner
        inner[:complete] = x[: complete * self.lanes].unflatten(0, (complete, self.lanes))
        if rest := len(x) % self.lanes:
            inner[complete, :rest] = x[-rest:]
        return maps

    def _allocate(self, images: int, channels: int, rows: int, columns: int) -> FeatureMaps:
        """Memory for feature maps, with a border of zeros that is never written to."""
        shape = -(-images // self.lanes), rows + 2, channels, columns + 2, self.lanes
        free = self._free.setdefault(shape, [])
        with torch.inference_mode(False):  # code outside of inference mode may write to it later
            values = free.pop() if free else torch.zeros(shape, dtype=self.dtype, device="cpu")
        return FeatureMaps(values, images, free)

    def _convert(self, conv: nn.Conv2d, norm: nn.BatchNorm2d, x: FeatureMaps) -> _SparseWeights:
        """The non-zero weights of a layer, with BatchNorm as a factor and a shift of each output."""
        assert norm.running_mean is not None
        assert norm.running_var is not None
        factor = (norm.running_var.double() + norm.eps).rsqrt()
        factor = factor if norm.weight is None else factor * norm.weight.double()
        bias = -norm.running_mean.double() if conv.bias is None else conv.bias.double() - norm.running_mean.double()
        shift = bias * factor if norm.bias is None else bias * factor + norm.bias.double()
        output, channel, row, column = conv.weight.detach().nonzero(as_tuple=True)
        value = conv.weight.detach()[output, channel, row, column].double() * factor[output]
        _, _, inputs, columns, lanes = x.values.shape
        window = inputs * conv.kernel_size[0] * min(columns, 18)  # vectors that sixteen output pixels depend on
        touched = len(value) * (4 + self.dtype.itemsize) + window * lanes * self.dtype.itemsize
        parts = max(1, min(-(-touched // _CACHE), inputs, len(value) // (_WEIGHTS * conv.out_channels)))
        number = channel * parts // inputs * conv.out_channels + output  # of the list that a weight belongs to
        offset = (row * inputs + channel) * columns + column
        order = offset.argsort()
        order = order[number[order].argsort(stable=True)]
        count = number.bincount(minlength=parts * conv.out_channels)
        start = torch.cat([torch.zeros(1, dtype=torch.int64), count.cumsum(0)])
        return _SparseWeights(
            start.int(), offset[order].int(), value[order].to(self.dtype), shift.to(self.dtype).contiguous(), parts
        )


def _is_supported(x: Tensor | FeatureMaps) -> bool:
    return isinstance(x, FeatureMaps) or (x.dtype == torch.float32 and x.device.type == "cpu" and x.ndim == 4)
