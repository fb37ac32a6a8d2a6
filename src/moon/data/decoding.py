"""Decode image files that may be damaged or malicious; `moon predict` reads images by the same rules."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from moon.data.limits import check_bytes, max_bytes, open_file
from moon.errors import DataError
from moon.suggest import first_line

if TYPE_CHECKING:
    from PIL.Image import Image

# What Pillow may decode. Others are rare, and some start other programs (EPS: Ghostscript).
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
# What decoding needs at most for each pixel and row; see moon_runtime.images, which has the same budget.
PIXEL_BYTES = {"JPEG": 12, "MPO": 12, "WEBP": 16}
OTHER_PIXEL_BYTES, ROW_BYTES = 10, 16
_WITH_ALPHA = ("RGBA", "LA", "PA", "RGBa", "La")
_REPAIR = "replace it, or remove it (moon data import --skip-bad leaves it out)"
_ORIENTATION = 0x112  # of EXIF


class Decoded(NamedTuple):
    """A decoded image.

    Args:
        image: The image, RGB.
        is_transparent: Whether parts of it were transparent, which are now on white.
        largest: The largest value, if the image had more than 8 bits per channel; else 0.
    """

    image: Image
    is_transparent: bool
    largest: int = 0


def decode_rgb(path: Path, where: object, *, upright: bool = False, to_8_bit: int = 0) -> Decoded:
    """Decode an image file as RGB. What is transparent becomes white.

    Args:
        path: The file.
        where: The source of the path, for error messages.
        upright: Whether to apply the orientation that the file declares (EXIF).
        to_8_bit: The value that becomes 255 in integer images with more than 8 bits per channel, of which the upper 8
            bits are kept; 0: they are an error.

    Returns:
        The image.

    Raises:
        DataError: The file is missing, damaged, not a regular file or not in one of `FORMATS`, has more than 8 bits per
            channel without `to_8_bit`, or is too large.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from moon.data.decoding import decode_rgb
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("LA", (3, 2), (0, 0)).save(f"{folder}/a.png")
        ...     decode_rgb(Path(folder, "a.png"), "a.png").image.getpixel((0, 0))
        (255, 255, 255)
    """
    from PIL import Image, UnidentifiedImageError

    image_at = f"{where}:" if str(where) == str(path) else f"{where}: {path.name}"
    try:
        with open_file(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images, where our limit is lower, and of odd metadata
            check_bytes(needed := os.fstat(file.fileno()).st_size, max_bytes(), where)
            with Image.open(file, formats=FORMATS) as image:
                width, height = image.size
                needed += height * (width * PIXEL_BYTES.get(image.format or "", OTHER_PIXEL_BYTES) + ROW_BYTES)
                check_bytes(needed, max_bytes(), f"{image_at} {width}x{height}")
                return _as_rgb(image, image_at, upright, to_8_bit)
    except DataError as error:
        raise error if str(error).startswith(f"{where}: ") else DataError(f"{where}: {error}") from None
    except UnidentifiedImageError:
        raise DataError(f"{image_at} cannot be read as an image (no supported format); {_REPAIR}") from None
    except Exception as error:  # decoders raise all kinds of errors if a file is damaged
        raise DataError(f"{image_at} cannot be read as an image ({first_line(error)}); {_REPAIR}") from error


def _as_rgb(image: Image, where: str, upright: bool, to_8_bit: int) -> Decoded:
    from PIL import ImageChops, ImageOps

    mode, largest = _deep_mode(image), 0
    if mode and (not to_8_bit or mode[0] == "F"):
        how = "" if mode[0] == "F" else ", or import it with --to-8-bit 65535"
        raise DataError(f"{where} has more than 8 bits per channel (mode {mode}); convert it to 8 bits{how}")
    image.load()
    if upright and image.getexif().get(_ORIENTATION, 1) != 1:
        image = ImageOps.exif_transpose(image)
    if mode:
        image, largest = _upper_8_bits(image, to_8_bit, f"{where} has several channels (mode {mode})")
    if image.mode in _WITH_ALPHA or "transparency" in image.info:
        if image.mode not in ("RGBA", "LA") or "transparency" in image.info:
            image = image.convert("RGBA")
        alpha = image.getchannel("A")
        if alpha.getextrema() != (255, 255):
            image = image.convert("RGB")
            image.paste((255, 255, 255), mask=ImageChops.invert(alpha))
            return Decoded(image, True, largest)
    return Decoded(image if image.mode == "RGB" else image.convert("RGB"), False, largest)


def _upper_8_bits(image: Image, white: int, where: str) -> tuple[Image, int]:
    """An image with more bits, as one with 8 in which `white` is 255, and its largest value."""
    import numpy as np
    from PIL import Image as pillow

    if image.mode[0] == "I":
        pixels = np.asarray(image).astype(np.int64)
        return pillow.fromarray((pixels * 256 // (white + 1)).clip(0, 255).astype(np.uint8)), int(pixels.max())
    if white != 2**16 - 1:
        raise DataError(f"{where}, of which Pillow only reads the upper 8 of 16 bits; convert it, or use 65535")
    return image, 256 * int(np.asarray(image).max()) + 255


def _deep_mode(image: Image) -> str | None:
    """Return the mode of an image with more than 8 bits per channel, or that of its file; None if it has 8 or fewer."""
    if image.mode[0] in "IF":  # converting would cut values off at 255
        return image.mode
    for tile in getattr(image, "tile", ()):  # what is still to be decoded; Pillow would keep the upper 8 bits
        details = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        if found := next((x for x in details if isinstance(x, str) and re.search(r";16[BLN]$", x)), None):
            return found
        if tile[0] in ("ppm", "ppm_plain") and isinstance(details[-1], int) and details[-1] > 255:  # its largest value
            return f"{details[0]};16"
    return None
