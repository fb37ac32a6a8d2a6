"""Paired comparisons: pairing by seed, tests, correction and verdicts."""

from math import isnan

import pytest

from moon.metrics import interval, paired_test
from moon.results.compare import Pairs, compare, pair_by_seed

GOOD, POOR = [0.90, 0.91, 0.93], [0.80, 0.82, 0.82]


def test_values_are_paired_at_shared_seeds_only():
    assert pair_by_seed({2: 0.3, 0: 0.1, 1: 0.2}, {0: 1.0, 2: 3.0, 7: 4.0}) == ([0.3, 0.1], [3.0, 1.0])
    assert pair_by_seed({0: 0.1}, {1: 0.2}) == ([], [])


def test_a_comparison_in_literals():
    (found,) = compare([Pairs(GOOD, POOR)])
    assert found.differences == pytest.approx([0.10, 0.09, 0.11])
    assert found.difference == pytest.approx(0.10)
    assert found.interval == interval(found.differences)
    assert found.p == paired_test(GOOD, POOR)  # a family of one needs no correction
    assert found.verdict == "better"


def test_direction_decides_between_better_and_worse():
    higher, lower, reverse = compare([Pairs(GOOD, POOR), Pairs(GOOD, POOR, False), Pairs(POOR, GOOD)])
    assert (higher.verdict, lower.verdict, reverse.verdict) == ("better", "worse", "worse")


def test_p_values_are_adjusted_over_the_family():
    alone = compare([Pairs(GOOD, POOR)])[0].p
    first, second, third = compare([Pairs(GOOD, POOR), Pairs([0.5, 0.7, 0.6], [0.6, 0.5, 0.6]), Pairs([0.9], [0.8])])
    assert first.p == pytest.approx(2 * alone)  # the untested one does not count
    assert second.verdict == "no evidence"
    assert isnan(third.p)


@pytest.mark.parametrize(("seeds", "text"), [(1, "1 seed: no claim"), (2, "2 seeds: no claim"), (3, "")])
def test_fewer_than_three_seeds_make_no_claim(seeds, text):
    # Two differences of almost the same size: a t-test would call them significant.
    a, b = [0.9, 0.9001, 0.9][:seeds], [0.1, 0.1, 0.1][:seeds]
    (found,) = compare([Pairs(a, b)])
    assert found.verdict == ("better" if seeds == 3 else "too few seeds")
    assert found.no_claim == text
    assert isnan(found.p) == (seeds < 3)
    assert found.has_interval == (seeds > 1)


def test_an_empty_family():
    assert compare([]) == []
