"""Images as a network needs them: read, resized and cropped, with the right number of channels."""

from __future__ import annotations

import os
import re
import stat
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from io import BufferedIOBase, BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from moon_runtime.network import NetworkError

if TYPE_CHECKING:
    from PIL.Image import Image

    AnyFile = str | os.PathLike[str] | bytes | bytearray | BufferedIOBase
    AnyImage = np.ndarray | Image | AnyFile

MAX_PIXELS = 2**26  # per image
_MAX_FILE_BYTES = 8 * MAX_PIXELS  # 4 channels of 16 bits per pixel
# What Pillow may decode. Others are rare, and some call other programs.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"}  # of files in folders
MAX_SCANS = 100  # of a JPEG file; cameras and programs write 1 to 12, and each costs time for all pixels
# The header of a scan: its marker, its length, and the number of components, which determines the length.
_SCAN = re.compile(rb"\xff\xda\x00(?:\x08\x01|\x0a\x02|\x0c\x03|\x0e\x04)")
_FILES = (str, os.PathLike, bytes, bytearray, BufferedIOBase)
_WITH_ALPHA = ("RGBA", "LA", "PA", "RGBa", "La")
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)


class ImageError(NetworkError):
    """Something that is not an image, or not one that the network can be asked about."""


def read_image(path: AnyFile, where: str | None = None, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Read an image file.

    Args:
        path: A file, an open one, or its bytes, in a format that Pillow reads: PNG, JPEG, BMP, GIF, PPM, TIFF or WebP.
        where: What the image is called in errors; None: its path, or else "the image".
        max_pixels: Larger images are refused before they are decoded.

    Returns:
        The image, upright (EXIF), as RGB: uint8 with the shape (rows, columns, 3). What is transparent becomes white.

    Raises:
        ImageError: If the file is missing or damaged, has more than 8 bits per channel, or is too large.
        ImportError: If Pillow is not installed.
    """
    pillow = _pillow()
    where = where or _name(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images, where our limit is lower, and of odd metadata
            with _opened(path, where) as file, pillow.open(file, formats=FORMATS) as image:
                return _to_array(image, where, max_pixels)
    except ImageError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise ImageError(f"{where}: no such file") from None
    except pillow.UnidentifiedImageError as error:
        raise ImageError(f"{where}: is not an image in a supported format") from error
    except Exception as error:  # decoders raise all kinds of errors if a file is damaged
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ImageError(f"{where}: cannot be read as an image ({reason})") from error


def fit_image(
    image: AnyImage,
    shape: tuple[int, int, int],
    where: str | None = None,
    shorter_side: int | None = None,
    max_pixels: int = MAX_PIXELS,
) -> np.ndarray:
    """An image as a network needs it, (rows, columns, channels).

    It is resized so that it covers the input (bilinear, antialiased), or to a given length of its shorter side, and
    cropped at the centre. Grey becomes RGB by repetition, RGB becomes grey by luminance. A file or a Pillow image with
    transparency is shown on white; an array with a fourth channel is refused.

    Args:
        image: An array (uint8; rows, columns and maybe channels), a Pillow image, or a file: its path, its bytes,
            or open. An array of the input's size is taken as it is.
        shape: Channels, rows and columns of the network's input.
        where: What the image is called in errors; None: its path, or "the image".
        shorter_side: The length of the shorter side before the centre is cropped; None: the image covers the input.
        max_pixels: Images with more pixels, before or after they are resized, are refused.

    Raises:
        ImageError: If it cannot be used; the message says why.
    """
    is_prepared = not is_picture(image)  # an array that has the input's size already
    where = where or _name(image)
    if isinstance(image, _FILES):
        image = read_image(image, where, max_pixels)
    elif _is_pillow(image):
        image = _to_array(image, where, max_pixels)
    pixels = check_pixels(np.asarray(image), where)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim != 3 or 0 in pixels.shape:
        raise ImageError(f"{where}: an image has the shape (rows, columns, channels), not {pixels.shape}")
    channels, rows, columns = shape
    if pixels.shape[2] != channels and (pixels.shape[2], channels) not in {(1, 3), (3, 1)}:
        raise ImageError(f"{where}: has {pixels.shape[2]} channels, the network needs {channels}")
    if pixels.shape[:2] != (rows, columns) or (not is_prepared and (shorter_side or 0) > min(rows, columns)):
        pixels = _resize(pixels, rows, columns, where, shorter_side or 0, max_pixels)
    if pixels.shape[2] == 3 and channels == 1:
        pixels = np.rint(pixels.astype(np.float32) @ _LUMINANCE).astype(np.uint8)[:, :, None]
    return np.broadcast_to(pixels, (rows, columns, channels))


def check_pixels(pixels: np.ndarray, where: str) -> np.ndarray:
    """The same array; an error if it has no bytes, as pixels are not guessed from other numbers."""
    if pixels.dtype != np.uint8:
        raise ImageError(f"{where}: pixels must be uint8 from 0 to 255, not {pixels.dtype}")
    return pixels


def is_picture(image: Any) -> bool:
    """Whether this is a file or a Pillow image, which are resized as the network needs it, and not an array."""
    return isinstance(image, _FILES) or _is_pillow(image)


def _is_pillow(image: Any) -> bool:
    """Whether this is a Pillow image; does not import Pillow."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(image, module.Image)


def _name(image: Any) -> str:
    """What an image without a name is called in errors."""
    return os.fspath(image) if isinstance(image, (str, os.PathLike)) else "the image"


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "image files and images of another size need Pillow; install it with: pip install 'moon-runtime[images]' "
            "(in moon's repository: './runtime[images]')"
        ) from error
    return Image


