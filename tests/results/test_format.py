"""Numbers as text."""

from moon.results.format import interval_text, mean_and_deviation, signed


def test_one_value_has_no_deviation_and_several_have():
    assert mean_and_deviation([0.5]) == "50.0"
    assert mean_and_deviation([0.4, 0.6]) == "50.0 ± 14.1"
    assert mean_and_deviation([0.0123, 0.0125], digits=4, scale=1.0) == "0.0124 ± 0.0001"


def test_no_value_is_a_dash():
    assert mean_and_deviation([]) == "-"


def test_differences_and_intervals():
    assert signed(1.5, 1) == "+1.5"
    assert signed(-0.25) == "-0.25"
    assert interval_text(1, 2.5) == "[1.00, 2.50]"
    assert interval_text(-1, 2.5, 1, sign=True) == "[-1.0, +2.5]"
