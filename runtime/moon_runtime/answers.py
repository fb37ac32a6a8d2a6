"""Answers about images: a class or "unknown"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, overload

import numpy as np

UNKNOWN = "unknown"
_ROWS = 20  # that a printed table shows


class Answer(NamedTuple):
    """The answer about one image.

    Attributes:
        name: The most likely class.
        probability: Its probability: softmax over all outputs, at the fitted temperature.
        p_value: Of "the image is of a known class": small for images unlike those of the calibration.
        is_known: Whether the detector accepts the image.
        score: The score of the detector; higher means more known.
        verdict: The class, or "unknown" if the image is not accepted.
    """

    name: str
    probability: float
    p_value: float
    is_known: bool
    score: float
    verdict: str

    def as_json(self) -> dict[str, str | bool | float | None]:
        """The answer as values that JSON can write; it has no NaN and no infinity, which become None."""
        numbers = {"probability": self.probability, "p_value": self.p_value, "score": self.score}
        finite = {key: x if abs(x) < float("inf") else None for key, x in numbers.items()}
        return {"verdict": self.verdict, "class": self.name, "is_known": self.is_known, **finite}


class Answers:
    """The answers about several images: arrays, and a sequence of `Answer`.

    Attributes:
        label: The number of the most likely class of each image, int32.
        probability: Its probability, float32: softmax over all outputs, at the fitted temperature.
        score: The score of the detector, float64; higher means more known.
        p_value: The p-value of "the image is of a known class", float64.
        is_known: Whether the image is accepted, bool.
        names: The names of the most likely classes.
        verdicts: The names of the classes, or "unknown".
    """

    def __init__(self, answers: np.ndarray, classes: list[str]) -> None:
        self._answers, self._classes = answers, classes
        self.label = answers["label"]
        self.probability = answers["probability"]
        self.score = answers["score"]
        self.p_value = answers["p_value"]
        self.is_known = answers["is_known"].astype(bool)

    @property
    def names(self) -> list[str]:
        return [self._classes[label] for label in self.label]

    @property
    def verdicts(self) -> list[str]:
        return [name if known else UNKNOWN for name, known in zip(self.names, self.is_known, strict=True)]

    def __len__(self) -> int:
        return len(self._answers)

    @overload
    def __getitem__(self, index: int) -> Answer: ...
    @overload
    def __getitem__(self, index: slice | np.ndarray) -> Answers: ...
    def __getitem__(self, index: int | slice | np.ndarray) -> Answer | Answers:
        if isinstance(index, (slice, np.ndarray)):
            return Answers(self._answers[index], self._classes)
        label, probability, score, p_value, known = self._answers[index].item()
        name = self._classes[label]
        return Answer(name, probability, p_value, bool(known), score, name if known else UNKNOWN)

    def __iter__(self) -> Iterator[Answer]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        rows = [(printable(a.verdict), printable(a.name), f"{a.probability:.3f}", f"{a.p_value:.4f}", f"{a.score:.5g}")
                for a in self[:_ROWS]]  # fmt: skip
        table = [("verdict", "class", "probability", "p-value", "score"), *rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
        more = [f"... {len(self) - _ROWS} more"] if len(self) > _ROWS else []
        return "\n".join(line.rstrip() for line in lines + more)


def printable(name: str) -> str:
    """A name from a file, without characters that control a terminal."""
    return name if name.isprintable() else name.encode("unicode_escape").decode()
