import pytest

from moon.training import CosineRate


def test_the_rate_follows_half_a_cosine():
    rate = CosineRate(0.1, 1e-6)
    assert rate(0.0) == pytest.approx(0.1)
    assert rate(0.5) == pytest.approx((0.1 + 1e-6) / 2)
    assert rate(1.0) == pytest.approx(1e-6)


def test_the_rate_of_moon_is_constant_in_the_last_fifth():
    rate = CosineRate(0.12, 0.008, hold=0.2)
    assert rate(0.0) == pytest.approx(0.12)
    assert rate(0.4) == pytest.approx(0.064)
    assert rate(0.8) == rate(0.9) == rate(1.0) == pytest.approx(0.008)


def test_cycles_are_triangles_from_end_to_peak_and_back():
    rate = CosineRate(0.1, 0.001, hold=0.3, cycles=3, peak=0.005)
    assert rate(0.0) == pytest.approx(0.1)
    assert rate(0.35) == pytest.approx((0.1 + 0.001) / 2)
    for start in (0.7, 0.8, 0.9):
        found = [rate(start + part) for part in (0.0, 0.025, 0.05, 0.075, 0.1)]
        assert found == pytest.approx([0.001, 0.003, 0.005, 0.003, 0.001])


def test_a_single_cycle_fills_the_last_part():
    rate = CosineRate(0.1, 0.0, hold=0.5, cycles=1, peak=0.2)
    assert [rate(progress) for progress in (0.5, 0.625, 0.75, 1.0)] == pytest.approx([0.0, 0.1, 0.2, 0.0])


def test_the_rate_rises_from_0_to_the_cosine_during_a_warmup():
    plain, rate = CosineRate(0.12, 0.008, hold=0.2), CosineRate(0.12, 0.008, hold=0.2, warmup=0.1)
    assert [rate(progress) for progress in (0.0, 0.025, 0.05)] == [0.0, plain(0.025) / 4, plain(0.05) / 2]
    assert [rate(progress) for progress in (0.1, 0.5, 0.9)] == [plain(0.1), plain(0.5), plain(0.9)]
    assert "after a warm-up in the first 10%" in rate.summary()
    assert "warm-up" not in plain.summary()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hold": 1.0}, "hold in"),
        ({"hold": -0.1}, "hold in"),
        ({"start": -0.1}, "at least 0"),
        ({"warmup": 1.0}, "warmup, a fraction of the run"),
        ({"warmup": -0.1}, "warmup, a fraction of the run"),
        ({"cycles": -1, "hold": 0.1, "peak": 0.005}, "cycles need"),
        ({"cycles": 3, "hold": 0.0, "peak": 0.005}, "a hold above 0"),
        ({"cycles": 3, "hold": 0.1, "peak": 0.0009}, "a peak of at least end"),
    ],
)
def test_invalid_rates_are_rejected(wrong, message):
    with pytest.raises(ValueError, match=message):
        CosineRate(**{"start": 0.1, "end": 0.001} | wrong)
