"""Hostile TOML, JSON and image lists, and folders with links."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from cases import Case, fifo, file, sparse, value_of
from image_cases import PIXELS, picture

ONE = value_of(PIXELS[None], [0])
HOSTILE = "\x1b]0;title\x07\x1b[2J\u202e\r\n"


def toml_and_json_cases() -> list[Case]:
    bad = {
        "50,000 arrays in arrays": ("x = " + "[" * 50_000 + "]" * 50_000, "is nested too deeply"),
        "a number of 10,000 digits": ("x = " + "9" * 10_000, "is not valid TOML"),
        "2 MB": ("#" * 2_000_000, "bytes of memory"),
        "a long string that does not end": ('x = "' + "a" * 500_000, "is not valid TOML"),
        "100,000 quotation marks": ('"' * 99_999, "is not valid TOML"),
        "control characters": (f"x = '{HOSTILE}'", "is not valid TOML"),
        "a null character": ("x = 1\0", "is not valid TOML"),
    }
    found = [
        Case(f"toml: {name}", "toml", file("a.toml", text.encode()), phrase) for name, (text, phrase) in bad.items()
    ]
    found += [
        Case("toml: ordinary", "toml", file("a.toml", b"x = 1"), value="{'x': 1}"),
        Case("toml: not UTF-8", "toml", file("a.toml", b"x = '\xff'"), "is not valid TOML"),
        Case("toml: named pipe", "toml", fifo("a.toml"), "is a named pipe"),
        Case("toml: sparse, 3 GB", "toml", sparse("a.toml", 3 * 10**9), "bytes of memory"),
        Case("json: ordinary", "json", file("a.json", b'{"x": 1}'), value="{'x': 1}"),
        Case("json: 100,000 arrays in arrays", "json", file("a.json", b"[" * 100_000), "is nested too deeply"),
        Case("json: named pipe", "json", fifo("a.json"), "is a named pipe"),
        Case("json: sparse, 3 GB", "json", sparse("a.json", 3 * 10**9), "has more than"),
    ]
    return found


def log_cases() -> list[Case]:
    line = b'{"epoch": 0, "seconds": 1.5}\n'
    bad = {
        "a long line": (file("log.jsonl", b'{"epoch": "' + b"x" * 10**6 + b'"}\n'), "line 1 is damaged"),
        "100,000 arrays in arrays": (file("log.jsonl", b"[" * 100_000 + b"\n" + line), "line 1 is damaged"),
        "a number of 10,000 digits": (file("log.jsonl", b'{"epoch": 1' + b"0" * 10_000 + b"}\n" + line), "line 1"),
        "named pipe": (fifo("log.jsonl"), "is a named pipe"),
        "sparse, 3 GB": (sparse("log.jsonl", 3 * 10**9), "has more than"),
        "sparse, 500 MB": (sparse("log.jsonl", 500 * 10**6, start=line), "has more than"),
    }
    found = [Case(f"log: {name}", "log", write, phrase) for name, (write, phrase) in bad.items()]
    whole = b"".join(b'{"epoch": %d, "seconds": 1.5, "loss": 0.25}\n' % epoch for epoch in range(2))
    value = "[{'epoch': 0, 'seconds': 1.5, 'loss': 0.25}, {'epoch': 1, 'seconds': 1.5, 'loss': 0.25}]"
    return [*found, Case("log: ordinary", "log", file("log.jsonl", whole), value=value)]


def list_cases() -> list[Case]:
    def listed(text: str | bytes, more: Callable[[Path], object] = lambda root: None) -> Callable[[Path], str]:
        def write(root: Path) -> str:
            (root / "images").mkdir()
            picture().save(root / "images" / "a.png")
            more(root)
            file("list.txt", text if isinstance(text, bytes) else text.encode())(root)
            return "list.txt"

        return write

    outside, no_line = "is outside the root", "is not '<path> <label>'"
    bad = {
        "a path outside": ("../outside/secret.png 0", outside),
        "a hidden path outside": ("images/../../outside/secret.png 0", outside),
        "an absolute path": ("/etc/passwd 0", outside),
        "the root's parent": ("images/../.. 0", "list.txt:1"),
        "a null character": ("images/a\0.png 0", "list.txt:1"),
        "a long path": ("a" * 5000 + " 0", "list.txt:1"),
        "no label": ("images/a.png", no_line),
        "a label of 10,000 digits": ("images/a.png " + "9" * 10_000, no_line),
        "a label in other digits": ("images/a.png \u0967", no_line),
        "label -2": ("images/a.png -2", "it must be at least -1"),
        "a folder": ("images 0", "is a folder"),
        "a missing image": ("images/b.png 0", "no such file"),
        "control characters": (HOSTILE, "list.txt:1"),
        "empty": ("", "the list is empty"),
        "five million lines": ("a 0\n" * 5_000_000, "bytes of memory"),
    }
    found = [Case(f"list: {name}", "list", listed(text), phrase) for name, (text, phrase) in bad.items()]

    def link(name: str, target: str) -> Callable[[Path], None]:
        return lambda root: (root / name).symlink_to(target)

    found += [
        Case("list: ordinary", "list", listed("\ufeffimages/a.png 0\r\n"), value=ONE),
        Case("list: not text", "list", listed(b"\xff\xfe"), "is not text"),
        Case("list: a link outside", "list", listed("b.png 0", link("b.png", "../outside/secret.png")), outside),
        Case("list: a folder that links outside", "list", listed("b/secret.png 0", link("b", "../outside")), outside),
        Case("list: a link inside", "list", listed("b.png 0", link("b.png", "images/a.png")), value=ONE),
        Case("list: a loop of links", "list", listed("b.png 0", link("b.png", "b.png")), "list.txt:1"),
        Case(
            "list: an image that is a named pipe",
            "list",
            listed("b.png 0", lambda root: fifo("b.png")(root)),
            "named pipe",
        ),
        Case("list: named pipe", "list", fifo("list.txt"), "is a named pipe"),
        Case("list: sparse, 3 GB", "list", sparse("list.txt", 3 * 10**9), "bytes of memory"),
    ]
    return found


def folder_cases() -> list[Case]:
    def tree(*more: Callable[[Path], object], images: tuple[str, ...] = ("cat/a.png",)) -> Callable[[Path], str]:
        def write(root: Path) -> str:
            for name in images:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                picture().save(root / name)
            for make in more:
                make(root)
            return "."

        return write

    def link(name: str, target: str) -> Callable[[Path], None]:
        return lambda root: (root / name).symlink_to(target)

    def wide(root: Path) -> None:
        picture().resize((60_000, 1)).save(root / "cat" / "b.png")

    link_out, one = "such links are not followed", ONE
    two = value_of(np.stack([PIXELS, PIXELS]), [0, 0])
    both = value_of(np.stack([PIXELS, PIXELS]), [0, 1])
    return [
        Case("folders: ordinary", "folders", tree(), value=one),
        Case(
            "folders: an image links outside", "folders", tree(link("cat/b.png", "../../outside/secret.png")), link_out
        ),
        Case("folders: an absolute link", "folders", tree(link("cat/b.png", "/etc/passwd")), link_out),
        Case("folders: a class links outside", "folders", tree(link("dog", "../outside")), link_out),
        Case("folders: a folder of a class links outside", "folders", tree(link("cat/b", "../../outside")), link_out),
        Case(
            "folders: a split links outside",
            "any",
            tree(link("test", "../outside"), images=("train/cat/a.png",)),
            link_out,
        ),
        Case(
            "folders: a link through a link",
            "folders",
            tree(link("cat/b.png", "c.png"), link("cat/c.png", "/etc/passwd")),
            link_out,
        ),
        Case("folders: a link to the parent", "folders", tree(link("cat/b", "..")), value=one),
        Case("folders: an image links inside", "folders", tree(link("cat/b.png", "a.png")), value=two),
        Case("folders: a class links inside", "folders", tree(link("dog", "cat")), value=both),
        Case("folders: a link to nothing", "folders", tree(link("cat/b.png", "c.png")), "which does not exist"),
        Case("folders: a class links to nothing", "folders", tree(link("dog", "nothing")), "which does not exist"),
        Case("folders: a loop of links", "folders", tree(link("cat/b.png", "b.png")), "cat/b.png: "),
        Case(
            "folders: a named pipe as image", "folders", tree(lambda root: fifo("cat/b.png")(root)), "is a named pipe"
        ),
        Case("folders: a named pipe as class", "folders", tree(lambda root: fifo("dog")(root)), value=one),
        Case(
            "folders: a folder called b.png", "folders", tree(lambda root: (root / "cat" / "b.png").mkdir()), value=one
        ),
        Case(
            "folders: an empty class",
            "folders",
            tree(lambda root: (root / "dog").mkdir()),
            "no images in this class folder",
        ),
        Case("folders: control characters", "folders", tree(images=(f"{HOSTILE}/a.png",)), value=one),
        Case("folders: a name that is not UTF-8", "folders", tree(images=("\udcff/a.png",)), value=one),
        Case("folders: a file in place of classes", "folders", file("cat", b""), "no such folder"),
        Case("folders: an elongated image", "folders", tree(wide), either=True),
        Case("folders: 500 folders deep", "folders", tree(images=("cat/" + "a/" * 500 + "a.png",)), value=one),
    ]


def cases() -> list[Case]:
    return [*toml_and_json_cases(), *log_cases(), *list_cases(), *folder_cases()]
