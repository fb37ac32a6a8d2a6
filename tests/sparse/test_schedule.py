import pytest

from moon import DropSchedule


def test_the_share_follows_half_a_cosine():
    schedule = DropSchedule(t_end=1000, fraction=0.3)
    assert schedule.share(0) == pytest.approx(0.3)
    assert schedule.share(500) == pytest.approx(0.15)
    assert schedule.share(1000) == 0
    assert schedule.share(5000) == 0


def test_it_is_due_every_delta_t_steps_before_the_end():
    schedule = DropSchedule(t_end=300, delta_t=100)
    assert [step for step in range(1000) if schedule.is_due(step)] == [100, 200]
    assert schedule.changes == 2
    assert DropSchedule(t_end=100, delta_t=100).changes == 0


def test_the_turnover_of_the_paper_s_run():
    # 100 epochs of 391 steps, 70% of them rewiring. If t_end were given in epochs, nothing would ever be replaced.
    schedule = DropSchedule(t_end=int(0.7 * 39_100))
    assert schedule.turnover() == pytest.approx(0.15 * 273, abs=0.3)
    assert DropSchedule(t_end=70).turnover() == 0


@pytest.mark.parametrize(
    "wrong", [{"t_end": -1}, {"t_end": 10.5}, {"t_end": 10, "delta_t": 0}, {"t_end": 10, "fraction": 1.5}]
)
def test_invalid_schedules_are_rejected(wrong):
    with pytest.raises(ValueError, match="must be"):
        DropSchedule(**wrong)
