"""Comparisons of two trainings in a table, at one sparsity or over several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from moon.paper.names import describe, display_name
from moon.paper.number import Number
from moon.paper.spec import Item
from moon.results.compare import Comparison, Pairs, compare, pair_by_seed
from moon.results.format import interval_text, p_text, signed

LOWER_IS_BETTER = ("fpr95", "ece", "ece_scaled", "time_ratio")

NumberPair = tuple[Number, Number]


@dataclass(frozen=True)
class Claim:
    """A comparison of two trainings that share everything else.

    Attributes:
        pairs: The two numbers that are compared, at each sparsity.
        comparison: The test over the seeds that both have at all these sparsities, on the mean over sparsities. Its
            p-value is adjusted within the table, separately for claims at one sparsity and for claims over several.
    """

    pairs: tuple[NumberPair, ...]
    comparison: Comparison

    @property
    def number(self) -> Number:
        """The number that the claim is about."""
        return self.pairs[0][0]

    @property
    def against(self) -> Number:
        """The number it is compared with."""
        return self.pairs[0][1]

    def text(self) -> str:
        """The comparison as one line: trainings, setting, difference, interval, p-value and verdict."""
        found, digits = self.comparison, self.number.digits
        measurement, other = self.number.measurement, self.against.measurement
        sparsities = ", ".join(dict.fromkeys(describe(n.measurement, ["sparsity"])[0] for n, _ in self.pairs))
        network = dict.fromkeys([*describe(measurement, ("data", "topology")), sparsities])  # "dense" once, not twice
        setting = " ".join([*network, *describe(measurement, ("detector", "metric")), self.number.set]).strip()
        names = f"{display_name(measurement.training)} against {display_name(other.training)}"
        head = f"{names}, {setting}: {signed(found.difference, digits)}"
        if found.has_interval:
            head += f" {interval_text(*found.interval, digits, sign=True)}"
        if found.no_claim:
            return f"{head} ({found.no_claim})"
        return f"{head}, n = {len(found.a)}, {p_text(found.p)}: {found.verdict}"


def find_claims(item: Item, numbers: Sequence[Number]) -> tuple[Claim, ...]:
    """Test every comparison of a table for which two numbers share a seed; p-values are adjusted over all of them."""
    by_measurement = {(n.measurement, n.set): n for n in numbers}
    found: list[tuple[NumberPair, ...]] = []
    for a, b in item.pairs:
        for number in numbers:
            if number.measurement.training == a:
                other = by_measurement.get((replace(number.measurement, training=b), number.set))
                if other is not None and number.ours.keys() & other.ours.keys():
                    found.append(((number, other),))
    return _tested(found)


def pool_claims(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """Repeat comparisons that a table makes at several sparsities over all of them together, tested as one family.

    The seed is the unit: the values of a seed are averaged over the sparsities, because networks that share a seed
    share their initial weights and the order of their images.
    """
    alike: dict[Any, list[NumberPair]] = {}
    for claim in claims:
        network = replace(claim.number.measurement, sparsity=0.0)
        key = network, claim.number.set, claim.against.measurement.training
        alike.setdefault(key, []).extend(claim.pairs)
    return _tested([tuple(pairs) for pairs in alike.values() if len(pairs) > 1])


def _tested(found: Sequence[tuple[NumberPair, ...]]) -> tuple[Claim, ...]:
    """Claims about these pairs of numbers, tested as one family."""
    family = []
    for pairs in found:
        first, second = (_mean_by_seed([pair[side] for pair in pairs]) for side in (0, 1))
        family.append(Pairs(*pair_by_seed(first, second), pairs[0][0].measurement.metric not in LOWER_IS_BETTER))
    return tuple(
        Claim(pairs, comparison) for pairs, comparison in zip(found, compare(family), strict=True) if comparison.a
    )


def _mean_by_seed(numbers: Sequence[Number]) -> dict[int, float]:
    """The mean over numbers, for each seed that all of them have."""
    seeds = [seed for seed in numbers[0].ours if all(seed in number.ours for number in numbers)]
    return {seed: mean(number.ours[seed] for number in numbers) for seed in seeds}
