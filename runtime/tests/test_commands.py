"""What people start: the example in C, and python -m moon_runtime."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "tests" / "kept"
FILE = KEPT / "format1.moon"
EXPECTED = json.loads((KEPT / "format1.json").read_text())
COMPILER = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("images")
    paths = [folder / f"{i}.ppm" for i in range(3)]
    for path, image in zip(paths, EXPECTED["images"], strict=False):
        Image.fromarray(np.array(image, np.uint8)).save(path)
    return paths


@pytest.fixture(scope="module")
def classify(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, compiled as its first lines say, except for optimisation and with warnings as errors."""
    if not COMPILER:
        pytest.skip("there is no C compiler")
    program = tmp_path_factory.mktemp("example") / "classify"
    sources = sorted((ROOT / "src").glob("*.c"))
    subprocess.run(
        [COMPILER, "-O0", "-std=c11", "-Wall", "-Wextra", "-Werror", "-D_POSIX_C_SOURCE=200809L", f"-I{ROOT / 'src'}",
         "-o", program, ROOT / "example" / "classify.c", *sources, "-pthread", "-lm"],
        check=True,
    )  # fmt: skip
    return program


def run(*command: object) -> tuple[int, str, str]:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_example_in_c(classify: Path, images: list[Path], tmp_path: Path) -> None:
    assert run(classify, FILE, images[0]) == (0, "dog (dog with probability 0.496, p-value 0.8065)\n", "")
    assert run(classify, FILE, images[1]) == (0, "unknown (dog with probability 0.348, p-value 0.4839)\n", "")
    header, pixels = images[0].read_bytes().split(b"255\n", 1)
    (tmp_path / "comment.ppm").write_bytes(b"P6 # a\n#b\n 8\t8 # c\n255\n" + pixels)
    assert run(classify, FILE, tmp_path / "comment.ppm")[1].startswith("dog (dog")
    bad, cut = tmp_path / "bad.ppm", "not a binary PPM file with 8 bits per value, or it is cut off"
    for content, message in (
        (b"", cut),
        (b"P5 8 8 255\n" + pixels, cut),
        (b"P6 8 9 255\n" + pixels, "has 8 x 9 pixels, the network needs 8 x 8"),
        (b"P6 8 8 65535\n" + pixels, cut),
        (header, cut),
    ):
        bad.write_bytes(content)
        assert run(classify, FILE, bad) == (1, "", f"{bad}: {message}\n")
    assert run(classify, FILE, "no.ppm") == (1, "", "no.ppm: cannot be read (No such file or directory)\n")
    assert run(classify, images[0], FILE)[::2] == (1, f"{images[0]}: not a .moon file, or it is cut off\n")
    assert run(classify, "no.moon", FILE)[::2] == (1, "no.moon: cannot be read (No such file or directory)\n")
    assert run(classify)[0] == 2


def test_module(images: list[Path]) -> None:
    code, out, err = run(sys.executable, "-m", "moon_runtime", FILE, images[0], images[1])
    assert (code, err) == (0, "2 images: 1 known, 1 unknown\n")
    heading, *lines = out.splitlines()
    assert heading.split() == ["file", "verdict", "class", "probability", "p-value"]
    assert [line.split() for line in lines] == [
        [str(images[0]), "dog", "dog", "0.496", "0.8065"],
        [str(images[1]), "unknown", "dog", "0.348", "0.4839"],
    ]
    code, out, err = run(sys.executable, "-m", "moon_runtime", "--json", FILE, images[0])
    answer = json.loads(out)
    assert answer == {
        "file": str(images[0]), "verdict": "dog", "class": "dog", "is_known": True,
        "probability": pytest.approx(EXPECTED["probability"][0], rel=1e-4), "p_value": EXPECTED["p_value"][0],
        "score": pytest.approx(EXPECTED["score"][0], rel=1e-4),
    }  # fmt: skip


def test_module_says_what_is_wrong(images: list[Path], tmp_path: Path) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    code, out, err = run(sys.executable, "-m", "moon_runtime", FILE, bad, images[0])
    assert code == 1  # but the other image is answered
    assert out.splitlines()[1].split()[:2] == [str(images[0]), "dog"]
    assert [line.removeprefix("python -m moon_runtime: ") for line in err.splitlines()] == [
        f"{bad}: is not an image in a supported format",
        "1 of 2 images could not be read; the others are answered above",
    ]
    for arguments, message in (
        ((images[0], images[0]), "not a .moon file"),
        (("no.moon", bad), "there is no file"),
        ((tmp_path, bad), "is a folder, not a .moon file"),
        ((FILE, tmp_path / "no.png"), "no such file"),
        ((FILE, bad, "--top-k", "0"), "--top-k must be 1 or more, not 0"),
    ):
        code, out, err = run(sys.executable, "-m", "moon_runtime", *arguments)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert message in err
    assert run(sys.executable, "-m", "moon_runtime")[0] == 2


def test_numpy_is_all_that_an_import_needs() -> None:
    code = "import sys, moon_runtime; print(sorted({'PIL', 'torch', 'moon', 'scipy'} & set(sys.modules)))"
    assert run(sys.executable, "-c", code)[1] == "[]\n"
