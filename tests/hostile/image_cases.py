"""Hostile image files."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
from cases import Case, damaged, fifo, file, sparse, value_of
from PIL import Image

PIXELS = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
ORDINARY = {"png": "PNG", "jpg": "JPEG", "gif": "GIF", "bmp": "BMP", "ppm": "PPM", "tif": "TIFF", "webp": "WEBP"}
OTHERS = ("ICO", "TGA", "PCX", "SGI", "DDS", "IM", "ICNS", "JPEG2000", "MSP", "XBM", "EPS", "PDF", "BLP")


def picture() -> Image.Image:
    return Image.fromarray(PIXELS)


def saved(form: str, image: Image.Image | None = None, **options: object) -> bytes:
    (image or picture()).save(stream := BytesIO(), form, **options)
    return stream.getvalue()


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width: int, height: int, depth: int, kind: int, rows: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0))
    more = b"".join(chunk(*one) for one in chunks)
    return b"\x89PNG\r\n\x1a\n" + header + more + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def tiff(*tags: tuple[int, int, int, int], data: bytes = b"") -> bytes:
    """A little-endian TIFF file of (tag, type, count, value)."""
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + data


def cases() -> list[Case]:
    not_image = "cannot be read as an image"
    found: list[Case] = []

    def refuse(name: str, suffix: str, content: bytes | Callable[[], bytes], phrase: str = not_image) -> None:
        found.append(Case(f"image: {name}", "image", file(f"a.{suffix}", content), phrase))

    def accept(name: str, suffix: str, content: bytes | Callable[[], bytes], pixels: np.ndarray | None = None) -> None:
        value = None if pixels is None else value_of(pixels, [])
        found.append(Case(f"image: {name}", "image", file(f"a.{suffix}", content), value=value))

    for suffix, form in ORDINARY.items():
        content = saved(form)
        decoded = np.asarray(Image.open(BytesIO(content)).convert("RGB"))
        accept(f"ordinary {form}", suffix, content, decoded)
        refuse(f"half of a {form}", suffix, content[: len(content) // 2])
        for name, changed in damaged(content, 4, seed=len(form)):
            found.append(Case(f"image: {form}, {name}", "image", file(f"a.{suffix}", changed), either=True))
    for form in OTHERS:
        mode = {"MSP": "1", "XBM": "1", "BLP": "P"}.get(form, "RGB")
        try:
            content = saved(form, picture().convert(mode))
        except (OSError, KeyError, ValueError):  # this Pillow cannot write it
            continue
        refuse(f"{form} called .png", "png", content)
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(executed) (w) file closefile showpage\n"
    refuse("a PostScript program called .jpg", "jpg", script)
    refuse(
        "SVG called .png", "png", b'<svg xmlns="http://www.w3.org/2000/svg"><image href="../outside/secret.png"/></svg>'
    )
    refuse("empty", "png", b"")
    refuse("text", "png", b"not an image")
    refuse("zeros", "bmp", bytes(1000))
    for name, kind, channels in (("grey", 0, 1), ("RGB", 2, 3), ("grey and alpha", 4, 2), ("RGBA", 6, 4)):
        rows = bytes(8 * (1 + 16 * channels))
        refuse(f"16-bit {name}", "png", png(8, 8, 16, kind, rows), "has more than 8 bits per channel")
    refuse("16-bit PPM", "ppm", b"P6 2 2 65535\n" + bytes(24), "has more than 8 bits per channel")
    refuse("float TIFF", "tif", saved("TIFF", Image.new("F", (8, 8))), "has more than 8 bits per channel")
    progressive = saved("JPEG", progressive=True)
    accept("progressive JPEG", "jpg", progressive)
    huge = "bytes of memory, more than the 939,524,096 allowed"
    refuse("PNG of 16384 x 8192 pixels", "png", png(16384, 8192, 8, 0, b""), huge)
    refuse("PNG of 1 x 60,000,000 pixels", "png", lambda: png(1, 60_000_000, 8, 0, bytes(120_000_000)), huge)
    large = {"progressive": True, "subsampling": 0}
    accept("64 million progressive pixels", "jpg", lambda: saved("JPEG", Image.new("RGB", (8000, 8000)), **large))
    refuse("PNG of 2^31 - 1 squared", "png", png(2**31 - 1, 2**31 - 1, 8, 0, b""))
    refuse("PNG without pixels", "png", png(0, 0, 8, 0, b""))
    refuse(
        "GIF of 65535 squared",
        "gif",
        b"GIF89a\xff\xff\xff\xff\x80\0\0" + bytes(6) + b",\0\0\0\0\xff\xff\xff\xff\0\2\2L\1\0;",
    )
    refuse("PPM of 10^9 squared", "ppm", b"P6 1000000000 1000000000 255\n")
    refuse("PPM with a long number", "ppm", b"P6 " + b"9" * 100_000 + b" 1 255\n")
    refuse(
        "BMP of 2^31 - 1 squared",
        "bmp",
        struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 58, 0, 0, 54, 40, 2**31 - 1, 2**31 - 1, 1, 24, 0, 4, 0, 0, 0, 0),
    )
    size = [(256, 4, 1, 100_000), (257, 4, 1, 100_000), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 8)]
    refuse("TIFF of 10^5 squared", "tif", tiff(*size))
    refuse("TIFF with a tag of 4 GB", "tif", tiff((256, 4, 2**30 - 1, 8), *size[1:]))
    refuse("TIFF whose directory is itself", "tif", b"II*\0" + struct.pack("<I", 0))
    accept("64 million pixels", "png", png(8192, 8192, 1, 0, bytes(8192 * 1025)))
    accept(
        "64 million transparent pixels",
        "png",
        png(8192, 8192, 1, 3, bytes(8192 * 1025), (b"PLTE", bytes(6)), (b"tRNS", b"\0")),
    )
    accept("more pixels than declared", "png", png(8, 8, 8, 0, bytes(50 * 2**20)), np.zeros((8, 8, 3), np.uint8))
    for name, kind, start in (("text", b"zTXt", b"Comment\0\0"), ("colour profile", b"iCCP", b"ICC\0\0")):

        def bomb(kind: bytes = kind, start: bytes = start) -> bytes:
            return png(8, 8, 8, 0, bytes(72), (kind, start + zlib.compress(bytes(200 * 2**20))))

        found.append(Case(f"image: a {name} of 200 MB", "image", file("a.png", bomb), either=True))
    half = np.dstack([PIXELS, np.where(np.arange(64).reshape(8, 8) < 32, 0, 255).astype(np.uint8)])
    on_white = np.where(half[..., 3:] == 0, 255, PIXELS)
    accept("transparent pixels become white", "png", saved("PNG", Image.fromarray(half)), on_white)
    accept("CMYK", "jpg", saved("JPEG", Image.new("CMYK", (8, 8))))
    accept("damaged EXIF", "jpg", saved("JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff"))
    starts = {"png": saved("PNG")[:8], "webp": b"RIFF\xff\xff\xff\x7fWEBPVP8 ", "tif": b"II*\0\x08\0\0\0"}
    for suffix, start in starts.items():
        write = sparse(f"a.{suffix}", 3 * 10**9, start)
        found.append(Case(f"image: sparse {suffix} of 3 GB", "image", write, huge))

    def link(target: str) -> Callable[[Path], str]:
        return lambda root: os.symlink(target, root / "a.png") or "a.png"

    found += [
        Case("image: named pipe", "image", fifo("a.png"), "is a named pipe"),
        Case("image: folder", "image", lambda root: (root / "a.png").mkdir() or "a.png", "is a folder"),
        Case("image: missing", "image", lambda root: "a.png", "no such file"),
        Case("image: device", "image", link("/dev/zero"), "is a named pipe, socket or device"),
        Case("image: link to itself", "image", link("a.png"), "cannot be opened"),
    ]
    return found