def _opened(path: AnyFile, where: str) -> AbstractContextManager[Any]:
    """An open file; a path must be that of a regular file, as opening a named pipe could wait forever."""
    if isinstance(path, (bytes, bytearray)):
        return BytesIO(path)
    if isinstance(path, BufferedIOBase):
        return nullcontext(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if stat.S_ISDIR(found.st_mode):
        os.close(descriptor)
        raise ImageError(f"{where}: is a folder; name the images in it")
    if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_FILE_BYTES:
        os.close(descriptor)
        raise ImageError(f"{where}: is not a regular file of at most {_MAX_FILE_BYTES:,} bytes")
    return os.fdopen(descriptor, "rb")


def _to_array(image: Any, where: str, max_pixels: int) -> np.ndarray:
    """A Pillow image as RGB, upright, on white."""
    from PIL import ImageOps

    if kind := _deep(image):
        raise ImageError(f"{where}: has more than 8 bits per channel (mode {kind}); convert it to 8 bits")
    width, height = image.size
    if width * height > max_pixels:
        raise ImageError(f"{where}: is {width}x{height}, more than the {max_pixels:,} pixels allowed")
    is_file = image.format in ("JPEG", "MPO") and image.tile and image.fp is not None  # not decoded yet
    if is_file and _scans(image.fp) > MAX_SCANS:
        raise ImageError(f"{where}: has more than {MAX_SCANS} scans of a JPEG; save it again")
    image = ImageOps.exif_transpose(image)
    if image.mode in _WITH_ALPHA or "transparency" in image.info:
        image = image.convert("RGBA")
        image = _pillow().alpha_composite(_pillow().new("RGBA", image.size, "white"), image)
    return np.asarray(image.convert("RGB"))


def _scans(file: Any) -> int:
    """How many scans a JPEG file has; its position stays the same.

    Headers that libjpeg refuses are not counted. In compressed data they cannot occur, as a zero follows each FF there.
    """
    position, count, rest = file.tell(), 0, b""
    file.seek(0)
    while chunk := file.read(2**20):
        count += sum(1 for _ in _SCAN.finditer(rest + chunk))
        rest = chunk[-4:]  # one byte less than a match, so that none is counted twice
    file.seek(position)
    return count


def _deep(image: Any) -> str | None:
    """The mode of an image with more than 8 bits per channel, or that of its file; None if it has 8 or fewer."""
    if image.mode[0] in "IF":  # converting would cut values off at 255
        return image.mode
    for tile in getattr(image, "tile", ()):  # what is still to be decoded; Pillow would keep the upper 8 bits
        details = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        if found := next((x for x in details if isinstance(x, str) and re.search(r";16[BLN]$", x)), None):
            return found
        if tile[0] in ("ppm", "ppm_plain") and isinstance(details[-1], int) and details[-1] > 255:  # its largest value
            return f"{details[0]};16"
    return None


def _resize(pixels: np.ndarray, rows: int, columns: int, where: str, shorter_side: int, max_pixels: int) -> np.ndarray:
    pillow = _pillow()
    height, width, channels = pixels.shape
    scale = max(rows / height, columns / width, shorter_side / min(height, width))
    new_height, new_width = max(rows, round(height * scale)), max(columns, round(width * scale))
    if max(height * width, new_height * new_width) > max_pixels:
        raise ImageError(f"{where}: is {width}x{height}, too large or too elongated to be resized")
    top, left = (new_height - rows) // 2, (new_width - columns) // 2
    box = (left, top, left + columns, top + rows)
    planes = [pixels] if channels == 3 else [pixels[:, :, i] for i in range(channels)]
    resized = [
        np.asarray(pillow.fromarray(plane).resize((new_width, new_height), pillow.Resampling.BILINEAR).crop(box))
        for plane in planes
    ]
    return resized[0] if channels == 3 else np.stack(resized, axis=2)
