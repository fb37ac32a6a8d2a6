"""Programs that compute the same network on a CPU: moon-runtime, ONNX Runtime, OpenVINO and PyTorch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from moon.export.reading import read_file
from moon.export.runtime import runtime

Contender = Callable[[NDArray[np.float32]], NDArray[np.float32]]  # from images (N, C, H, W) to logits

OURS, ONNX_RUNTIME, OPENVINO, TORCH = "moon-runtime", "onnxruntime", "openvino", "torch"
_PACKAGES = {
    OURS: ("moon_runtime",),
    ONNX_RUNTIME: ("onnxruntime", "onnx", "onnxscript"),
    OPENVINO: ("openvino", "onnx", "onnxscript"),
}


def make_contenders(
    model: nn.Module, path: Path, batch: int, threads: Iterable[int], precisions: Iterable[str]
) -> tuple[dict[tuple[str, int], Contender], dict[str, str]]:
    """All programs that can be compared here by name and number of threads, and why others are missing, by name.

    `path` is a `.moon` file of the network in float32; `batch` is the number of images that ONNX models are made for.
    """
    made: dict[tuple[str, int], Contender] = {}
    missing: dict[str, str] = {}
    onnx = _onnx(path, batch) if _reason_missing(ONNX_RUNTIME) is None or _reason_missing(OPENVINO) is None else b""
    for count in threads:
        for precision in precisions:
            name = OURS if precision == "float32" else f"{OURS} {precision}"
            try:
                made[name, count] = _moon_runtime(path, count, precision)
            except ValueError as error:  # an older version, or a CPU without this arithmetic
                missing[name] = str(error)
        for name, make in ((ONNX_RUNTIME, _onnx_runtime), (OPENVINO, _openvino)):
            if (reason := _reason_missing(name)) is None:
                made[name, count] = make(onnx, count)
            else:
                missing[name] = reason
        if OPENVINO not in missing:
            if _has_bfloat16():
                made[f"{OPENVINO} bfloat16", count] = _openvino(onnx, count, "bf16")
            else:
                missing[f"{OPENVINO} bfloat16"] = "this CPU has no bfloat16 arithmetic"
        made[TORCH, count] = _torch(model, count)
    return made, missing


def versions() -> dict[str, str]:
    """The versions of the programs that are installed, by the name of their package."""
    found = {}
    for name in (OURS, ONNX_RUNTIME, OPENVINO, "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _reason_missing(name: str) -> str | None:
    """What is not installed, and how to install it; None if nothing is missing."""
    for package in _PACKAGES[name]:
        try:
            __import__(package)
        except ImportError as error:
            if isinstance(error, ModuleNotFoundError) and error.name == package:
                return f"{package} is not installed (pip install {package})"
            return f"{package} cannot be loaded ({error})"
    return None


def _moon_runtime(path: Path, threads: int, precision: str) -> Contender:
    kind = runtime().Network
    options = {} if precision == "float32" else {"precision": precision}
    if not options.keys() <= inspect.signature(kind).parameters.keys():
        raise ValueError("this version of moon-runtime computes in float32 only")
    network = kind(path, threads=threads, **options)
    return lambda images: network(images)["logits"]


def _onnx(path: Path, batch: int) -> bytes:
    """The network alone, from normalised images to logits."""
    from moon.export.content import run_network
    from moon.export.onnx import translated

    description, tensors = read_file(path)
    images = torch.zeros(batch, *description["input"])
    model = translated(
        lambda images: run_network(description, tensors, images)[0], {"images": images}, ["logits"], is_dynamic=False
    )
    return model.SerializeToString()


def _onnx_runtime(onnx: bytes, threads: int) -> Contender:
    import onnxruntime  # pyright: ignore[reportMissingImports]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Its threads otherwise stay busy after a call, while the next contender is timed.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session: Any = onnxruntime.InferenceSession(onnx, options, ["CPUExecutionProvider"])
    return lambda images: session.run(None, {"images": images})[0]


def _openvino(onnx: bytes, threads: int, precision: str = "f32") -> Contender:
    core = _core()
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = core.compile_model(core.read_model(onnx, b""), "CPU", settings)
    request = compiled.create_infer_request()
    return lambda images: request.infer([images])[compiled.output(0)]


@cache
def _core() -> Any:
    # One for the whole process: each changes the stack of signal handlers, and when one of several is gone, Ctrl-C ends
    # in a segmentation fault.
    import openvino  # pyright: ignore[reportMissingImports]

    return openvino.Core()


def _has_bfloat16() -> bool:
    return "BF16" in _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _torch(model: nn.Module, threads: int) -> Contender:
    def compute(images: NDArray[np.float32]) -> NDArray[np.float32]:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        with torch.inference_mode():
            return model(torch.from_numpy(images)).numpy()

    return compute
