"""Scalograms of rotating machines, over four turns of the shaft; a source is a machine with its sensor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moon.data.small.drawing import as_pixels
from moon.data.small.make import Source

_SIZE, _SAMPLES, _TURNS = 32, 1536, 6  # the first and the last turn are cut off: the filters wrap around
_TIME = np.arange(_SAMPLES) / _SAMPLES * _TURNS  # in turns of the shaft at its nominal speed
_BANDS = np.geomspace(0.6, 100, _SIZE)[::-1, None]  # in multiples of the nominal speed, high ones at the top
_FILTERS = np.exp(-0.5 * (np.log(np.maximum(np.fft.rfftfreq(_SAMPLES, _TURNS / _SAMPLES), 1e-9) / _BANDS) / 0.14) ** 2)


def draw(kind: str, source: Source, image: np.random.Generator) -> NDArray[np.uint8]:
    """Add up what the machine does when healthy and a fault of some severity, and filter it in 32 bands."""
    machine = source.rng()
    resonances, damping = machine.uniform(22, 70, 2), machine.uniform(6, 14)
    outer, inner, teeth, belt = machine.uniform([2.8, 4.6, 13, 0.3], [3.6, 5.8, 20, 0.8])
    usual, floor = machine.uniform([0.1, 0.05, 0.1], [0.5, 0.2, 0.4]), machine.uniform(0.15, 0.5)
    gain = 3 * machine.normal()
    turn = image.uniform(0, 1) + _TIME * image.uniform(0.88, 1.12) * (1 + 0.004 * np.sin(_TIME * image.uniform(0.5, 3)))
    severity, shaft = image.uniform(0.3, 1.5), 1 + np.cos(2 * np.pi * turn)
    hiss = image.normal(size=_SAMPLES)

    def tone(order: float, level: float = 1.0) -> NDArray[np.float64]:
        return level * image.uniform(0.8, 1.2) * np.sin(2 * np.pi * (order * turn + image.uniform()))

    def knocks(per_turn: float, load: NDArray[np.float64] | float = 1.0) -> NDArray[np.float64]:
        """Impulses that excite the resonances."""
        count = np.floor(per_turn * turn + image.uniform())
        hits = np.diff(count, prepend=count[0])
        ring: NDArray[np.float64] = np.exp(-damping * _TIME) * np.sin(2 * np.pi * resonances[:, None] * _TIME).sum(0)
        strength = load * image.uniform(0.7, 1.3, _SAMPLES)
        return np.convolve(hits * strength, ring)[:_SAMPLES]

    faults = {
        "healthy": lambda: 0,
        "imbalance": lambda: tone(1, 2.5),
        "misalignment": lambda: tone(1, 0.7) + tone(2, 2.2) + tone(3, 0.8),
        "outer race": lambda: knocks(outer),
        "inner race": lambda: knocks(inner, shaft / 1.5),
        "gear wear": lambda: tone(teeth, 0.8) * shaft + tone(2 * teeth, 0.5) * shaft,
        "looseness": lambda: sum(tone(order / 2, 1.6 / order**0.5) for order in range(1, 13)),
        "rub": lambda: np.maximum(shaft - 1.5, 0) * (3 * hiss + tone(0.5, 4)) + tone(1 / 3),
        "belt": lambda: tone(belt, 1.5) + tone(2 * belt, 1.8) + tone(4 * belt),
        "cavitation": lambda: np.repeat(image.exponential(0.5, 48) ** 2, 32) * np.gradient(2 * hiss),
    }
    signal = tone(1, usual[0]) + tone(2, usual[1]) + tone(teeth, usual[2]) + floor * image.normal(size=_SAMPLES)
    signal += severity * faults[kind]()
    power = np.abs(np.fft.ifft(np.fft.rfft(signal) * _FILTERS, _SAMPLES)[:, 256:-256]) ** 2
    decibels = 10 * np.log10(power.reshape(_SIZE, _SIZE, -1).mean(2) + 1e-6) + gain + image.normal()
    return as_pixels(255 + 6 * decibels[..., None])
