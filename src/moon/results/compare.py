"""Compare two methods over the seeds they share: paired t-tests with Holm's correction, and bootstrap intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from statistics import mean
from typing import Literal, NamedTuple

from moon.metrics import holm, interval, paired_test, verdict

ONE_SEED = "one seed"  # the verdict where nothing can be tested
NO_CLAIM = f"{ONE_SEED}: no claim"  # the same, in a sentence or a table cell


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
    def has_one_seed(self) -> bool:
        """Whether there is only one pair, so that neither an interval nor a claim is possible."""
        return len(self.a) < 2

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% bootstrap interval of the mean difference; requires at least two pairs."""
        return interval(self.differences)

    @property
    def verdict(self) -> Literal["better", "no evidence", "worse", "one seed"]:
        """Whether a is better or worse than b at the 5% level. With one seed no claim is made."""
        if self.has_one_seed:
            return ONE_SEED
        return verdict(self.a, self.b, self.p, higher_is_better=self.higher_is_better)


def pair_by_seed(a: Mapping[int, float], b: Mapping[int, float]) -> tuple[list[float], list[float]]:
    """Pair the values of two methods at the seeds that both have.

    Args:
        a: Values of the first method by seed.
        b: Values of the second method by seed.

    Returns:
        The values of a and of b at the shared seeds, in the order of `a`.

    Example:
        >>> from moon.results.compare import pair_by_seed
        >>> pair_by_seed({0: 0.9, 1: 0.8}, {1: 0.7, 2: 0.6})
        ([0.8], [0.7])
    """
    shared = [seed for seed in a if seed in b]
    return [a[seed] for seed in shared], [b[seed] for seed in shared]


def compare(family: Iterable[Pairs]) -> list[Comparison]:
    """Test every comparison of a family with a paired t-test and adjust the p-values with Holm's correction.

    Args:
        family: All comparisons that are shown together, such as those of one table. Comparisons with one pair are
            not tested and do not count in the correction.

    Returns:
        One comparison for each member of the family, in the same order.

    Example:
        >>> from moon.results.compare import Pairs, compare
        >>> (found,) = compare([Pairs([0.91, 0.92, 0.93], [0.80, 0.82, 0.81])])
        >>> round(found.difference, 2), found.verdict
        (0.11, 'better')
        >>> compare([Pairs([0.9], [0.8])])[0].verdict
        'one seed'
    """
    family = list(family)
    adjusted = holm([paired_test(pairs.a, pairs.b) if len(pairs.a) > 1 else nan for pairs in family])
    return [
        Comparison(tuple(pairs.a), tuple(pairs.b), pairs.higher_is_better, float(p))
        for pairs, p in zip(family, adjusted, strict=True)
    ]
