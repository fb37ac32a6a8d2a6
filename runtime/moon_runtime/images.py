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
# The byte budget of an image, for each pixel that is allowed: 940 MB by default. The file counts, and for each of the
# image's pixels and rows what decoding needs at most, such as all coefficients of a JPEG and two canvases of a WebP.
BYTES_PER_ALLOWED_PIXEL = 14
PIXEL_BYTES = {"JPEG": 12, "MPO": 12, "WEBP": 16}
OTHER_PIXEL_BYTES, ROW_BYTES = 10, 16
# What Pillow may decode. Others are rare, and some call other programs.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"}  # of files in folders
MAX_SCANS = 100  # of a JPEG file; cameras and programs write 1 to 12, and each costs time for all pixels
# The header of a scan: its marker, its length, and the number of components, which determines the length.
_SCAN = re.compile(rb"\xff\xda\x00(?:\x08\x01|\x0a\x02|\x0c\x03|\x0e\x04)")
_FILES = (str, os.PathLike, bytes, bytearray, BufferedIOBase)
_WITH_ALPHA = ("RGBA", "LA", "PA", "RGBa", "La")
_ORIENTATION = 0x112  # of EXIF
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
    return np.asarray(_open_rgb(path, where or _name(path), max_pixels))


def _open_rgb(path: AnyFile, where: str, max_pixels: int) -> Image:
    pillow = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images, where our limit is lower, and of odd metadata
            with _opened(path, where, max_pixels) as file, pillow.open(file, formats=FORMATS) as image:
                return _to_rgb(image, where, max_pixels)
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
    where = where or _name(image)
    picture: Any = None
    pixels: Any = None
    if is_picture(image):
        picture = _to_rgb(image, where, max_pixels) if _is_pillow(image) else _open_rgb(image, where, max_pixels)
        found = (picture.height, picture.width, 3)
    else:
        pixels = check_pixels(np.asarray(image), where)
        if pixels.ndim == 2:
            pixels = pixels[:, :, None]
        if pixels.ndim != 3 or 0 in pixels.shape:
            raise ImageError(f"{where}: an image has the shape (rows, columns, channels), not {pixels.shape}")
        found = pixels.shape
    channels, rows, columns = shape
    if found[2] != channels and (found[2], channels) not in {(1, 3), (3, 1)}:
        raise ImageError(f"{where}: has {found[2]} channels, the network needs {channels}")
    if found[:2] != (rows, columns) or (picture and (shorter_side or 0) > min(rows, columns)):
        size, box = _target(found[:2], rows, columns, where, shorter_side or 0, max_pixels)
        planes = [picture] if picture else _planes(pixels)
        resized = [np.asarray(plane.resize(size, _pillow().Resampling.BILINEAR).crop(box)) for plane in planes]
        pixels = resized[0] if found[2] == 3 else np.stack(resized, axis=2)
    elif picture:
        pixels = np.asarray(picture)
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


def _opened(path: AnyFile, where: str, max_pixels: int) -> AbstractContextManager[Any]:
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
    if not stat.S_ISREG(found.st_mode) or found.st_size > BYTES_PER_ALLOWED_PIXEL * max_pixels:
        os.close(descriptor)
        raise ImageError(f"{where}: is not a regular file of at most {BYTES_PER_ALLOWED_PIXEL * max_pixels:,} bytes")
    return os.fdopen(descriptor, "rb")


def _to_rgb(image: Any, where: str, max_pixels: int) -> Image:
    """A Pillow image as RGB, upright, on white."""
    from PIL import ImageChops, ImageOps

    if kind := _deep(image):
        raise ImageError(f"{where}: has more than 8 bits per channel (mode {kind}); convert it to 8 bits")
    file = image.fp if getattr(image, "tile", ()) else None  # None: it has been decoded
    _check_size(image, file, where, max_pixels)
    if file is not None and image.format in ("JPEG", "MPO") and _scans(file) > MAX_SCANS:
        raise ImageError(f"{where}: has more than {MAX_SCANS} scans of a JPEG; save it again")
    image.load()
    if image.getexif().get(_ORIENTATION, 1) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode not in _WITH_ALPHA and "transparency" not in image.info:
        return image if image.mode == "RGB" else image.convert("RGB")
    if image.mode not in ("RGBA", "LA") or "transparency" in image.info:
        image = image.convert("RGBA")
    on_white = image.convert("RGB")
    on_white.paste((255, 255, 255), mask=ImageChops.invert(image.getchannel("A")))
    return on_white


def _check_size(image: Any, file: Any, where: str, max_pixels: int) -> None:
    """The byte budget: an error, before anything is decoded, if an image may need more."""
    width, height = image.size
    if width * height > max_pixels:
        raise ImageError(f"{where}: is {width}x{height}, more than the {max_pixels:,} pixels allowed")
    length = 0
    if file is not None:
        position = file.tell()
        length = file.seek(0, os.SEEK_END)
        file.seek(position)
    needed = length + height * (width * PIXEL_BYTES.get(image.format, OTHER_PIXEL_BYTES) + ROW_BYTES)
    if needed > (allowed := BYTES_PER_ALLOWED_PIXEL * max_pixels):
        raise ImageError(
            f"{where}: is {width}x{height} and needs {needed:,} bytes of memory, more than the {allowed:,} allowed; "
            "make it smaller"
        )


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


def _target(
    shape: tuple[int, ...], rows: int, columns: int, where: str, shorter_side: int, max_pixels: int
) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    """The size (width, height) to which an image is resized, and the box that is cropped from it."""
    height, width = shape
    scale = max(rows / height, columns / width, shorter_side / min(height, width))
    new_height, new_width = max(rows, round(height * scale)), max(columns, round(width * scale))
    if max(height * width, new_height * new_width) > max_pixels:
        raise ImageError(f"{where}: is {width}x{height}, too large or too elongated to be resized")
    top, left = (new_height - rows) // 2, (new_width - columns) // 2
    return (new_width, new_height), (left, top, left + columns, top + rows)


def _planes(pixels: np.ndarray) -> list[Image]:
    """An array as Pillow images: RGB, or one for each channel."""
    planes = [pixels] if pixels.shape[2] == 3 else [pixels[:, :, i] for i in range(pixels.shape[2])]
    return [_pillow().fromarray(plane) for plane in planes]
