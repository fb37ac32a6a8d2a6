"""Hostile packed networks (`.moon`), as `moon.export.reading` and moon-runtime read them.

A digest covers the whole file, so that every change must be refused. Files that were changed and sealed with a new
digest must be refused or accepted, without harm.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cases import Case, fifo, file, sparse

KEPT = Path(__file__).parents[2] / "runtime" / "tests" / "kept" / "format1.moon"
HUGE = (2**31, 2**40, 2**62, -1)


def parts(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the data of a file."""
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def sealed(header: dict[str, Any], data: bytes) -> bytes:
    """A file with a right digest."""
    header["__metadata__"]["sha256"] = "0" * 64
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    content = len(text).to_bytes(8, "little") + text + data
    return content.replace(b"0" * 64, hashlib.sha256(content).hexdigest().encode(), 1)


def changed(content: bytes, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> bytes:
    """A file whose header and description were changed, with a right digest."""
    header, data = parts(content)
    description = json.loads(header["__metadata__"]["moon"])
    change(header, description)
    header["__metadata__"]["moon"] = json.dumps(description)
    return sealed(header, data)


def damaged_cases(reader: str, content: bytes) -> list[Case]:
    rng = random.Random(0)
    files = {"empty": b"", "8 bytes": content[:8], "not a network": b"x" * 1000, "doubled": content * 2}
    files |= {f"cut at {at}": content[:at] for at in rng.sample(range(9, len(content)), 8)}
    files |= {f"a declared header of {size} bytes": size.to_bytes(8, "little", signed=size < 0) + content[8:]
              for size in HUGE}  # fmt: skip
    for at in rng.sample(range(len(content)), 24):
        files[f"bit flipped at {at}"] = content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
    return [Case(f"{reader}: {name}", reader, file("a.moon", bad), "") for name, bad in files.items()]


def sealed_cases(reader: str, content: bytes) -> list[Case]:
    name = next(key for key in parts(content)[0] if key != "__metadata__")

    def later(header: dict[str, Any], description: dict[str, Any]) -> None:
        description["format"] = 999

    def offsets(size: int) -> Callable[[dict[str, Any], dict[str, Any]], None]:
        return lambda header, description: header[name].update(data_offsets=[0, size])

    def shape(size: int) -> Callable[[dict[str, Any], dict[str, Any]], None]:
        return lambda header, description: header[name].update(shape=[size, size])

    def deep(header: dict[str, Any], description: dict[str, Any]) -> None:
        value: Any = 0
        for _ in range(500):
            value = [value]
        description["ops"] = value

    found = [Case(f"{reader}: of a later format", reader, file("a.moon", changed(content, later)), "format")]
    found += [Case(f"{reader}: deep description", reader, file("a.moon", changed(content, deep)), "", either=True)]
    for size in HUGE:
        for what, change in (("offsets", offsets(size)), ("shape", shape(size))):
            found.append(Case(f"{reader}: {what} of {size}", reader, file("a.moon", changed(content, change)), ""))
    rng = random.Random(1)
    for number in range(16):
        bad = changed(content, lambda _, description: _set_a_number(description, rng))
        found.append(Case(f"{reader}: changed number {number}", reader, file("a.moon", bad), "", either=True))
    return found


def _set_a_number(value: Any, rng: random.Random) -> None:
    """Replace one of the numbers in nested lists and dicts."""
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key, item in node.items() if isinstance(node, dict) else enumerate(node):
            if isinstance(item, (dict, list)):
                walk(item)
            elif isinstance(item, (int, float)):
                places.append((node, key))

    walk(value)
    node, key = rng.choice(places)
    node[key] = rng.choice((0, -1, 2**31 - 1, 2**31, 2**63, 1e308, 10**30))


def file_kinds(reader: str, content: bytes) -> list[Case]:
    def folder(root: Path) -> str:
        (root / "a.moon").mkdir()
        return "a.moon"

    def link(root: Path) -> str:
        file("b.moon", content)(root)
        (root / "a.moon").symlink_to("b.moon")
        return "a.moon"

    found = [
        Case(f"{reader}: ordinary", reader, file("a.moon", content)),
        Case(f"{reader}: a link to an ordinary one", reader, link),
        Case(f"{reader}: named pipe", reader, fifo("a.moon"), "is a named pipe"),
        Case(f"{reader}: 3 GB behind it", reader, sparse("a.moon", 3 * 10**9, start=content), ""),
        Case(f"{reader}: 3 GB of zeros", reader, sparse("a.moon", 3 * 10**9), ""),
    ]
    # To `moon.load` a folder is that of a run.
    return found + [Case(f"{reader}: folder", reader, folder, "is a folder")] * (reader == "moon file")


def cases() -> list[Case]:
    content = KEPT.read_bytes()
    return [case for reader in ("moon file", "packed network")
            for make in (file_kinds, damaged_cases, sealed_cases) for case in make(reader, content)]  # fmt: skip
