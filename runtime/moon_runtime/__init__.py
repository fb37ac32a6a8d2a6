"""Runs sparse networks on a CPU, without PyTorch: a `.moon` file in, answers out.

`Network("digits.moon")(images)["logits"]` are the logits of a batch of normalised float32 images.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np

__version__ = "0.1.0"
__all__ = ["Network", "NetworkError"]

_ERROR_BYTES = 512
_TYPES = {
    "F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1",
    "U64": "u8", "U32": "u4", "U16": "u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip


class NetworkError(ValueError):
    """A file that is not a network that this version can run, or is damaged."""


def _load_library() -> ctypes.CDLL:
    found = os.environ.get("MOON_RUNTIME_LIBRARY") or next(iter(sorted(Path(__file__).parent.glob("_core*.so"))), None)
    if found is None:
        raise ImportError("moon_runtime is not compiled; install it with pip")
    library = ctypes.CDLL(str(found))
    text, size, model = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p
    ints = ctypes.POINTER(ctypes.c_int)
    signatures = {
        "moon_load": (model, [ctypes.c_char_p, text, size]),
        "moon_load_memory": (model, [ctypes.c_char_p, size, text, size]),
        "moon_free": (None, [model]),
        "moon_set_threads": (ctypes.c_int, [model, ctypes.c_int, text, size]),
        "moon_input_shape": (None, [model, ints]),
        "moon_outputs": (ctypes.c_int, [model]),
        "moon_output_name": (text, [model, ctypes.c_int]),
        "moon_output_shape": (None, [model, ctypes.c_int, ints]),
        "moon_metadata": (text, [model]),
        "moon_instructions": (text, [model]),
        "moon_tensor": (model, [model, text, ctypes.POINTER(text), ints, ctypes.POINTER(ctypes.c_int64)]),
        "moon_run": (ctypes.c_int, [model, model, ctypes.c_int64, ctypes.POINTER(model), text, size]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_library = _load_library()


class Network:
    """A network from a `.moon` file.

    Args:
        source: The path of the file, or its bytes.
        threads: How many threads compute; results do not depend on it.

    Raises:
        NetworkError: If the file cannot be used; the message says why.
        FileNotFoundError: If there is no such file.

    Attributes:
        input_shape: Channels, rows and columns of an image.
        output_shapes: The shape of each output by name, such as "logits".
        metadata: What the file says besides the network: class names, preprocessing, thresholds, provenance.
        instructions: The vector instructions in use, such as "avx2".
    """

    def __init__(self, source: str | os.PathLike[str] | bytes, threads: int = 1) -> None:
        self._model = None
        self._lock = threading.Lock()  # one model computes one call at a time
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        if isinstance(source, bytes):
            self._model = _library.moon_load_memory(source, len(source), error, _ERROR_BYTES)
        elif not Path(source).is_file():
            raise FileNotFoundError(f"there is no file {os.fspath(source)}")
        else:
            self._model = _library.moon_load(os.fsencode(source), error, _ERROR_BYTES)
        if not self._model:
            where = "" if isinstance(source, bytes) else f"{os.fspath(source)}: "
            raise NetworkError(where + error.value.decode(errors="replace"))
        shape = (ctypes.c_int * 3)()
        _library.moon_input_shape(self._model, shape)
        self.input_shape: tuple[int, int, int] = (shape[0], shape[1], shape[2])
        self.output_shapes: dict[str, tuple[int, ...]] = {}
        for output in range(_library.moon_outputs(self._model)):
            _library.moon_output_shape(self._model, output, shape)
            name = _library.moon_output_name(self._model, output).decode(errors="replace")
            # A value per channel is a vector, not a 1x1 map.
            self.output_shapes[name] = (shape[0],) if shape[1] == shape[2] == 1 else (shape[0], shape[1], shape[2])
        self.metadata: dict[str, Any] = json.loads(_library.moon_metadata(self._model).decode(errors="replace"))
        self.instructions: str = _library.moon_instructions(self._model).decode()
        self.threads = threads

    @property
    def threads(self) -> int:
        """The number of threads."""
        return self._threads

    @threads.setter
    def threads(self, threads: int) -> None:
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        with self._lock:
            if _library.moon_set_threads(self._model, threads, error, _ERROR_BYTES):
                raise ValueError(error.value.decode())
        self._threads = threads

    def __call__(self, images: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs of a batch of images by name.

        Args:
            images: Normalised images, (images, channels, rows, columns); converted to float32.

        Raises:
            ValueError: If the images do not have the shape that the network needs.
        """
        images = np.ascontiguousarray(images, dtype=np.float32)
        if images.ndim != 4 or images.shape[1:] != self.input_shape:
            raise ValueError(f"images must have the shape (images, {', '.join(map(str, self.input_shape))}), "
                             f"not {images.shape}")  # fmt: skip
        results = {name: np.empty((len(images), *shape), np.float32) for name, shape in self.output_shapes.items()}
        pointers = (ctypes.c_void_p * len(results))(*(array.ctypes.data for array in results.values()))
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        with self._lock:
            if _library.moon_run(self._model, images.ctypes.data, len(images), pointers, error, _ERROR_BYTES):
                raise MemoryError(error.value.decode())
        return results

    def tensor(self, name: str) -> np.ndarray:
        """A copy of a tensor of the file.

        Raises:
            KeyError: If the file has no such tensor, or its type is unknown to NumPy.
        """
        kind, dimensions, shape = ctypes.c_char_p(), ctypes.c_int(), (ctypes.c_int64 * 8)()
        data = _library.moon_tensor(self._model, name.encode(), kind, dimensions, shape)
        type_name = (kind.value or b"").decode()
        if not data or type_name not in _TYPES:
            raise KeyError(f"there is no tensor {name!r} of a known type in the file")
        sizes, dtype = tuple(shape[: dimensions.value]), np.dtype(_TYPES[type_name])
        count = int(np.prod(sizes, dtype=np.int64))
        return np.frombuffer(ctypes.string_at(data, count * dtype.itemsize), dtype).reshape(sizes).copy()

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            _library.moon_free(self._model)
            self._model = None
