import pytest

from moon.training import CosineRate


def test_the_plain_recipe():
    rate = CosineRate(0.1, 1e-6)
    assert rate(0.0) == pytest.approx(0.1)
    assert rate(0.5) == pytest.approx((0.1 + 1e-6) / 2)
    assert rate(1.0) == pytest.approx(1e-6)


def test_moon_s_recipe_holds_the_last_fifth():
    rate = CosineRate(0.12, 0.008, hold=0.2)
    assert rate(0.0) == pytest.approx(0.12)
    assert rate(0.4) == pytest.approx(0.064)
    assert rate(0.8) == rate(0.9) == rate(1.0) == pytest.approx(0.008)


def test_wrong_rates_are_refused():
    with pytest.raises(ValueError, match="hold"):
        CosineRate(0.1, 0.0, hold=1.0)
