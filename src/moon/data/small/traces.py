"""Traces of a sensor as a screen shows them; a source is a device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moon.data.small.drawing import as_pixels, canvas, reduced
from moon.data.small.make import Source


def draw(kind: str, source: Source, image: np.random.Generator) -> NDArray[np.uint8]:
    """Draw a signal over time; its device has a scale, a line width, a grid, a baseline, noise and drift."""
    device = source.rng()
    paper, contrast, spacing = device.uniform((0, 90, 12), (60, 190, 30))
    gain, level, noise, wander = device.uniform((0.26, 0.42, 0, 0), (0.42, 0.58, 0.1, 0.12))
    width, lines, is_light = int(device.integers(3, 7)), device.integers(3), device.random() < 0.5
    screen, pen = canvas(32, round(paper))
    for place in np.arange(spacing / 2, screen.width, spacing):
        if lines:
            pen.line((0, place, screen.width, place), round(paper + 0.3 * contrast), 2)
        if lines == 2:
            pen.line((place, 0, place, screen.width), round(paper + 0.3 * contrast), 2)
    time = np.linspace(0, 1, 180)
    values = _signal(kind, time, image) * image.uniform(0.75, 1.1) + noise * image.normal(0, 1, 180)
    values += wander * np.sin(2 * np.pi * (image.uniform(0.3, 1) * time + image.random()))
    y = level + image.uniform(-0.06, 0.06) - gain * values
    pen.line((screen.width * np.stack((time, y), 1)).ravel().tolist(), round(paper + contrast), width, "curve")
    pixels = reduced(screen) + image.normal(0, image.uniform(1, 8), (32, 32, 1))
    return as_pixels(255 - pixels if is_light else pixels)


def _signal(kind: str, time: NDArray, rng: np.random.Generator) -> NDArray:
    """The ideal signal of a kind, from about -1 to 1."""
    start, rate, sign = rng.random(), rng.uniform(2.2, 5), rng.choice((-1, 1))
    turns = rate * time + start  # of a periodic signal
    part = turns % 1
    sine = np.sin(2 * np.pi * turns)
    onset, end = np.sort(rng.uniform(0.15, 0.85, 2)) + np.array((-0.08, 0.08))
    if kind == "peaks":  # as of a heart: a wave, a narrow spike with a dip after it, a wave
        waves = ((0.2, 0.15, 0.04), (0.45, 1.6, 0.02), (0.51, -0.5, 0.02), (0.75, 0.35, 0.06))
        return np.sum([height * np.exp(-(((part - at) / wide) ** 2) / 2) for at, height, wide in waves], 0) - 0.3
    if kind == "square":
        return np.where(part < rng.uniform(0.3, 0.7), 0.9, -0.9)
    if kind == "sawtooth":
        return sign * (2 * part - 1)
    if kind == "damped":
        since = time - rng.uniform(0, 0.35)
        return np.where(since > 0, 1.2 * np.exp(-rng.uniform(3, 6) * since) * np.sin(2 * np.pi * since * 2 * rate), 0)
    if kind == "step":
        rise = 1 - np.exp(-np.maximum(time - rng.uniform(0.2, 0.7), 0) / rng.uniform(0.01, 0.08))
        return sign * (1.6 * rise - 0.8)
    if kind == "chirp":
        return np.sin(2 * np.pi * (start + time + rng.uniform(4, 8) * time[::sign] ** 2 * sign))
    if kind == "bursts":  # of a faster oscillation
        return np.sin(2 * np.pi * 4 * turns) * (np.sin(np.pi * turns * 0.8) ** 2 > 0.5)
    if kind == "drift":
        return sign * (1.8 * time ** rng.uniform(0.7, 2) - 0.9)
    if kind == "missing period":
        first = np.floor(turns[0]) + rng.integers(1, max(2, int(rate)))
        return np.where(np.floor(turns) == first, 0, sine)
    return np.where((time > onset) & (time < end), rng.normal(0, 0.6, len(time)), 0)  # a burst of noise
