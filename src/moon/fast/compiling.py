"""Compile kernels several at a time before the first step that launches them."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor


@dataclass
class _DryRun:
    """A context in which Triton compiles asynchronously, and the kernels that are being compiled, by name."""

    context: Context = field(default_factory=copy_context)
    kernels: dict[str, list[Any]] = field(default_factory=dict)


_active: _DryRun | None = None  # not a ContextVar: autograd calls the backward pass in a thread of its own


def is_dry_run() -> bool:
    """Whether a `dry_run` is active."""
    return _active is not None


@contextmanager
def dry_run() -> Iterator[None]:
    """Context in which kernels are compiled in parallel, and neither launched nor waited for; at its end all are ready.

    Run a training step in it, and each kernel that the step needs is compiled, whatever the model and the objective.
    Convolutions and BatchNorm layers on flat buffers return zeros meanwhile, so the results are meaningless.
    """
    import triton

    global _active
    _ensure_cache()
    device = torch.cuda.current_device() if torch.cuda.is_available() else None
    initializer = None if device is None else partial(torch.cuda.set_device, device)
    with ThreadPoolExecutor(_cores(), initializer=initializer) as pool:
        try:
            # A kernel that cannot be compiled fails again, with a message, when it is launched.
            with _one_parser(), triton.AsyncCompileMode(pool, ignore_errors=True):
                _active = run = _DryRun()
                yield
        finally:
            _active = None
        # Variants of a kernel share a launcher, which a C compiler makes: one variant of each kernel comes first.
        list(pool.map(_load, [variants[0] for variants in run.kernels.values()]))
        list(pool.map(_load, [variant for variants in run.kernels.values() for variant in variants[1:]]))


@contextmanager
def _one_parser() -> Iterator[None]:
    """Context in which one thread at a time parses the source of a kernel.

    If several do, Python 3.11 may raise `SystemError: AST constructor recursion depth mismatch`.
    """
    from triton.runtime.jit import JITFunction

    parse, lock = JITFunction.parse, Lock()

    def parse_alone(self: Any) -> Any:
        with lock:
            return parse(self)

    JITFunction.parse = parse_alone
    try:
        yield
    finally:
        JITFunction.parse = parse


def _ensure_cache() -> None:
    """If Triton's cache cannot be written, use a temporary folder and say so: Triton itself would only fail."""
    from triton import knobs

    folder = Path(knobs.cache.dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return
    except OSError:
        pass
    os.environ["TRITON_CACHE_DIR"] = temporary = tempfile.mkdtemp(prefix="moon-kernels-")
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    warnings.warn(
        f"{folder} is not writable, so kernels are compiled again in each process; set TRITON_CACHE_DIR to a folder "
        "that is",
        stacklevel=4,
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compile_kernel(kernel: Any, grid: tuple[int, ...], *values: Any, **options: Any) -> None:
    """Start to compile a kernel for these arguments, in a `dry_run`."""
    assert _active is not None
    compiled = _active.context.copy().run(kernel.warmup, *values, grid=grid, **options)
    variants = _active.kernels.setdefault(kernel.__name__, [])
    if not any(compiled is other for other in variants):
        variants.append(compiled)


def _load(kernel: Any) -> None:
    """Load a compiled kernel and its launcher, as the first launch would do; errors are left to that."""
    with suppress(Exception):
        if hasattr(kernel, "result"):  # compiled asynchronously
            kernel = kernel.result()
        kernel.run  # noqa: B018


def new_like(x: Tensor) -> Tensor:
    """Memory for the result of a kernel, like x: zeros in a dry run, in which it is not written."""
    return torch.zeros_like(x) if is_dry_run() else torch.empty_like(x)


def convolution(x: Tensor, weight: Tensor, *arguments: Any) -> Tensor:
    """aten.convolution; zeros in a dry run, because cuDNN may not measure its kernels while the CPU is busy."""
    if not is_dry_run():
        return torch.ops.aten.convolution(x, weight, *arguments)
    shape = torch.ops.aten.convolution(x.to("meta"), weight.to("meta"), *arguments).shape
    is_last = x.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if is_last else torch.contiguous_format
    return torch.zeros(shape, dtype=x.dtype, device=x.device).contiguous(memory_format=layout)


def convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """aten.convolution_backward; zeros in a dry run."""
    if not is_dry_run():
        return torch.ops.aten.convolution_backward(grad, x, weight, *arguments)
    return torch.zeros_like(x), torch.zeros_like(weight)


@contextmanager
def kernel_search(allowed: bool) -> Iterator[None]:
    """Context in which cuDNN measures which of its kernels is the fastest only if this is allowed and enabled."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before and allowed
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
