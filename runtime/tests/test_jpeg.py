"""JPEG files of very many scans, each of which costs time for all pixels."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest
from moon_runtime import ImageError, read_image
from moon_runtime.images import fit_image
from PIL import Image


def jpeg_with_scans(count: int) -> bytes:
    """A progressive JPEG file whose last scan is repeated."""
    Image.new("RGB", (8, 8)).save(stream := BytesIO(), "JPEG", progressive=True)
    content = stream.getvalue()
    scan = content[content.rindex(b"\xff\xda") : -2]
    return content[:-2] + (count - content.count(b"\xff\xda")) * scan + content[-2:]


def test_a_jpeg_of_very_many_scans_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    assert read_image(BytesIO(jpeg_with_scans(100))).shape == (8, 8, 3)
    (tmp_path / "a.jpg").write_bytes(jpeg_with_scans(101))
    for image in (tmp_path / "a.jpg", BytesIO(jpeg_with_scans(101)), Image.open(BytesIO(jpeg_with_scans(101)))):
        with pytest.raises(ImageError, match="has more than 100 scans of a JPEG"):
            fit_image(image, (3, 8, 8))
    decoded = Image.open(BytesIO(jpeg_with_scans(101)))
    decoded.load()
    assert fit_image(decoded, (3, 8, 8)).shape == (8, 8, 3)  # it costs nothing any more
