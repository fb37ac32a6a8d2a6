"""Spectrograms of spoken words by formants; a source is a speaker in a room."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moon.data.small.drawing import as_pixels
from moon.data.small.make import Source

_SIZE, _FRAMES = 32, 64  # of 12 ms; two frames are a pixel
_HERTZ = 700 * np.expm1(np.linspace(np.log1p(80 / 700), np.log1p(7500 / 700), 96))[::-1, None]  # the mel scale
# Three formants in Hz, the levels of voice and breath in dB, the duration in frames. A stop is silence and a burst.
_SOUNDS = {
    "a": [(750, 1250, 2500, 0, -60, 15)], "e": [(450, 1900, 2550, 0, -60, 14)], "i": [(290, 2250, 2950, 0, -60, 14)],
    "o": [(480, 850, 2500, 0, -60, 15)], "u": [(310, 700, 2350, 0, -60, 14)], "m": [(250, 1000, 2200, -12, -60, 10)],
    "n": [(280, 1600, 2600, -12, -60, 10)], "l": [(350, 1100, 2800, -7, -60, 10)],
    "r": [(450, 1350, 1700, -9, -40, 3), (450, 1350, 1700, -30, -40, 2), (450, 1350, 1700, -9, -40, 3)],
    "s": [(4800, 5800, 7000, -60, -8, 14)], "f": [(1800, 4500, 7000, -60, -20, 12)],
    "p": [(500, 1000, 2300, -60, -60, 8), (600, 1000, 2300, -60, -14, 3)],
    "t": [(500, 1700, 2600, -60, -60, 8), (3000, 3900, 5500, -60, -8, 3)],
}  # fmt: skip


def draw(kind: str, source: Source, image: np.random.Generator) -> NDArray[np.uint8]:
    """Move formants and levels from sound to sound, and filter the harmonics of a voice and breath by the formants."""
    speaker = source.rng()
    pitch, tract, pace, echo = speaker.uniform([90, 0.86, 0.8, 0.2], [240, 1.18, 1.15, 0.85])
    tilt, floor, accent = speaker.uniform(4, 9), speaker.uniform(-55, -22), np.exp(speaker.normal(0, 0.07, 3))
    sounds = np.array([sound for letter in kind for sound in _SOUNDS[letter]], float)
    lasting = sounds[:, 5] * pace * np.exp(image.normal(0, 0.22, len(sounds)))
    start = image.uniform(0, max(3, _FRAMES - 3 - lasting.sum()))
    sounds[:, :3] *= accent * np.exp(image.normal(0, 0.07, (len(sounds), 3))) / tract
    sounds = np.pad(sounds[:, :5], ((1, 1), (0, 0)), "edge")
    sounds[[0, -1], 3:] = -60  # silence before and after
    tracks = sounds[np.searchsorted(start + np.cumsum([0, *lasting]), np.arange(-2, _FRAMES + 2))]
    smooth = np.hanning(7)[1:-1] / 3  # the mouth moves from one sound to the next within 60 ms
    *formants, voice, breath = np.stack([np.convolve(track, smooth, "valid") for track in tracks.T])
    envelopes = [
        sum(0.5**i / (1 + ((_HERTZ - f) / (width * (60 + 0.05 * f))) ** 2) for i, f in enumerate(formants))
        for width in (1, 4)
    ]
    tone = pitch * np.exp(np.linspace(0, image.normal(-0.15, 0.15), _FRAMES))
    harmonics = 1 + np.exp(-_HERTZ / 1200) * np.cos(2 * np.pi * _HERTZ / tone)
    voiced = 10 ** (voice / 10) * envelopes[0] ** 1.5 * harmonics * (1 + _HERTZ / 500) ** (-tilt / 6)
    breathed = 10 ** (breath / 10) * envelopes[1] ** 2 * image.exponential(0.3, voiced.shape)
    power = voiced + breathed
    for frame in range(1, _FRAMES):
        power[:, frame] += echo * power[:, frame - 1]
    power = power + 10 ** (floor / 10) * image.exponential(1, power.shape)
    power = power.reshape(_SIZE, 3, _SIZE, 2).mean((1, 3))
    return as_pixels(220 + 4.2 * (10 * np.log10(power[..., None]) + image.normal(0, 3)))
