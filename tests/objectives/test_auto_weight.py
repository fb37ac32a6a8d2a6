from itertools import pairwise

import pytest
import torch

from moon import AutoWeight


def observed(weight: AutoWeight, *betas: float) -> AutoWeight:
    for beta in betas:
        weight.observe(torch.tensor([0.5, 0.5]), torch.tensor([2 * beta, 2 * beta]))
    return weight


def test_beta_is_a_moving_average_that_starts_with_the_first_batch():
    weight = AutoWeight(epochs=10, smoothing=0.25)
    weight.observe(torch.tensor([0.0, 0.5]), torch.tensor([1.0, 4.0]))  # mean of 1 and 2
    assert weight.beta.item() == pytest.approx(1.5)
    weight.observe(torch.tensor([0.0]), torch.tensor([5.5]))
    assert weight.beta.item() == pytest.approx(0.75 * 1.5 + 0.25 * 5.5)


def test_algorithm_1_by_hand():
    weight = observed(AutoWeight(epochs=100, quiet_epochs=5, final=1.0), 3.2)
    assert [weight(epoch).item() for epoch in range(5)] == [0.0] * 5
    assert weight(5).item() == pytest.approx(3.2 / 64)
    assert weight(52).item() == pytest.approx(0.05 + (1 - 0.05) * 47 / 94)
    assert weight(99).item() == 1.0  # exactly, in the last epoch


def test_w_changes_by_the_same_amount_in_every_epoch():
    weight = observed(AutoWeight(epochs=20, quiet_epochs=4, final=2.0), 1.0)
    w = [weight(epoch).item() for epoch in range(4, 20)]
    steps = [b - a for a, b in pairwise(w)]
    assert steps == pytest.approx([steps[0]] * 15, rel=1e-4)


def test_w_falls_if_the_final_value_is_below_the_first():
    weight = observed(AutoWeight(epochs=10, quiet_epochs=2, final=0.0), 6.4)
    assert weight(2).item() == pytest.approx(0.1)
    assert weight(9).item() == 0.0


def test_w_stays_at_its_final_value_in_a_longer_run(caplog):
    weight = observed(AutoWeight(epochs=10, quiet_epochs=1, final=1.0), 6.4)
    assert [weight(epoch).item() for epoch in (9, 10, 30)] == [1.0, 1.0, 1.0]
    assert weight(torch.tensor(30)).item() == 1.0
    assert len(caplog.records) == 1


def test_schedules_without_auto_tuning():
    stays = observed(AutoWeight(epochs=10, quiet_epochs=2, final=1.0, schedule="initial"), 6.4)
    assert [stays(epoch).item() for epoch in (0, 1, 2, 9)] == pytest.approx([0, 0, 0.1, 0.1])
    constant = AutoWeight(epochs=10, quiet_epochs=2, final=0.5, schedule="final")
    assert [constant(epoch).item() for epoch in (0, 2, 9)] == [0.5] * 3
    assert constant(torch.tensor(3)).item() == 0.5
    assert stays(torch.tensor(3)).item() == pytest.approx(0.1)
    with pytest.raises(ValueError, match="rising, initial or final, not 'up'"):
        AutoWeight(epochs=10, schedule="up")


def test_smallest_and_largest_number_of_quiet_epochs():
    assert AutoWeight(epochs=3, quiet_epochs=0)(0).item() == 0.0  # nothing observed: w starts at zero
    assert observed(AutoWeight(epochs=3, quiet_epochs=2), 1.0)(2).item() == 1.0  # only the last epoch has w > 0
    assert AutoWeight(epochs=1, quiet_epochs=0)(0).item() == 1.0


@pytest.mark.parametrize(("epochs", "fitting"), [(1, 0), (3, 1), (5, 1)])
def test_a_run_that_is_too_short_is_told_which_value_fits(epochs, fitting):
    with pytest.raises(
        ValueError, match=f"quiet_epochs=5 of epochs={epochs} leaves no .* give quiet_epochs={fitting},"
    ):
        AutoWeight(epochs)
    AutoWeight(epochs, quiet_epochs=fitting)
    with pytest.raises(ValueError, match="give quiet_epochs=5,"):
        AutoWeight(epochs=100, quiet_epochs=100)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 5},
        {"epochs": 0, "quiet_epochs": 0},
        {"epochs": 10, "quiet_epochs": -1},
        {"epochs": 10, "final": -1.0},
        {"epochs": 10, "final": float("nan")},
        {"epochs": 10, "init_factor": 0.0},
        {"epochs": 10, "smoothing": 0.0},
    ],
)
def test_invalid_arguments_are_rejected(wrong):
    with pytest.raises(ValueError, match=r"quiet_epochs|must be"):
        AutoWeight(**wrong)
