"""A safe pickle reader: returns the values in a pickle without executing anything in it.

CIFAR is published as pickles, and unpickling a file can run arbitrary code. Here a small stack machine interprets the
opcodes of numbers, strings, containers and NumPy arrays. Calls are recorded, never executed; those that do not create
a NumPy array or a byte string are rejected.
"""

from __future__ import annotations

import pickletools
import re
from dataclasses import dataclass
from typing import Any

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
_MAX_OPCODES = 1_000_000  # the largest pickle of CIFAR has 300,000
_DTYPE = re.compile(r"[|<>=]?[biuf][1248]")
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_IGNORED = {"PROTO", "FRAME"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_COLLECTING = {"TUPLE", "LIST", "DICT", "APPENDS", "SETITEMS"}  # take all values after a mark
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
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data), start=1):
            if count > _MAX_OPCODES:
                raise PickleError(f"more than {_MAX_OPCODES:,} values")
            if opcode.name == "STOP":
                return _Resolver(len(data))(machine.stack.pop())
            machine.execute(opcode.name, argument)
    except PickleError:
        raise
    except Exception as error:  # a damaged stream can make any of these steps fail
        raise PickleError(f"damaged pickle ({str(error)[:200] or type(error).__name__})") from error
    raise PickleError("damaged pickle (no STOP opcode)")


class _Machine:
    """The stack and the memo of a pickle, and what the opcodes of plain data do to them."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def execute(self, name: str, argument: Any) -> None:
        """Execute an opcode; a `PickleError` if it is not one of plain data."""
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MARK":
            stack.append(_MARK)
        elif name in _TUPLES:
            stack.append(tuple(self._pop(-_TUPLES[name])))
        elif name in _COLLECTING:
            self._collect(name, self._pop_to_mark())
        elif name == "APPEND":
            value = stack.pop()
            stack[-1].append(value)
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            _set_items(stack[-1], [key, value])
        elif name not in _IGNORED:
            self._refer(name, argument)

    def _collect(self, name: str, items: list[Any]) -> None:
        """Execute an opcode that takes all values after a mark."""
        match name:
            case "TUPLE":
                self.stack.append(tuple(items))
            case "LIST":
                self.stack.append(items)
            case "DICT":
                self.stack.append({})
                _set_items(self.stack[-1], items)
            case "APPENDS":
                self.stack[-1].extend(items)
            case "SETITEMS":
                _set_items(self.stack[-1], items)

    def _refer(self, name: str, argument: Any) -> None:
        """Execute an opcode that refers to an earlier value or to something outside of the pickle."""
        stack, memo = self.stack, self.memo
        match name:
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                memo[int(argument)] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memo[int(argument)])
            case "GLOBAL":
                stack.append(_Global(argument.replace(" ", ".")))
            case "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                if not isinstance(module, str) or not isinstance(attribute, str):
                    raise PickleError("damaged pickle (a reference that is not text)")
                stack.append(_Global(f"{module}.{attribute}"))
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_Call(function.name, arguments))
            case "BUILD":
                state = stack.pop()
                stack[-1].state = state
            case _:
                raise PickleError(f"opcode {name} is not plain data")

    def _pop_to_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
        return self._pop(at)[1:]

    def _pop(self, start: int) -> list[Any]:
        """Remove and return the values from a position on."""
        items = self.stack[start:]
        del self.stack[start:]
        return items


def _set_items(target: Any, items: list[Any]) -> None:
    """Set items of a dict. Keys that take long to compare or hash, such as nested tuples, are rejected."""
    if not isinstance(target, dict):
        raise PickleError("damaged pickle (items of something that is no dict)")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, (str, bytes, int, float, _Call)):
            raise PickleError(f"contains a dict with a {type(key).__name__} as key")
        target[key] = value


class _Resolver:
    """Replaces recorded calls by the NumPy arrays and byte strings they create; other calls raise a `PickleError`.

    A small pickle can refer to one value very often, so each is replaced once. The bytes of the strings created may be
    a few times the pickle's own size: without sharing they are smaller than it.
    """

    def __init__(self, size: int) -> None:
        self.done: dict[int, Any] = {}  # by identity
        self.limit, self.created = 4 * size + 1000, 0

    def __call__(self, value: Any) -> Any:
        if value is _MARK:
            raise PickleError("damaged pickle (a mark that nothing collects)")
        if not isinstance(value, (dict, list, tuple, _Call, _Global)):
            return value
        if id(value) not in self.done:
            self.done[id(value)] = self._resolve(value)
        return self.done[id(value)]

    def _resolve(self, value: Any) -> Any:
        if isinstance(value, (dict, list, tuple)):
            inside = [*value, *value.values()] if isinstance(value, dict) else value
            resolved = [self(item) for item in inside]
            if isinstance(value, dict):
                return dict(zip(resolved[: len(value)], resolved[len(value) :], strict=True))
            return type(value)(resolved)
        if isinstance(value, _Global):
            raise PickleError(f"contains a reference to {value.name}, which is not plain data")
        if value.function == "_codecs.encode":
            text, encoding = value.arguments
            if encoding != "latin1":
                raise PickleError("contains a byte string with an encoding other than latin1")
            return self._encoded(text)
        if value.function in ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"):
            return self._array(*value.state)
        raise PickleError(f"contains a call of {value.function}, which is not plain data")

    def _encoded(self, text: str) -> bytes:
        self.created += len(text)
        if self.created > self.limit:
            raise PickleError("refers to the same strings too often")
        return text.encode("latin1")

    def _array(self, version: int, shape: Any, dtype: Any, fortran: bool, content: Any) -> np.ndarray:
        if not (isinstance(dtype, _Call) and dtype.function == "numpy.dtype"):
            raise PickleError("contains an array without a plain dtype")
        name = self(dtype.arguments[0])
        if not isinstance(name, str) or not _DTYPE.fullmatch(name):
            raise PickleError("contains an array of a type that is not a number")
        kind = np.dtype(name)
        if dtype.state is not None:
            kind = kind.newbyteorder(self(dtype.state[1]))
        content = self(content)
        if isinstance(content, str):  # Python 2 wrote byte strings
            content = self._encoded(content)
        return np.frombuffer(content, kind).reshape(self(shape), order="F" if fortran else "C")
