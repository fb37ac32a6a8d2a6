"""A network that answers: a class, or "unknown"."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from moon_runtime.answers import Answers, printable
from moon_runtime.images import MAX_PIXELS, ImageError, check_pixels, fit_image, is_picture
from moon_runtime.network import Network, NetworkError

if TYPE_CHECKING:
    from moon_runtime.images import AnyImage


class Classifier:
    """A network with its detector and threshold, from a `.moon` file.

    Args:
        source: The path of the file, or its bytes.
        threads: How many threads compute; results do not depend on it.
        limit: More than 1 for a network that you trust and that needs more memory or time than a file may (`Network`).

    Raises:
        NetworkError: If the file cannot be used, or has no detector.
        FileNotFoundError: If there is no such file.

    Attributes:
        classes: The names of the classes.
        input_shape: Channels, rows and columns of the network's input.
        metadata: All that the file says, such as its provenance.
        detector: The name of the detector.
        accept: The share of images of known classes that the threshold accepts.
        confidence: The confidence of this guarantee; None: it holds on average over calibration sets.
        calibration: The detector's scores of the calibration images.
        thresholds: Images with a lower score are unknown: one number, or one for each class.
    """

    def __init__(self, source: str | os.PathLike[str] | bytes, threads: int = 1, limit: float = 1) -> None:
        self._network = Network(source, threads, limit=limit)
        self.input_shape = self._network.input_shape
        try:
            self._network.predict(np.zeros((0, *self._size()), np.uint8))
        except NetworkError as error:
            where = "" if isinstance(source, bytes) else f"{os.fspath(source)}: "
            raise NetworkError(f"{where}{error} (Network)") from None
        self.metadata: dict[str, Any] = self._network.metadata
        self.classes: list[str] = self.metadata["classes"]
        self.detector: str = self.metadata["detector"]["name"]
        self.accept: float = self.metadata["threshold"]["accept"]
        self.confidence: float | None = self.metadata["threshold"].get("confidence")
        self.calibration: np.ndarray = self._network.tensor("calibration")
        self.thresholds: np.ndarray = self._network.tensor("threshold")
        # An image is resized to this length of its shorter side before the centre is cropped.
        self._shorter_side: int | None = self.metadata["preprocess"].get("shorter_side")

        size = len(source) if isinstance(source, bytes) else os.path.getsize(source)
        self._size_text = f"{size / 1e6:.3g} MB" if size >= 1e6 else f"{size / 1e3:.3g} kB"

    def __repr__(self) -> str:
        count, one = len(self.classes), self.thresholds.size == 1
        names = ", ".join([*map(repr, self.classes[:3]), *(["..."] if count > 3 else [])])
        size = "x".join(map(str, self._size()))
        threshold = f"threshold {self.thresholds.flat[0]:.4g}" if one else "a threshold for each class"
        return (
            f"Classifier({count} class{'' if count == 1 else 'es'} ({names}), input {size}, detector "
            f"{printable(self.detector)}, {threshold} (accepts {100 * self.accept:.4g}% of known images), "
            f"{self._size_text})"
        )

    @property
    def threads(self) -> int:
        """The number of threads."""
        return self._network.threads

    @threads.setter
    def threads(self, threads: int) -> None:
        self._network.threads = threads

    def __call__(self, images: AnyImage | Iterable[AnyImage]) -> Answers:
        """Answer about images. Those of another size are resized to cover the input and cropped at the centre.

        That is how files and Pillow images are prepared; if arrays are resized, there is a warning.

        Args:
            images: A batch, uint8 with the shape (images, rows, columns, channels) or, for a grey network, (images,
                rows, columns); one image: an array, a Pillow image, or a file (its path, its bytes, or open); or a list
                or an iterator of images.

        Raises:
            ImageError: If something is not an image, has the wrong type or number of channels, or is too large.
            ImportError: If Pillow is needed and not installed.
        """
        return Answers(self._network.predict(self._fit(images)), self.classes)

    def probabilities(self, images: AnyImage | Iterable[AnyImage]) -> np.ndarray:
        """The probability of each class, (images, classes): softmax over all outputs, at the fitted temperature.

        Args:
            images: As for a call.
        """
        preprocess = self.metadata["preprocess"]
        mean, std = (np.array(preprocess[key], np.float32)[:, None, None] for key in ("mean", "std"))
        images = (self._fit(images).transpose(0, 3, 1, 2) / np.float32(255) - mean) / std
        logits = self._network(images)["logits"].astype(np.float64) / self.metadata["temperature"]
        with np.errstate(invalid="ignore"):  # infinite logits have no probabilities
            chances = np.exp(logits - logits.max(1, keepdims=True))
        return (chances / chances.sum(1, keepdims=True))[:, : len(self.classes)]

    def prepare(self, image: AnyImage, where: str | None = None, max_pixels: int = MAX_PIXELS) -> np.ndarray:
        """One image as the network needs it.

        Args:
            image: An array, a Pillow image, or a file: its path, its bytes, or open.
            where: What it is called in errors; None: its path, or "the image".
            max_pixels: Larger images are refused before they are decoded.

        Returns:
            Its pixels, uint8 with the shape (rows, columns, channels), resized and cropped.

        Raises:
            ImageError: If it is not an image, has the wrong type or number of channels, or is too large.
        """
        return fit_image(image, self.input_shape, where, self._shorter_side, max_pixels)

    def _size(self) -> tuple[int, int, int]:
        channels, rows, columns = self.input_shape
        return rows, columns, channels

    def _fit(self, images: Any) -> np.ndarray:
        is_one = is_picture(images)
        if isinstance(images, Iterator) and not is_one:
            images = list(images)
        if not is_one and not isinstance(images, (list, tuple)):
            images = check_pixels(np.asarray(images), "images")
            if images.ndim not in (2, 3, 4):
                raise ImageError(f"images: must have the shape (images, rows, columns, channels), not {images.shape}")
            # The last of three sizes is the channels of one image, or the columns of grey images.
            is_one = images.ndim == 2 or (images.ndim == 3 and images.shape[2] <= 4)
            if images.ndim == 3 and not is_one and self.input_shape[0] != 1:
                raise ImageError(
                    f"images: has the shape {images.shape}: channels come last, (rows, columns, channels); for a batch "
                    "of grey images give (images, rows, columns, 1)"
                )
            if images.shape[1:] == self._size():
                return images
        images = [images] if is_one else images
        result = np.empty((len(images), *self._size()), np.uint8)
        for i, image in enumerate(images):
            name = None if is_one or isinstance(image, (str, os.PathLike)) else f"image {i}"
            result[i] = self.prepare(image, name)
        self._warn_of_resizing([np.shape(image) for image in images if not is_picture(image)])
        return result

    def _warn_of_resizing(self, shapes: list[tuple[int, ...]]) -> None:
        """Files are meant to be resized; an array of another size may be a mistake."""
        rows, columns, _ = self._size()
        if others := [shape for shape in shapes if shape[:2] != (rows, columns)]:
            warnings.warn(
                f"arrays are resized to cover {rows} rows and {columns} columns, and cropped at the centre "
                f"({len(others)} of {len(shapes)}; first: {others[0][0]} rows, {others[0][1]} columns); use "
                "prepare(image) to resize them without this warning",
                stacklevel=4,  # the caller of the classifier
            )


def load(path: str | os.PathLike[str] | bytes, threads: int = 1, limit: float = 1) -> Classifier:
    """Read a `.moon` file.

    Args:
        path: The path of the file, or its bytes.
        threads: How many threads compute; results do not depend on it.
        limit: More than 1 for a network that you trust and that needs more memory or time than a file may (`Network`).

    Returns:
        The classifier: `load("digits.moon")(images)` are the answers.
    """
    return Classifier(path, threads, limit)
