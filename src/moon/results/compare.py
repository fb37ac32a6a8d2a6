"""Compare two methods over the seeds they share: paired t-tests with Holm's correction, and t intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from statistics import mean
from typing import Literal, NamedTuple

from moon.metrics import holm, interval, paired_test, verdict

MIN_SEEDS = 3  # fewer are not tested: two differences that happen to be alike look like certainty
TOO_FEW = "too few seeds"  # the verdict then


class Pairs(NamedTuple):
    """Values of two methods, paired by seed; `a[i]` and `b[i]` share everything except the method."""

    a: Sequence[float]
    b: Sequence[float]
    higher_is_better: bool = True


@dataclass(frozen=True)
class Comparison:
    """A paired comparison of method a with method b, one member of a family of comparisons.

    Attributes:
        a: Values of the first method, one per pair.
        b: Values of the second method, in the same order.
        higher_is_better: Whether larger values are better.
        p: Two-sided p-value of the paired t-test after Holm's correction; NaN if nothing could be tested.
    """

    a: tuple[float, ...]
    b: tuple[float, ...]
    higher_is_better: bool
    p: float

    @property
    def differences(self) -> list[float]:
        """a - b for each pair."""
        return [x - y for x, y in zip(self.a, self.b, strict=True)]

    @property
    def difference(self) -> float:
        """The mean of a - b."""
        return mean(self.differences)

    @property
    def has_interval(self) -> bool:
        """Whether there are at least two pairs, so that the difference has an interval."""
        return len(self.a) > 1

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% t interval of the mean difference; requires at least two pairs."""
        return interval(self.differences)

    @property
    def verdict(self) -> Literal["better", "no evidence", "worse", "too few seeds"]:
        """Whether a is better or worse than b at the 5% level. With fewer than three seeds no claim is made."""
        if len(self.a) < MIN_SEEDS:
            return TOO_FEW
        return verdict(self.a, self.b, self.p, higher_is_better=self.higher_is_better)

    @property
    def no_claim(self) -> str:
        """What to show in place of p-value and verdict if there are too few seeds, such as "2 seeds: no claim"."""
        if self.verdict != TOO_FEW:
            return ""
        return f"{len(self.a)} seed{'s' if len(self.a) > 1 else ''}: no claim"


def pair_by_seed(a: Mapping[int, float], b: Mapping[int, float]) -> tuple[list[float], list[float]]:
    """Pair the values of two methods at the seeds that both have, in the order of the first."""
    shared = [seed for seed in a if seed in b]
    return [a[seed] for seed in shared], [b[seed] for seed in shared]


def compare(family: Iterable[Pairs]) -> list[Comparison]:
    """Test every comparison of a family with a paired t-test and adjust the p-values with Holm's correction.

    A family is what is shown together. Comparisons with fewer than three pairs are not tested and do not count.
    """
    family = list(family)
    adjusted = holm([paired_test(pairs.a, pairs.b) if len(pairs.a) >= MIN_SEEDS else nan for pairs in family])
    return [
        Comparison(tuple(pairs.a), tuple(pairs.b), pairs.higher_is_better, float(p))
        for pairs, p in zip(family, adjusted, strict=True)
    ]
