import logging

import pytest
import torch

from moon import SET, Dense, DropSchedule, Gmp, RigL, Static, uniform


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


def layer_and_optimizer(size=10):
    layer = torch.nn.Linear(size, 1)
    return layer, torch.optim.SGD(layer.parameters(), lr=0.1)


@pytest.mark.parametrize("kind", [RigL, SET])
def test_a_fraction_of_0_would_never_change_the_masks(kind):
    schedule = DropSchedule(100, 10, fraction=0.0)
    with pytest.raises(ValueError, match=rf"{kind.__name__} would never replace a weight, .* is 0; use a larger one"):
        kind(*layer_and_optimizer(), 0.5, schedule)
    assert Gmp(*layer_and_optimizer(), 0.5, schedule).planned["weight"] == 5  # it prunes


def test_a_fraction_of_less_than_one_weight_warns(caplog):
    with caplog.at_level(logging.WARNING):
        RigL(*layer_and_optimizer(), 0.5, DropSchedule(100, 10, fraction=0.1))
    assert caplog.messages == [
        "RigL will never replace a weight: the largest sparse layer keeps 5 weights, of which a fraction of 0.098 is "
        "less than one; use a larger fraction (drop_fraction) or a lower sparsity"
    ]
    caplog.clear()
    RigL(*layer_and_optimizer(100), 0.5, DropSchedule(100, 10, fraction=0.1))
    assert not caplog.messages


@pytest.mark.parametrize("sparsity", [0.0, 0.01])
def test_a_sparsity_that_leaves_no_weight_at_zero_is_rejected(sparsity):
    for kind, schedule in ((RigL, DropSchedule(100, 10)), (Static, None)):
        with pytest.raises(ValueError, match=rf"{kind.__name__} with sparsity={sparsity:g} would leave no weight at"):
            kind(*layer_and_optimizer(), sparsity, schedule, uniform)
    assert Dense(layer_and_optimizer()[1]).density() == 1
