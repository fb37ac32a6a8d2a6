"""The FLOPs of the paper's Appendix E."""

import pytest

from moon.paper.flops import moon_extra, paper_flops


def test_extra_cost_by_hand():
    extra = moon_extra(
        images=10, epochs=4, outputs=3, parameters=7, forward=100, quiet_epochs=1, voters=2, norm_passes=3
    )
    assert (extra.loss, extra.averaging, extra.norm) == (4 * 30 + 3 * 8 * 30, 3 * 7, 3 * 10 * 100)
    assert extra.voting == 21 + 3000
    assert extra.total == 840 + 21 + 3000
    assert extra.share(38_610) == 0.1
    default = moon_extra(10, 100, 3, 7, 100)
    assert (default.loss, default.averaging, default.norm) == (30 * (5 * 4 + 95 * 8), 19 * 21, 1000)


def test_the_table():
    rows = {row.quantity: row for row in paper_flops()}
    assert all(row.why for row in rows.values())
    found = {name: (row.paper, f"{row.derived:.2e}", f"{row.ours:.2e}") for name, row in rows.items()}
    assert found == {
        "inference of an image, dense": (None, "8.18e+09", "8.18e+09"),
        "inference of an image, sparse": (None, "1.82e+09", "3.38e+09"),
        "training by RigL": (7.4e17, "7.09e+17", "1.30e+18"),
        "loss of an iteration, quiet": (1.3e5, "1.28e+05", "1.28e+05"),
        "loss of an iteration, later": (2.6e5, "2.56e+05", "2.56e+05"),
        "loss and tuning, whole run": (2.3e15, "1.00e+12", "1.00e+12"),
        "averaging of weights": (1.8e9, "1.46e+09", "1.46e+09"),
        "BatchNorm, one pass": (2.4e15, "2.34e+15", "4.34e+15"),
        "voting, whole run": (4.8e16, "4.67e+16", "4.34e+15"),
        "MOON's extra, whole run": (5.0e16, "4.68e+16", "4.34e+15"),
        "MOON's extra / RigL's training": (0.068, "6.59e-02", "3.32e-03"),
    }
    close = [row for row in rows.values() if row.paper and row.quantity != "loss and tuning, whole run"]
    assert all(0.8 * row.paper < row.derived <= row.paper for row in close)


@pytest.mark.parametrize("wrong", [{"quiet_epochs": 5}, {"quiet_epochs": -1}, {"voters": 0}, {"norm_passes": -1}])
def test_invalid_runs_are_rejected(wrong):
    with pytest.raises(ValueError, match="must be"):
        moon_extra(1, 4, 1, 1, 1, **({"quiet_epochs": 1} | wrong))
