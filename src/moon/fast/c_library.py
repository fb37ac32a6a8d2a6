"""The sparse kernel in C, compiled for this machine when it is first used."""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

_SOURCE = Path(__file__).with_name("sparse_inference.c")


class Layer(ctypes.Structure):
    """The struct `layer` of sparse_inference.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("input", "residual", "out", "start", "offset", "value", "shift")),
        *((name, ctypes.c_int64) for name in ("parts", "in_rows", "inputs", "in_columns")),
        *((name, ctypes.c_int64) for name in ("outputs", "rows", "columns", "stride", "corner", "relu")),
    )


@cache
def load_library(half: bool) -> ctypes.CDLL | str:
    """The compiled kernel, or the reason why there is none; compilation is attempted once per process.

    The reason is a string and not the exception, whose traceback would keep the model alive.

    Args:
        half: Whether to compute in float16.

    Returns:
        The library, or the reason.
    """
    try:
        return compile_library(half)
    except OSError as error:
        return str(error)


def compile_library(half: bool) -> ctypes.CDLL:
    """Compile the kernel for this machine.

    Args:
        half: Whether to compute in float16.

    Returns:
        The library.

    Raises:
        OSError: If there is no C compiler, or if it fails.
    """
    chosen = shlex.split(os.environ.get("CC", ""))
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    compiler = chosen or ([] if found is None else [found])
    if not compiler:
        raise OSError("no C compiler was found (cc, gcc or clang)")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "sparse_inference.so"
        native = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
        flags = ["-O3", native, "-shared", "-fPIC", *(["-DHALF"] if half else [])]
        done = subprocess.run(
            [*compiler, *flags, str(_SOURCE), "-o", str(library)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
            raise OSError(f"{compiler[0]} cannot compile {_SOURCE.name}: {lines[0] if lines else 'no reason given'}")
        kernel = ctypes.CDLL(str(library))
    kernel.lanes.restype = ctypes.c_int64
    kernel.convolve.argtypes = ctypes.POINTER(Layer), ctypes.c_int64, ctypes.c_int64
    kernel.convolve.restype = None
    return kernel
