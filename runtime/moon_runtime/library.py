"""The C library, loaded with ctypes. Its header, `moon.h`, explains the functions."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

ERROR_BYTES = 512


def _load() -> ctypes.CDLL:
    found = os.environ.get("MOON_RUNTIME_LIBRARY") or next(iter(sorted(Path(__file__).parent.glob("_core*.so"))), None)
    if found is None:
        raise ImportError("moon_runtime is not compiled; install it with pip")
    library = ctypes.CDLL(str(found))
    text, size, model, number = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    real = ctypes.c_double
    ints, longs = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int64)
    signatures = {
        "moon_load": (model, [text, real, text, size]),
        "moon_load_memory": (model, [text, size, real, text, size]),
        "moon_check_length": (number, [text, text, size]),
        "moon_free": (None, [model]),
        "moon_set_threads": (number, [model, number, text, size]),
        "moon_set_precision": (number, [model, text, text, size]),
        "moon_input_shape": (None, [model, ints]),
        "moon_work": (real, [model]),
        "moon_interrupt": (None, [model]),
        "moon_outputs": (number, [model]),
        "moon_output_name": (text, [model, number]),
        "moon_output_shape": (None, [model, number, ints]),
        "moon_metadata": (text, [model]),
        "moon_instructions": (text, [model]),
        "moon_tensor": (model, [model, text, ctypes.POINTER(text), ints, longs]),
        "moon_run": (number, [model, model, ctypes.c_int64, ctypes.POINTER(model), text, size]),
        "moon_predict": (number, [model, model, ctypes.c_int64, model, text, size]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


library = _load()
