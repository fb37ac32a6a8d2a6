"""Image files that are no ordinary images."""

import ast
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from moon.data import DataError, read_folders, read_list
from moon.data.decoding import FORMATS, MAX_SCANS, decode_rgb
from moon.data.limits import MAX_PIXELS
from moon.data.streams import random_resized_crop

RUNTIME = Path(__file__).parents[2] / "runtime" / "moon_runtime" / "images.py"
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"


def png(width, height, depth, kind, rows, *chunks):
    """A PNG file; `kind` is its colour type."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0))
    more = b"".join(chunk(name, content) for name, content in chunks)
    return b"\x89PNG\r\n\x1a\n" + header + more + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "set" / "cat").mkdir(parents=True)
    Image.new("RGB", (8, 8), (1, 2, 3)).save(tmp_path / "set" / "cat" / "0.png")
    return tmp_path / "set"


def refused_everywhere(folder, name, what):
    """Class folders, lists and streams refuse the image."""
    with pytest.raises(DataError, match=what):
        read_folders(folder, 8)
    (folder / "list.txt").write_text(f"cat/{name} 0\n")
    with pytest.raises(DataError, match=what):
        read_list(folder / "list.txt", size=8)
    with pytest.raises(DataError, match=what):
        random_resized_crop(folder / "cat" / name, 8, 0)


def test_postscript_never_starts_ghostscript(folder, monkeypatch):
    def ghostscript(*_, **__):
        pytest.fail("Ghostscript was started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ghostscript)
    (folder / "cat" / "1.png").write_bytes(EPS)
    refused_everywhere(folder, "1.png", r"1.png:? cannot be read as an image \(no supported format\)")


def test_a_named_pipe_is_refused_at_once(folder):
    os.mkfifo(folder / "pipe.txt")
    with pytest.raises(DataError, match=r"pipe.txt: is a named pipe, socket or device, not a regular file"):
        read_list(folder / "pipe.txt")
    os.mkfifo(folder / "cat" / "1.png")
    refused_everywhere(folder, "1.png", r"cat/1.png: is a named pipe, socket or device, not a regular file")


@pytest.mark.parametrize(("kind", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)], ids=["L", "RGB", "LA", "RGBA"])
def test_16_bits_per_channel_are_refused(folder, kind, channels):
    (folder / "cat" / "1.png").write_bytes(png(8, 8, 16, kind, bytes(8 * (1 + 8 * 2 * channels))))
    refused_everywhere(folder, "1.png", r"1.png:? has more than 8 bits per channel \(mode .*\); convert it to 8 bits")


def test_too_many_pixels_are_refused(folder):
    (folder / "cat" / "1.png").write_bytes(png(2**14, 2**12 + 1, 8, 0, b""))
    refused_everywhere(folder, "1.png", r"1.png:? is 16384x4097, more than the 67,108,864 pixels allowed")
    (folder / "cat" / "1.png").write_bytes(png(2**16, 2**16, 8, 0, b""))  # Pillow's own limit
    refused_everywhere(folder, "1.png", r"1.png:? .*(exceeds limit|pixels allowed)")


def test_a_sparse_file_is_refused(folder):
    with (folder / "cat" / "1.webp").open("wb") as file:
        file.write(b"RIFF\xff\xff\xff\x7fWEBPVP8 ")
        file.truncate(3 * 2**30)
    refused_everywhere(folder, "1.webp", r"1.webp:? has 3,221,225,472 bytes, more than the 536,870,912 allowed")


def test_transparent_pixels_become_white_with_a_message(folder, caplog):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (8, 8, 4), dtype=np.uint8)
    pixels[..., 3] = 255
    Image.fromarray(pixels).save(folder / "cat" / "1.png")  # an alpha channel, but opaque
    assert np.array_equal(read_folders(folder, 8).images[1], pixels[..., :3])
    assert not caplog.messages
    pixels[:4, :, 3] = 0
    Image.fromarray(pixels).save(folder / "cat" / "1.png")
    found = read_folders(folder, 8).images[1]
    assert (found[:4] == 255).all()
    assert np.array_equal(found[4:], pixels[4:, :, :3])
    assert caplog.messages == [f"{folder}: 1 of 2 images are partly transparent; shown on white"]
    (folder / "cat" / "1.png").write_bytes(png(2, 1, 8, 3, b"\0\0\1", (b"PLTE", bytes(6)), (b"tRNS", b"\0\xff")))
    assert np.asarray(decode_rgb(folder / "cat" / "1.png", "x").image).tolist() == [[[255] * 3, [0] * 3]]


def test_a_jpeg_of_very_many_scans_is_refused(tmp_path):
    path = tmp_path / "a.jpg"
    Image.new("RGB", (8, 8)).save(path, progressive=True)
    content = path.read_bytes()
    scan = content[content.rindex(b"\xff\xda") : -2]
    more = MAX_SCANS - content.count(b"\xff\xda")
    path.write_bytes(content[:-2] + more * scan + content[-2:])
    assert decode_rgb(path, "x").image.size == (8, 8)
    path.write_bytes(content[:-2] + (more + 1) * scan + content[-2:])
    with pytest.raises(DataError, match=r"^x: a\.jpg has more than 100 scans of a JPEG; save it again$"):
        decode_rgb(path, "x")


def test_images_are_read_as_moon_predict_reads_them(tmp_path):
    values = {
        node.targets[0].id: node.value
        for node in ast.parse(RUNTIME.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert ast.literal_eval(values["FORMATS"]) == FORMATS
    assert eval(ast.unparse(values["MAX_PIXELS"])) == MAX_PIXELS
    assert ast.literal_eval(values["MAX_SCANS"]) == MAX_SCANS
    runtime = pytest.importorskip("moon_runtime")
    rng = np.random.default_rng(0)
    for mode, channels in (("RGBA", 4), ("LA", 2), ("RGB", 3), ("L", 1)):
        pixels = rng.integers(0, 256, (1500, 900, channels), dtype=np.uint8).squeeze()
        path = tmp_path / f"{mode}.png"
        Image.fromarray(pixels).save(path)
        assert np.array_equal(np.asarray(decode_rgb(path, path, upright=True).image), runtime.read_image(path))
