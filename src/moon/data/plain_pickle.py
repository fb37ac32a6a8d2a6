"""A safe pickle reader: returns the values in a pickle without executing anything in it.

CIFAR is published as pickles, and unpickling a file can run arbitrary code. Here a small stack machine interprets the
opcodes of numbers, strings, containers and NumPy arrays. Calls are recorded, never executed; those that do not create
a NumPy array or a byte string are rejected.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass
from typing import Any, cast

import numpy as np


class PickleError(ValueError):
    """The pickle is damaged, or contains something that is not plain data."""


@dataclass
class _Global:
    """A reference to a module's attribute, which is never looked up."""

    name: str


@dataclass(eq=False)  # hashable: it can be the key of a dict until it is resolved
class _Call:
    """A function call, which is never executed."""

    function: str
    arguments: tuple
    state: Any = None


_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_IGNORED = {"PROTO", "FRAME"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_VALUES = {
    "INT", "LONG", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8",
}  # fmt: skip


def read(data: bytes) -> Any:
    """Read a pickle of plain data.

    Args:
        data: The pickle, of any protocol up to 4.

    Returns:
        Its value. Byte strings of Python 2 become str with one character per byte.

    Raises:
        PickleError: The pickle is damaged, or contains anything but numbers, strings, containers and NumPy arrays.

    Example:
        >>> import pickle
        >>> from moon.data import plain_pickle
        >>> plain_pickle.read(pickle.dumps({"labels": [3, 1]}, protocol=2))
        {'labels': [3, 1]}
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def pop_to_mark() -> list[Any]:
        at = len(stack) - 1
        while stack[at] is not _MARK:
            at -= 1
        items = stack[at + 1 :]
        del stack[at:]
        return items

    try:
        for opcode, argument, _ in pickletools.genops(data):
            name, argument = opcode.name, cast(Any, argument)
            if name in _IGNORED:
                continue
            if name == "STOP":
                return _Resolver()(stack.pop())
            if name in _VALUES:
                stack.append(argument)
            elif name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            elif name in _EMPTY:
                stack.append(_EMPTY[name]())
            elif name == "MARK":
                stack.append(_MARK)
            elif name in _TUPLES:
                items = stack[-_TUPLES[name] :]
                del stack[-_TUPLES[name] :]
                stack.append(tuple(items))
            elif name == "TUPLE":
                stack.append(tuple(pop_to_mark()))
            elif name == "LIST":
                stack.append(pop_to_mark())
            elif name == "DICT":
                items = pop_to_mark()
                stack.append(dict(zip(items[::2], items[1::2], strict=True)))
            elif name == "APPEND":
                value = stack.pop()
                stack[-1].append(value)
            elif name == "APPENDS":
                items = pop_to_mark()
                stack[-1].extend(items)
            elif name == "SETITEM":
                value, key = stack.pop(), stack.pop()
                stack[-1][key] = value
            elif name == "SETITEMS":
                items = pop_to_mark()
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
                memo[int(argument)] = stack[-1]
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name in ("GET", "BINGET", "LONG_BINGET"):
                stack.append(memo[int(argument)])
            elif name == "GLOBAL":
                stack.append(_Global(argument.replace(" ", ".")))
            elif name == "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                stack.append(_Global(f"{module}.{attribute}"))
            elif name == "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_Call(function.name, arguments))
            elif name == "BUILD":
                state = stack.pop()
                stack[-1].state = state
            else:
                raise PickleError(f"opcode {name} is not plain data")
    except PickleError:
        raise
    except Exception as error:  # a damaged stream can make any of these steps fail
        raise PickleError(f"damaged pickle ({error or type(error).__name__})") from error
    raise PickleError("damaged pickle (no STOP opcode)")


class _Resolver:
    """Replaces recorded calls by the NumPy arrays and byte strings they create; other calls raise a `PickleError`."""

    def __init__(self) -> None:
        self.done: dict[int, Any] = {}  # by identity: a small pickle can refer to one value very often

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, (dict, list, tuple, _Call, _Global)):
            return value
        if id(value) not in self.done:
            self.done[id(value)] = self._resolve(value)
        return self.done[id(value)]

    def _resolve(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self(key): self(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self(item) for item in value)
        if isinstance(value, _Global):
            raise PickleError(f"contains a reference to {value.name}, which is not plain data")
        if value.function == "_codecs.encode":
            text, encoding = value.arguments
            if encoding != "latin1":
                raise PickleError(f"contains a byte string with the encoding {encoding}")
            return text.encode("latin1")
        if value.function in ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"):
            return self._array(*value.state)
        raise PickleError(f"contains a call of {value.function}, which is not plain data")

    def _array(self, version: int, shape: Any, dtype: Any, fortran: bool, content: Any) -> np.ndarray:
        if not (isinstance(dtype, _Call) and dtype.function == "numpy.dtype"):
            raise PickleError("contains an array without a plain dtype")
        kind = np.dtype(self(dtype.arguments[0]))
        if kind.hasobject:
            raise PickleError("contains an array of Python objects")
        if dtype.state is not None:
            kind = kind.newbyteorder(self(dtype.state[1]))
        content = self(content)
        if isinstance(content, str):  # Python 2 wrote byte strings
            content = content.encode("latin1")
        return np.frombuffer(content, kind).reshape(self(shape), order="F" if fortran else "C")
