"""What a packed network does with images of no class: shares, and a verdict in words."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import floor
from typing import Any

import numpy as np

from moon.data import AnySet, Benchmark, DataSet
from moon.data.classes import enumerated
from moon.deploy.measure import evenly
from moon.deploy.packed import PackedNetwork, pixels_of
from moon.deploy.probes import PROBES, make_probes

_log = logging.getLogger(__name__)
_ENOUGH = 0.5  # of the images of each far set, and of each family of probes


def measure_rejection(
    packed: PackedNetwork, benchmark: Benchmark, known: AnySet, measured: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Measure on probes what a packed network rejects, and judge it together with what was measured on unknown sets.

    Args:
        packed: The network, with its threshold.
        benchmark: The benchmark; it says which unknown sets are near and far.
        known: Known images, whose pixels are shuffled.
        measured: What `measure` returned, if anything.

    Returns:
        The share of each family of `probes` that is rejected, the `verdict` in words, and `is_reliable`: whether at
        least half of the images of every far set and family are rejected. If not, there is a warning.
    """
    probes = make_probes(benchmark.input_shape, np.concatenate([*pixels_of(evenly(known, PROBES), benchmark)]))
    pixels = np.concatenate([*probes.values()])
    is_known = packed.answer(DataSet(pixels, np.zeros(len(pixels), np.int64)), benchmark)["is_known"]
    found = dict(zip(probes, 1 - is_known.reshape(len(probes), -1).mean(1), strict=True))
    near, far = (
        {name: measured[name]["rejected"] for name in names if name in measured}
        for names in (benchmark.near, benchmark.far)
    )
    failed = [name for name, share in (found | far).items() if share < _ENOUGH]
    if failed:
        accepted = [f"{1 - share:.0%} of {name}" for name, share in (found | far).items() if name in failed]
        _log.warning(
            'the packed network accepts %s, images of no class, as known, so "unknown" is not reliable; what may help: '
            "training with a few hundred images of anything else (--preset small-outliers, or --objective "
            "outlier-exposure, with --outliers SET), another detector (--detector), a larger network (--net)",
            enumerated(accepted)
        )  # fmt: skip
    shares = {name: round(float(share), 4) for name, share in found.items()}
    return {"probes": shares, "verdict": _verdict(found | far, near, not failed), "is_reliable": not failed}


def _verdict(others: Mapping[str, float], near: Mapping[str, float], is_reliable: bool) -> str:
    """A sentence without its subject; it ends in "not measured" if there were no near unknown sets."""
    least = min(others, key=lambda name: others[name])
    what = f"{len(others)} kinds of other images"
    verdict = f"rejects {_range(others)} of {what}" + (f" (least: {least})" if others[least] < 1 else "")
    if not is_reliable:
        verdict += ', so "unknown" is not reliable'
    if near:
        return f"{verdict}; rejects {_range(near)} of near unknowns ({enumerated(list(near))})"
    return f"{verdict}; near unknowns were not measured"


def _range(shares: Mapping[str, float]) -> str:
    """The lowest and the highest share in percent, rounded down."""
    low, high = (floor(100 * share + 1e-9) for share in (min(shares.values()), max(shares.values())))
    return f"{low}%" if low == high else f"{low} to {high}%"
