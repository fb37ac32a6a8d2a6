"""A safe pickle reader: returns the values in a pickle without executing anything in it.

CIFAR is published as pickles, and unpickling a file can run arbitrary code. Here a small stack machine interprets the
opcodes of numbers, strings, containers and NumPy arrays. Calls are recorded, never executed; those that do not create
a NumPy array or a byte string are rejected.
"""

from __future__ import annotations

import pickletools
import re
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
_MAX_OPCODES = 1_000_000  # the largest pickle of CIFAR has 300,000
_MAX_KEYS = 10_000  # of a dict
_MAX_NAME = 200  # characters of a reference
_DTYPE = re.compile(r"[|<>=]?[biuf][1248]")
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
    count = 0

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
            if (count := count + 1) > _MAX_OPCODES:
                raise PickleError(f"more than {_MAX_OPCODES:,} values")
            if name in _IGNORED:
                continue
            if name == "STOP":
                return _Resolver(len(data))(stack.pop())
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
                stack.append({})
                _set_items(stack[-1], items)
            elif name == "APPEND":
                value = stack.pop()
                stack[-1].append(value)
            elif name == "APPENDS":
                items = pop_to_mark()
                stack[-1].extend(items)
            elif name == "SETITEM":
                value, key = stack.pop(), stack.pop()
                _set_items(stack[-1], [key, value])
            elif name == "SETITEMS":
                items = pop_to_mark()
                _set_items(stack[-1], items)
            elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
                memo[int(argument)] = stack[-1]
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name in ("GET", "BINGET", "LONG_BINGET"):
                stack.append(memo[int(argument)])
            elif name == "GLOBAL":
                stack.append(_global(argument.replace(" ", ".")))
            elif name == "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                if not isinstance(module, str) or not isinstance(attribute, str):
                    raise PickleError("damaged pickle (a reference that is not text)")
                stack.append(_global(f"{module}.{attribute}"))
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
        raise PickleError(f"damaged pickle ({str(error)[:200] or type(error).__name__})") from error
    raise PickleError("damaged pickle (no STOP opcode)")


def _global(name: str) -> _Global:
    if len(name) > _MAX_NAME:
        raise PickleError("damaged pickle (a reference with a long name)")
    return _Global(name)


def _set_items(target: Any, items: list[Any]) -> None:
    """Set items of a dict. Keys that take long to compare or hash are rejected: nested tuples, very many keys."""
    if not isinstance(target, dict) or len(items) % 2 or len(target) + len(items) // 2 > _MAX_KEYS:
        raise PickleError(f"damaged pickle, or a dict of more than {_MAX_KEYS:,} keys")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, (str, bytes, int, float, _Call)):
            raise PickleError(f"contains a dict with a {type(key).__name__} as key")
        target[key] = value


class _Resolver:
    """Replaces recorded calls by the NumPy arrays and byte strings they create; other calls raise a `PickleError`.

    A small pickle can refer to one value very often, so each is replaced once. What the references add up to, and the
    bytes of the strings created, may be a few times the pickle's own size: without sharing they are smaller than it.
    """

    def __init__(self, size: int) -> None:
        self.done: dict[int, Any] = {}  # by identity
        self.counts: dict[int, int] = {}  # values inside a value, by its identity
        self.limit, self.created = 4 * size + 1000, 0

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, (dict, list, tuple, _Call, _Global)):
            return value
        if id(value) not in self.done:
            self.done[id(value)] = self._resolve(value)
        return self.done[id(value)]

    def _resolve(self, value: Any) -> Any:
        if isinstance(value, (dict, list, tuple)):
            inside = [*value, *value.values()] if isinstance(value, dict) else value
            resolved = [self(item) for item in inside]
            self.counts[id(value)] = total = 1 + sum(self.counts.get(id(item), 1) for item in inside)
            if total > self.limit:
                raise PickleError("refers to the same values too often")
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
        if len(shape) > 32:
            raise PickleError("contains an array of more than 32 dimensions")
        content = self(content)
        if isinstance(content, str):  # Python 2 wrote byte strings
            content = self._encoded(content)
        return np.frombuffer(content, kind).reshape(self(shape), order="F" if fortran else "C")
