"""A network from a `.moon` file: normalised floats in, outputs by name."""

from __future__ import annotations

import ctypes
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from moon_runtime.library import ERROR_BYTES, library

_TYPES = {
    "F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1",
    "U64": "u8", "U32": "u4", "U16": "u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip
_ANSWER = np.dtype(
    [("label", "i4"), ("probability", "f4"), ("score", "f8"), ("p_value", "f8"), ("is_known", "i4")], align=True
)  # moon_answer of moon.h
_NOT_FINITE = -2  # of moon_run
_LONG = 1e9  # multiply-adds: 5 to 100 milliseconds; starting a thread takes 0.1


class NetworkError(ValueError):
    """A file that is not a network that this version can run, or is damaged."""


def check_length(path: str | os.PathLike[str]) -> None:
    """Compare the length of a file with what its header declares, so that a huge one is not read for nothing.

    Raises:
        NetworkError: If it has another length, no such header, or is not a regular file.
    """
    error = ctypes.create_string_buffer(ERROR_BYTES)
    if library.moon_check_length(os.fsencode(path), error, ERROR_BYTES):
        raise NetworkError(error.value.decode(errors="replace"))


class Network:
    """A network from a `.moon` file.

    Args:
        source: The path of the file, or its bytes.
        threads: How many threads compute; results do not depend on it.
        precision: "float32", or "float16", which is faster and less precise, and which not every CPU can compute with.
        limit: More than 1 for a network that you trust and that needs more memory or time than a file may: 2 GB and 32
            bytes for each byte of the file, and 10^12 operations for an image. Both are multiplied by this number.

    Raises:
        ValueError: If this CPU cannot compute in float16.
        NetworkError: If the file cannot be used, or needs more than the limit; the message says why.
        FileNotFoundError: If there is no such file.

    Attributes:
        input_shape: Channels, rows and columns of an image.
        output_shapes: The shape of each output by name, such as "logits".
        metadata: What the file says besides the network: class names, preprocessing, detector, provenance.
        instructions: The vector instructions in use, such as "avx2".
    """

    def __init__(
        self, source: str | os.PathLike[str] | bytes, threads: int = 1, precision: str = "float32", limit: float = 1
    ) -> None:
        self._model = None
        self._lock = threading.Lock()  # one model computes one call at a time
        error = ctypes.create_string_buffer(ERROR_BYTES)
        if isinstance(source, bytes):
            self._model = library.moon_load_memory(source, len(source), limit, error, ERROR_BYTES)
        elif Path(source).is_dir():
            raise IsADirectoryError(f"{os.fspath(source)} is a folder, not a .moon file; pack a run first (moon pack)")
        elif not Path(source).is_file():
            raise FileNotFoundError(f"there is no file {os.fspath(source)}")
        else:
            self._model = library.moon_load(os.fsencode(source), limit, error, ERROR_BYTES)
        if not self._model:
            where = "" if isinstance(source, bytes) else f"{os.fspath(source)}: "
            raise NetworkError(where + error.value.decode(errors="replace"))
        shape = (ctypes.c_int * 3)()
        library.moon_input_shape(self._model, shape)
        self.input_shape: tuple[int, int, int] = (shape[0], shape[1], shape[2])
        self.output_shapes: dict[str, tuple[int, ...]] = {}
        for output in range(library.moon_outputs(self._model)):
            library.moon_output_shape(self._model, output, shape)
            name = library.moon_output_name(self._model, output).decode(errors="replace")
            # A value per channel is a vector, not a 1x1 map.
            self.output_shapes[name] = (shape[0],) if shape[1] == shape[2] == 1 else (shape[0], shape[1], shape[2])
        self.metadata: dict[str, Any] = json.loads(library.moon_metadata(self._model).decode(errors="replace"))
        self.instructions: str = library.moon_instructions(self._model).decode()
        if library.moon_set_precision(self._model, precision.encode(), error, ERROR_BYTES):
            raise ValueError(error.value.decode())
        self._work: float = library.moon_work(self._model)
        self.threads = threads

    @property
    def threads(self) -> int:
        """The number of threads."""
        return self._threads

    @threads.setter
    def threads(self, threads: int) -> None:
        error = ctypes.create_string_buffer(ERROR_BYTES)
        with self._lock:
            if library.moon_set_threads(self._model, threads, error, ERROR_BYTES):
                raise ValueError(error.value.decode())
        self._threads = threads

    def __call__(self, images: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs of a batch of images by name.

        Args:
            images: Normalised images, (images, channels, rows, columns); floats, which are converted to float32.

        Raises:
            ValueError: If the images do not have the shape that the network needs, or are not finite floats.
        """
        images = np.asarray(images)
        if images.dtype.kind != "f":
            raise ValueError(f"images must be normalised floats, not {images.dtype}; pixels are for Classifier")
        images = np.ascontiguousarray(images, dtype=np.float32)
        if images.ndim != 4 or images.shape[1:] != self.input_shape:
            raise ValueError(f"images must have the shape (images, {', '.join(map(str, self.input_shape))}), "
                             f"not {images.shape}")  # fmt: skip
        results = {name: np.empty((len(images), *shape), np.float32) for name, shape in self.output_shapes.items()}

        def run(error: ctypes.Array[ctypes.c_char]) -> int:
            pointers = (ctypes.c_void_p * len(results))(*(array.ctypes.data for array in results.values()))
            return library.moon_run(self._model, images.ctypes.data, len(images), pointers, error, ERROR_BYTES)

        code, message = self._compute(run, len(images))
        if code:
            raise (ValueError if code == _NOT_FINITE else MemoryError)(message)
        return results

    def _compute(self, function: Callable[[ctypes.Array[ctypes.c_char]], int], images: int) -> tuple[int, str]:
        """Call the library. In Python's main thread only short calls, as its signal handlers wait until they return."""
        error = ctypes.create_string_buffer(ERROR_BYTES)
        if images * self._work < _LONG or threading.current_thread() is not threading.main_thread():
            with self._lock:
                return function(error), error.value.decode(errors="replace")
        code, is_done = -1, threading.Event()

        def call() -> None:
            nonlocal code
            try:
                with self._lock:
                    code = function(error)
            finally:
                is_done.set()

        threading.Thread(target=call, name="moon-runtime", daemon=True).start()
        try:
            is_done.wait()
        except BaseException:  # of a signal handler, such as KeyboardInterrupt
            while not is_done.wait(0.01):
                library.moon_interrupt(self._model)
            raise
        return code, error.value.decode(errors="replace")

    def predict(self, pixels: np.ndarray) -> np.ndarray:
        """The answers for a batch of images, as a structured array; `Classifier` is easier to use.

        Args:
            pixels: Images of the network's size, uint8, (images, rows, columns, channels).

        Raises:
            NetworkError: If the file has no detector and threshold.
        """
        channels, rows, columns = self.input_shape
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1:] != (rows, columns, channels):
            raise ValueError(f"pixels must be uint8 with the shape (images, {rows}, {columns}, {channels}), "
                             f"not {pixels.dtype} with {pixels.shape}")  # fmt: skip
        pixels = np.ascontiguousarray(pixels)
        answers = np.zeros(len(pixels), _ANSWER)

        def predict(error: ctypes.Array[ctypes.c_char]) -> int:
            addresses = pixels.ctypes.data, len(pixels), answers.ctypes.data
            return library.moon_predict(self._model, *addresses, error, ERROR_BYTES)

        code, message = self._compute(predict, len(pixels))
        if code:
            raise NetworkError(message)
        return answers

    def tensor(self, name: str) -> np.ndarray:
        """A copy of a tensor of the file.

        Raises:
            KeyError: If the file has no such tensor, or its type is unknown to NumPy.
        """
        kind, dimensions, shape = ctypes.c_char_p(), ctypes.c_int(), (ctypes.c_int64 * 8)()
        data = library.moon_tensor(self._model, name.encode(), kind, dimensions, shape)
        type_name = (kind.value or b"").decode()
        if not data or type_name not in _TYPES:
            raise KeyError(f"there is no tensor {name!r} of a known type in the file")
        sizes, dtype = tuple(shape[: dimensions.value]), np.dtype(_TYPES[type_name])
        count = int(np.prod(sizes, dtype=np.int64))
        return np.frombuffer(ctypes.string_at(data, count * dtype.itemsize), dtype).reshape(sizes).copy()

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            library.moon_free(self._model)
            self._model = None
