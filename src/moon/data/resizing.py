"""Convert images in memory to another size and number of channels."""

from __future__ import annotations

import logging

import numpy as np
import torch

from moon.data.dataset import DataSet

_log = logging.getLogger(__name__)
_CHUNK = 1000  # images


def fit_to(dataset: DataSet, height: int, width: int, channels: int) -> DataSet:
    """Convert images to another size and number of channels.

    Grey becomes RGB by repetition, RGB becomes grey by luminance. As in OpenOOD, an image is resized so that it covers
    the target (bilinear, antialiased), then cropped at the centre.

    Args:
        dataset: The data set.
        height: Target height in pixels.
        width: Target width in pixels.
        channels: 1 or 3.

    Returns:
        The converted data set; `dataset` itself if nothing changes.

    Example:
        >>> import numpy as np
        >>> from moon.data import DataSet, fit_to
        >>> grey = DataSet(np.zeros((2, 28, 28, 1), np.uint8), np.array([0, 1]))
        >>> fit_to(grey, 32, 32, 3).images.shape
        (2, 32, 32, 3)
    """
    images = dataset.images
    if images.shape[1:] == (height, width, channels):
        return dataset
    if images.shape[3] == 3 and channels == 1:
        luminance = images.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
        images = np.rint(luminance).astype(np.uint8)[..., None]
    elif images.shape[3] == 1 and channels == 3:
        images = images.repeat(3, axis=3)
    old_height, old_width = images.shape[1:3]
    if (old_height, old_width) != (height, width):
        scale = max(height / old_height, width / old_width)
        size = max(height, round(old_height * scale)), max(width, round(old_width * scale))
        top, left = (size[0] - height) // 2, (size[1] - width) // 2
        chunks = []
        for chunk in torch.from_numpy(images).split(1024):
            x = chunk.permute(0, 3, 1, 2).float()
            x = torch.nn.functional.interpolate(x, size, mode="bilinear", antialias=True)
            x = x[:, :, top : top + height, left : left + width]
            chunks.append(x.round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy())
        images = np.concatenate(chunks)
    return dataset._replace(images=np.ascontiguousarray(images))


def note_grey(dataset: DataSet, where: object) -> None:
    """Log how many images are grey though they are stored as RGB, and which classes only have grey ones.

    A network can tell grey images from others without looking at what they show.

    Args:
        dataset: The data set.
        where: The source of the images, for the message.
    """
    images, labels = dataset.images, dataset.labels
    if images.shape[3] == 1:
        return
    chunks = (images[start : start + _CHUNK] for start in range(0, len(images), _CHUNK))
    grey = np.concatenate([(chunk == chunk[..., :1]).all((1, 2, 3)) for chunk in chunks])
    if grey.all():
        _log.info("%s: all images are grey, stored as RGB; --grey stores one channel", where)
    elif grey.any():
        only_grey = {*labels.tolist()} - {*labels[~grey].tolist()}
        names = ", ".join(name for label, name in enumerate(dataset.classes) if label in only_grey)
        which = f"{grey.sum()} of {len(grey)} images are grey" + (f" (all of {names})" if names else "")
        _log.info("%s: %s, stored as RGB; --grey makes all grey", where, which)
