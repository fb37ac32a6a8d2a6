"""Decode image files that may be damaged or malicious; `moon predict` reads images by the same rules."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from moon.data.limits import MAX_PIXELS, open_file
from moon.errors import DataError
from moon.suggest import first_line

if TYPE_CHECKING:
    from PIL.Image import Image

# What Pillow may decode. Others are rare, and some start other programs (EPS: Ghostscript).
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
_MAX_FILE_BYTES = 8 * MAX_PIXELS  # 4 channels of 16 bits per pixel
MAX_SCANS = 100  # of a JPEG file; cameras and programs write 1 to 12, and each costs time for all pixels
# The header of a scan: its marker, its length, and the number of components, which determines the length.
_SCAN = re.compile(rb"\xff\xda\x00(?:\x08\x01|\x0a\x02|\x0c\x03|\x0e\x04)")
_WITH_ALPHA = ("RGBA", "LA", "PA", "RGBa", "La")
_REPAIR = "replace it, or remove it"
_BAND_PIXELS = 2**20  # that are put on white at a time


class Decoded(NamedTuple):
    """A decoded image.

    Args:
        image: The image, RGB.
        is_transparent: Whether parts of it were transparent, which are now on white.
    """

    image: Image
    is_transparent: bool


def decode_rgb(path: Path, where: object, *, upright: bool = False) -> Decoded:
    """Decode an image file as RGB. What is transparent becomes white.

    Args:
        path: The file.
        where: The source of the path, for error messages.
        upright: Whether to apply the orientation that the file declares (EXIF).

    Returns:
        The image.

    Raises:
        DataError: The file is missing, damaged, not a regular file or not in one of `FORMATS`, has more than 8 bits per
            channel, or is too large.

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
            if (size := os.fstat(file.fileno()).st_size) > _MAX_FILE_BYTES:
                raise DataError(f"{image_at} has {size:,} bytes, more than the {_MAX_FILE_BYTES:,} allowed")
            with Image.open(file, formats=FORMATS) as image:
                if image.format in ("JPEG", "MPO") and _count_scans(file) > MAX_SCANS:
                    raise DataError(f"{image_at} has more than {MAX_SCANS} scans of a JPEG; save it again")
                return _as_rgb(image, image_at, upright)
    except DataError as error:
        raise error if str(error).startswith(f"{where}: ") else DataError(f"{where}: {error}") from None
    except UnidentifiedImageError:
        raise DataError(f"{image_at} cannot be read as an image (no supported format); {_REPAIR}") from None
    except Exception as error:  # decoders raise all kinds of errors if a file is damaged
        raise DataError(f"{image_at} cannot be read as an image ({first_line(error)}); {_REPAIR}") from error


def _as_rgb(image: Image, where: str, upright: bool) -> Decoded:
    from PIL import ImageOps

    if mode := _deep_mode(image):
        raise DataError(f"{where} has more than 8 bits per channel (mode {mode}); convert it to 8 bits")
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise DataError(f"{where} is {width}x{height}, more than the {MAX_PIXELS:,} pixels allowed")
    if upright:
        image = ImageOps.exif_transpose(image)
    if image.mode in _WITH_ALPHA or "transparency" in image.info:
        with_alpha = image.convert("RGBA")
        if with_alpha.getchannel("A").getextrema() != (255, 255):
            return Decoded(_on_white(with_alpha), True)
    return Decoded(image.convert("RGB"), False)


def _count_scans(file: BinaryIO) -> int:
    """Return how many scans a JPEG file has; its position stays the same.

    Headers that libjpeg refuses are not counted. In compressed data they cannot occur, as a zero follows each FF there.
    """
    position, count, rest = file.tell(), 0, b""
    file.seek(0)
    while chunk := file.read(2**20):
        count += sum(1 for _ in _SCAN.finditer(rest + chunk))
        rest = chunk[-4:]  # one byte less than a match, so that none is counted twice
    file.seek(position)
    return count


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


def _on_white(image: Image) -> Image:
    """Show an image with transparency on white. It is made in bands: three copies of a large image need 800 MB."""
    from PIL import Image

    width, height = image.size
    result = Image.new("RGB", image.size)
    rows = max(1, _BAND_PIXELS // width)
    for top in range(0, height, rows):
        box = (0, top, width, min(top + rows, height))
        band = image.crop(box)
        result.paste(Image.alpha_composite(Image.new("RGBA", band.size, "white"), band).convert("RGB"), box)
    return result
