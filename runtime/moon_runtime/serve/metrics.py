"""Counters and histograms in the text format of Prometheus. All are changed by the event loop's thread only."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Histogram:
    """How many observations are at most each of some bounds, and their sum.

    Args:
        bounds: Ascending bounds; a last one, infinity, is implied.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Count an observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str) -> list[str]:
        """The histogram as text."""
        total, result = 0, []
        for bound, count in zip([*map("{:g}".format, self.bounds), "+Inf"], self.counts, strict=True):
            total += count
            result.append(f'{name}_bucket{{le="{bound}"}} {total}')
        return [*result, f"{name}_sum {self.sum:.9g}", f"{name}_count {total}"]


class Metrics:
    """What a server counts.

    Attributes:
        requests: By path, method and status code; 499: the client was gone before its answer.
        images: By verdict: known, unknown, or error for what could not be read.
        seconds: From the first byte of a request's body to its answer.
        batches: Images that were computed at once.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.images: Counter[str] = Counter(known=0, unknown=0, error=0)
        self.seconds, self.batches = Histogram(_SECONDS), Histogram(_SIZES)

    def text(self, gauges: Mapping[str, tuple[str, float]], info: Mapping[str, str]) -> str:
        """All metrics as text.

        Args:
            gauges: Values that are measured now, with what they mean.
            info: Labels that describe the model.
        """
        lines = [
            *_heading("moon_requests_total", "counter", "Requests by path, method and status code"),
            *(f'moon_requests_total{{path="{path}",method="{method}",code="{code}"}} {count}'
              for (path, method, code), count in sorted(self.requests.items())),
            *_heading("moon_images_total", "counter", "Images by verdict"),
            *(f'moon_images_total{{verdict="{verdict}"}} {count}' for verdict, count in self.images.items()),
            *_heading("moon_predict_seconds", "histogram", "Time from a request to POST /predict to its answer"),
            *self.seconds.lines("moon_predict_seconds"),
            *_heading("moon_batch_images", "histogram", "Images that were computed at once"),
            *self.batches.lines("moon_batch_images"),
        ]  # fmt: skip
        for name, (meaning, value) in gauges.items():
            lines += [*_heading(name, "gauge", meaning), f"{name} {value:.15g}"]
        labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in info.items())
        lines += [*_heading("moon_model_info", "gauge", "The model that is served"), f"moon_model_info{{{labels}}} 1"]
        return "\n".join(lines) + "\n"


def _heading(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {name} {meaning}.", f"# TYPE {name} {kind}"]


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def resident_bytes() -> int:
    """The memory of this process; 0 where the system does not say (Linux does)."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
