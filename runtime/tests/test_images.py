"""Images in all the ways that people have them, and things that are no images."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from detectors import THRESHOLD
from files import pack
from moon_runtime import Classifier, ImageError, NetworkError, read_image
from moon_runtime.images import fit_image
from PIL import Image


def model(channels: int = 3, rows: int = 6, columns: int = 6) -> Classifier:
    """The score is the mean of the pixels, from 0 to 255."""
    graph = [
        {"op": "global_avg_pool", "in": [0], "out": 1},
        {"op": "linear", "in": [1], "out": 2, "weight": "w"},
    ]
    tensors = {"w": np.full((1, channels), 255 / channels, "f"), "threshold": np.array([100.0])}
    tensors["calibration"] = np.arange(256.0)
    return Classifier(
        pack(
            graph, tensors, input=[channels, rows, columns], outputs={"features": 1, "logits": 2}, classes=["bright"],
            preprocess={"mean": [0] * channels, "std": [1] * channels}, temperature=1, threshold=THRESHOLD,
            detector={"name": "mean", "program": [{"op": "sum", "in": [0], "out": 2}], "output": 2},
        )
    )  # fmt: skip


def picture(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def scores(answers: Any) -> list[float]:
    return [round(float(score), 3) for score in answers.score]


def test_arrays_of_the_right_size_need_no_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    ask = model()
    images = picture(5, 6, 6, 3)
    expected = [round(float(image.mean()), 3) for image in images]
    assert scores(ask(images)) == pytest.approx(expected, abs=1e-2)
    assert scores(ask(list(images))) == scores(ask(images)) == scores(ask(tuple(images)))
    assert scores(ask(images[0])) == pytest.approx(expected[:1], abs=1e-2)
    assert scores(ask(np.asfortranarray(images))) == scores(ask(images))
    with pytest.raises(ImportError, match=r"need Pillow; install it with: pip install 'moon-runtime\[images\]'"):
        ask(picture(7, 6, 3))
    with pytest.raises(ImportError, match="need Pillow"):
        read_image("a.png")


def test_grey_and_colour() -> None:
    grey, colour = picture(4, 6, 6), picture(4, 6, 6, 3)
    expected = [float(image.mean()) for image in grey]
    for channels in (1, 3):
        for images in (grey[..., None], list(grey), list(grey[..., None])):
            assert scores(model(channels)(images)) == pytest.approx(expected, abs=1e-2)
    assert scores(model(1)(grey)) == pytest.approx(expected, abs=1e-2)
    assert scores(model(1)(grey[0])) == pytest.approx(expected[:1], abs=1e-2)
    luminance = np.rint(colour.astype("f") @ np.array([0.299, 0.587, 0.114], "f"))
    assert scores(model(1)(colour)) == pytest.approx(luminance.mean((1, 2)).tolist(), abs=1e-2)


def test_files_images_and_lists(tmp_path: Path) -> None:
    image = picture(6, 6, 3)
    path = tmp_path / "a.png"
    Image.fromarray(image).save(path)
    ask = model()
    expected = scores(ask(image))
    encoded = path.read_bytes()
    for images in (path, str(path), Image.fromarray(image), [path], [Image.open(path)], encoded, bytearray(encoded),
                   [encoded], tmp_path.glob("*.png"), iter([image])):  # fmt: skip
        assert scores(ask(images)) == expected
    assert scores(ask([path, image, Image.fromarray(image), str(path)])) == expected * 4
    assert np.array_equal(read_image(path), image)


def resized_as_the_training_library_does(image: np.ndarray, size: int) -> np.ndarray:
    height, width = image.shape[:2]
    scale = size / min(width, height)
    target = max(size, round(width * scale)), max(size, round(height * scale))
    resized = Image.fromarray(image).resize(target, Image.Resampling.BILINEAR)
    left, top = (target[0] - size) // 2, (target[1] - size) // 2
    return np.asarray(resized.crop((left, top, left + size, top + size)))


@pytest.mark.parametrize("shape", [(32, 32), (40, 30), (30, 41), (3, 5), (7, 100), (33, 32), (1, 1)])
def test_other_sizes_are_covered_and_cropped(shape: tuple[int, int]) -> None:
    image = picture(*shape, 3)
    expected = resized_as_the_training_library_does(image, 32)
    assert np.array_equal(fit_image(image, (3, 32, 32), "x"), expected)
    grey = np.rint(expected.astype("f") @ np.array([0.299, 0.587, 0.114], "f"))[..., None]
    assert np.array_equal(fit_image(image, (1, 32, 32), "x"), grey)
    grey = resized_as_the_training_library_does(image[..., 0], 32)
    assert np.array_equal(fit_image(image[..., 0], (3, 32, 32), "x"), np.repeat(grey[..., None], 3, 2))
    assert fit_image(image, (3, 20, 50), "x").shape == (20, 50, 3)


def test_the_shorter_side_may_be_longer_than_the_input() -> None:
    image = picture(40, 60, 3)
    expected = resized_as_the_training_library_does(image, 20)[2:18, 2:18]
    assert np.array_equal(fit_image(image, (3, 16, 16), "x", shorter_side=20), expected)


def test_an_array_of_the_right_size_is_taken_as_it_is_but_a_file_is_prepared(tmp_path: Path) -> None:
    image = picture(16, 16, 3)
    for array in (image, memoryview(image)):
        assert np.array_equal(fit_image(array, (3, 16, 16), "x", shorter_side=20), image)
    expected = resized_as_the_training_library_does(image, 20)[2:18, 2:18]
    Image.fromarray(image).save(tmp_path / "a.png")
    with (tmp_path / "a.png").open("rb") as file:
        for given in (tmp_path / "a.png", Image.fromarray(image), file):
            assert np.array_equal(fit_image(given, (3, 16, 16), "x", shorter_side=20), expected)


RESIZED = r"^arrays are resized to cover 6 rows and 6 columns, .* \({}; first: 9 rows, 12 columns\); use prepare"


def test_arrays_of_another_size_are_resized_with_a_warning() -> None:
    images = picture(3, 9, 12, 3)
    with pytest.warns(UserWarning, match=RESIZED.format("3 of 3")) as warned:
        answers = model()(images)
    assert scores(answers) == scores(model()([fit_image(i, (3, 6, 6), "x") for i in images]))
    assert [warning.filename for warning in warned] == [__file__]
    with pytest.warns(UserWarning, match=RESIZED.format("2 of 3")):
        assert len(model()([picture(6, 6, 3), *images[:2], Image.fromarray(images[0])])) == 4
    with pytest.warns(UserWarning, match=RESIZED.format("1 of 1")):
        assert len(model(1)(images[0])) == 1
    with pytest.warns(UserWarning, match=RESIZED.format("5 of 5")):
        assert len(model(1)(picture(5, 9, 12))) == 5


def test_pictures_and_prepared_arrays_are_resized_without_a_warning(tmp_path: Path) -> None:
    image = Image.fromarray(picture(9, 12, 3))
    image.save(tmp_path / "a.png")
    ask = model()
    for given in (image, tmp_path / "a.png", [image], ask.prepare(picture(9, 12, 3)), picture(0, 9, 12, 3)):
        ask(given)


def test_other_kinds_of_files_are_rgb(tmp_path: Path) -> None:
    colour = Image.fromarray(picture(8, 8, 3))
    for mode in ("1", "L", "P", "LA", "RGBA", "CMYK"):
        path = tmp_path / (f"{mode}.tif" if mode == "CMYK" else f"{mode}.png")
        colour.convert(mode).save(path)
        assert np.array_equal(read_image(path), np.asarray(Image.open(path).convert("RGB")))
        assert len(model()(Image.open(path))) == 1


def test_photographs_are_upright(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    exif = Image.Exif()
    exif[0x112] = 6  # rotate by 90 degrees
    Image.fromarray(picture(4, 10, 3)).save(path, exif=exif)
    assert read_image(path).shape == (10, 4, 3)
    assert np.array_equal(read_image(path), np.rot90(np.asarray(Image.open(path)), -1))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 6, 6, 3)), "images: pixels must be uint8 from 0 to 255, not float64"),
        (np.zeros((6, 6), bool), "not bool"),
        ([np.zeros((6, 6, 3))], "image 0: pixels must be uint8"),
        ([picture(6, 6, 3), None], "image 1: pixels must be uint8"),
        (7, "images: pixels must be uint8"),
        (np.zeros(5, np.uint8), r"must have the shape \(images, rows, columns, channels\), not \(5,\)"),
        (picture(6, 6, 4), "the image: has 4 channels, the network needs 3"),
        (picture(2, 6, 6, 5), "image 0: has 5 channels, the network needs 3"),
        (picture(3, 6, 6), r"^images: has the shape \(3, 6, 6\): channels come last, \(rows, columns, channels\); "
                           r"for a batch of grey images give \(images, rows, columns, 1\)$"),
        (picture(5, 6, 6), r"images: has the shape \(5, 6, 6\): channels come last"),  # whatever the number of images
        ([picture(6, 6, 3), picture(2, 6, 6, 3)], "image 1: an image has the shape"),
        (picture(2, 0, 6, 3), "image 0: an image has the shape"),
        (Image.new("I;16", (6, 6)), "more than 8 bits per channel"),
        ([Image.new("F", (6, 6))], "image 0: has more than 8 bits per channel"),
        (np.broadcast_to(np.uint8(0), (2, 9000, 9000, 3)), "image 0: is 9000x9000, too large"),
        ([np.zeros((1, 2**21), np.uint8)], "image 0: is 2097152x1, too large or too elongated"),
        ("missing.png", "missing.png: no such file"),
        (b"hello", "^the image: is not an image in a supported format$"),
        ([picture(6, 6), BytesIO(b"hello")], "^image 1: is not an image in a supported format$"),
    ],
)  # fmt: skip
def test_what_is_no_image_is_a_one_line_error(images: Any, message: str) -> None:
    with pytest.raises(ImageError, match=message) as raised:
        model()(images)
    assert "\n" not in str(raised.value)
    assert isinstance(raised.value, NetworkError)
    assert isinstance(raised.value, ValueError)


def png(width: int, height: int, data: bytes, depth: int = 8, kind: int = 0) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an image in a supported format"),
        (b"\x89PNG\r\n\x1a\n", "is not an image in a supported format"),
        (b"\xff\xd8\xff\xe0" + bytes(100), "is not an image in a supported format"),
        (png(5, 5, zlib.compress(bytes(30)))[:45], "cannot be read as an image"),
        (png(5, 5, b"no zlib"), "cannot be read as an image"),
        (png(9000, 9000, zlib.compress(bytes(10))), "is 9000x9000, more than the 67,108,864 pixels"),
        (png(2**31 - 1, 2**31 - 1, b""), "cannot be read as an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 5\n", "is not an image in a supported format"),
        (b"GIF89a" + bytes(20), "is not an image in a supported format"),
    ],
)
def test_damaged_and_foreign_files(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=message) as raised:
        read_image(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(ImageError, match=message):
        model()([path])


@pytest.mark.parametrize(("name", "peak"), [("tall.png", 100), ("progressive.jpg", 800)])
def test_memory_is_bounded_before_an_image_is_decoded(name: str, peak: int, tmp_path: Path) -> None:
    """A PNG of 1 x 60,000,000 took 2.1 GB, a progressive JPEG of 64 million pixels 1.2 GB."""
    path = tmp_path / name
    if name == "tall.png":
        path.write_bytes(png(1, 60_000_000, zlib.compress(bytes(120_000_000), 1)))
    else:
        Image.new("RGB", (8000, 8000)).save(path, progressive=True, subsampling=0)
    code = (
        f"from moon_runtime.images import fit_image, ImageError\ntry: fit_image({str(path)!r}, (3, 32, 32))\n"
        "except ImageError as error: print(error)\nprint(open('/proc/self/status').read())"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert int(done.stdout.partition("VmHWM:")[2].split()[0]) < 1000 * peak
    refused = "is 1x60000000 and needs 1,560,"
    assert (refused in done.stdout) == (name == "tall.png")


def test_what_is_not_a_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with (tmp_path / "sparse.png").open("wb") as file:
        file.truncate(3 * 2**30)
    for path in (tmp_path / "pipe.png", tmp_path / "sparse.png"):
        with pytest.raises(ImageError, match=r"is not a regular file of at most 939,524,096 bytes"):
            read_image(path)
    with pytest.raises(ImageError, match=r"is a folder; name the images in it"):
        read_image(tmp_path)


@pytest.mark.parametrize(("kind", "channels"), [(2, 3), (4, 2), (6, 4)])
def test_16_bit_colour_is_refused(kind: int, channels: int) -> None:
    content = png(4, 4, zlib.compress(bytes(4 * (1 + 4 * channels * 2))), depth=16, kind=kind)
    with pytest.raises(ImageError, match="the image: has more than 8 bits per channel"):
        read_image(BytesIO(content))
    with pytest.raises(ImageError, match="the image: has more than 8 bits per channel"):
        model()(Image.open(BytesIO(content)))


def test_fewer_bits_are_read() -> None:
    assert read_image(BytesIO(b"P6 1 1 5\n\x05\x00\x05")).tolist() == [[[255, 0, 255]]]
    header = struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 58, 0, 0, 54, 40, 1, 1, 1, 16, 0, 4, 0, 0, 0, 0)
    assert read_image(BytesIO(header + b"\xff\x7f\0\0")).tolist() == [[[255, 255, 255]]]  # 5 bits per channel


def test_transparency_is_shown_on_white(tmp_path: Path) -> None:
    pixels = np.array([[[10, 20, 30, 255], [10, 20, 30, 0], [0, 0, 0, 51]]], np.uint8)
    expected = [[[10, 20, 30], [255, 255, 255], [204, 204, 204]]]
    image = Image.fromarray(pixels)
    image.save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png").tolist() == expected
    assert fit_image(image, (3, 1, 3)).tolist() == expected
    grey = Image.fromarray(np.array([[[7, 255], [7, 0]]], np.uint8), "LA")
    assert fit_image(grey, (3, 1, 2)).tolist() == [[[7] * 3, [255] * 3]]
    palette = Image.new("P", (2, 1))
    palette.putpalette([1, 2, 3, 4, 5, 6])
    palette.putpixel((1, 0), 1)
    for name in ("a.png", "a.gif"):
        palette.save(tmp_path / name, transparency=1)
        assert read_image(tmp_path / name).tolist() == [[[1, 2, 3], [255] * 3]]
    Image.fromarray(pixels[..., :3]).save(tmp_path / "a.png", transparency=(0, 0, 0))
    assert read_image(tmp_path / "a.png").tolist() == [[[10, 20, 30], [10, 20, 30], [255] * 3]]


def test_errors_have_the_name_that_the_caller_gives() -> None:
    for image in (BytesIO(b"hello"), Path("missing.png"), Image.new("F", (6, 6)), picture(6, 6, 4)):
        with pytest.raises(ImageError, match=r"^standard input: "):
            model().prepare(image, "standard input")
