"""Image files that are no ordinary images."""

import io
import struct
import subprocess
import sys
import tarfile
import zlib

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from moon.data import DataError, decoding, read_folders, read_list
from moon.data.decoding import FORMATS, decode_rgb
from moon.data.limits import max_bytes
from moon.data.streams import random_resized_crop

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


def test_an_image_that_needs_too_much_memory_is_refused(folder):
    (folder / "cat" / "1.png").write_bytes(png(2**14, 2**13, 8, 0, b""))
    refused_everywhere(folder, "1.png", r"1.png:? 16384x8192: needs 1,342,.* more than the 939,524,096 allowed")
    (folder / "cat" / "1.png").write_bytes(png(2**16, 2**16, 8, 0, b""))  # Pillow's own limit
    refused_everywhere(folder, "1.png", r"1.png:? .*exceeds limit")
    with (folder / "cat" / "1.png").open("wb") as file:
        file.truncate(3 * 2**30)
    refused_everywhere(folder, "1.png", r": needs 3,221,225,472 bytes of memory")


@pytest.mark.parametrize("name", ["tall.png", "tall.tar.gz"])
def test_memory_is_bounded_before_anything_is_decoded(tmp_path, name):
    """A PNG of 1 x 60,000,000 took 1.8 GB before it was refused, a member of 700 MB 2.1 GB."""
    path = tmp_path / name
    if name == "tall.png":
        path.write_bytes(png(1, 60_000_000, 8, 0, bytes(120_000_000)))
    else:
        member = tarfile.TarInfo("data_batch_1.bin")
        member.size = 3073 * 227_790
        with tarfile.open(path, "w:gz", compresslevel=1) as archive:
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    code = (
        "from pathlib import Path\nfrom moon.data.image_files import decode_image\nfrom moon import read_cifar\n"
        f"path = Path({str(path)!r})\n"
        "try: decode_image(path, 32, 'x') if path.suffix == '.png' else read_cifar(path, 'train')\n"
        "except ValueError as error: print(error)\nprint(open('/proc/self/status').read())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "bytes of memory, more than the 939,524,096 allowed" in done.stdout
    assert int(done.stdout.partition("VmHWM:")[2].split()[0]) < 200_000


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


def test_images_are_read_as_moon_predict_reads_them(tmp_path):
    runtime = pytest.importorskip("moon_runtime.images")
    assert runtime.FORMATS == FORMATS
    assert max_bytes() == runtime.BYTES_PER_ALLOWED_PIXEL * runtime.MAX_PIXELS
    assert runtime.PIXEL_BYTES == decoding.PIXEL_BYTES
    rng = np.random.default_rng(0)
    for mode, channels in (("RGBA", 4), ("LA", 2), ("RGB", 3), ("L", 1)):
        pixels = rng.integers(0, 256, (1500, 900, channels), dtype=np.uint8).squeeze()
        path = tmp_path / f"{mode}.png"
        Image.fromarray(pixels).save(path)
        assert np.array_equal(np.asarray(decode_rgb(path, path, upright=True).image), runtime.read_image(path))
