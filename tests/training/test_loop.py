import math
import threading

import pytest
import torch
from torch import nn

from moon import AutoWeight, CrossEntropy, Dense, DropSchedule, Moon, OpenHead, RigL, Static, Vos, open_head
from moon.sparse import SupTickets, TicketSchedule
from moon.training import Checkpoints, CosineRate, Diverged, Training
from moon.training.setup import TrainingSetup


class Noise:
    """Four batches per epoch, which depend on the epoch only."""

    def __len__(self):
        return 4

    def epoch(self, epoch):
        generator = torch.Generator().manual_seed(epoch)
        for _ in range(4):
            y = torch.randint(4, (16,), generator=generator)
            x = torch.randn(16, 1, 8, 8, generator=generator)
            x[torch.arange(16), 0, 2 * y] += 3  # a bright row for each class
            yield x, y


def training(small_net, epochs=5, vote_from=4, t_end=14, precision=torch.float32, rate=0.1, vote_every=1):
    torch.manual_seed(0)
    model = open_head(small_net())
    model.insert(6, torch.nn.Dropout(0.2))  # uses torch's default generator
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    topology = RigL(model, optimizer, 0.8, DropSchedule(t_end, 3)) if t_end else Static(model, optimizer, 0.8)
    objective = Moon(AutoWeight(epochs, quiet_epochs=1))
    return Training(
        model,
        optimizer,
        objective,
        topology,
        CosineRate(rate, 0.01),
        Noise(),
        epochs=epochs,
        vote_from=vote_from,
        vote_every=vote_every,
        precision=precision,
        seed=7,
    )


def test_a_run_learns_votes_and_reports_records(small_net):
    records = []
    elected = training(small_net, epochs=6, vote_from=4).run(
        watch=lambda model: {"val_accuracy": 1.0}, on_epoch=records.append
    )
    assert [r["epoch"] for r in records] == list(range(6))
    assert records[-1]["loss"] < 0.7 * records[0]["loss"]
    assert {"loss", "lr", "density", "turnover", "w", "val_accuracy", "seconds"} <= records[0].keys()
    elapsed = [record["elapsed_seconds"] for record in records]
    assert elapsed == sorted(elapsed)
    assert elapsed[-1] + 0.01 >= sum(record["seconds"] for record in records)  # rounded to milliseconds
    assert records[0]["w"] == 0
    assert records[-1]["w"] == 1
    assert records[-1]["turnover"] > 0
    assert all(r["density"] == records[0]["density"] for r in records)
    assert (elected[4].weight == 0).float().mean() > 0.7


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_resuming_is_bit_identical(small_net, tmp_path, stop):
    uninterrupted = training(small_net)
    expected = uninterrupted.run()

    class Stop(Exception):
        pass

    def interrupt(record):
        if record["epoch"] == stop:
            raise Stop

    first = training(small_net)
    checkpoints = Checkpoints(tmp_path)
    if stop < 5:
        with pytest.raises(Stop):
            first.run(checkpoints=checkpoints, on_epoch=interrupt)
    else:
        first.run(checkpoints=checkpoints)
    second = training(small_net)
    second.load_state_dict(checkpoints.latest()[1])
    assert second.next_epoch == min(stop, 5)
    result = second.run()
    for name, value in expected.state_dict().items():
        assert torch.equal(value, result.state_dict()[name]), name
    for name, mask in uninterrupted.topology.masks.items():
        assert torch.equal(mask, second.topology.masks[name])
    assert torch.equal(uninterrupted.objective.weight.beta, second.objective.weight.beta)


def test_checkpoints_are_at_least_checkpoint_seconds_apart(small_net, tmp_path):
    numbers = []
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save = lambda number, state: numbers.append(number)
    training(small_net).run(checkpoints=checkpoints, checkpoint_seconds=1000)
    assert numbers == [5]  # the last state is always saved


@pytest.mark.parametrize("fails", [False, True])
def test_checkpoints_are_on_disk_when_a_run_ends(small_net, tmp_path, monkeypatch, fails):
    """A checkpoint is only written while the run waits for it."""
    save, wait, may_write = Checkpoints._save, Checkpoints.wait, threading.Event()

    def write_while_waiting(checkpoints):
        may_write.set()
        wait(checkpoints)
        may_write.clear()

    monkeypatch.setattr(Checkpoints, "_save", lambda *arguments: may_write.wait(600) and save(*arguments))
    monkeypatch.setattr(Checkpoints, "wait", write_while_waiting)
    run = training(small_net)
    if fails:
        with pytest.raises(ZeroDivisionError):
            run.run(checkpoints=Checkpoints(tmp_path), on_epoch=lambda record: 1 / (2 - record["epoch"]))
    else:
        run.run(checkpoints=Checkpoints(tmp_path), checkpoint_seconds=1000)
    assert max(path.name for path in tmp_path.iterdir()) == ("000002" if fails else "000005")


def test_an_error_while_writing_does_not_hide_the_error_that_ended_the_run(small_net, tmp_path, monkeypatch, caplog):
    def fail(*arguments):
        raise OSError("no space left")

    monkeypatch.setattr(Checkpoints, "_save", fail)
    with pytest.raises(KeyboardInterrupt):
        training(small_net).run(checkpoints=Checkpoints(tmp_path), on_epoch=interrupt_epoch_1)
    assert "the last checkpoint was not written: no space left" in caplog.messages
    with pytest.raises(OSError, match="no space left"):
        training(small_net).run(checkpoints=Checkpoints(tmp_path), checkpoint_seconds=1000)


def interrupt_epoch_1(record):
    if record["epoch"] == 1:
        raise KeyboardInterrupt


def test_a_loss_that_is_not_finite_stops_the_run(small_net, tmp_path):
    run = training(small_net)
    checkpoints = Checkpoints(tmp_path)
    forward, calls = run.objective.forward, []

    def nan_in_epoch_2(model, x, y, *, epoch):
        calls.append(epoch)
        return forward(model, x, y, epoch=epoch) * (float("nan") if len(calls) == 11 else 1.0)

    run.objective.forward = nan_in_epoch_2
    with pytest.raises(Diverged, match="epoch 3, step 3 of 4"):
        run.run(checkpoints=checkpoints)
    assert checkpoints.latest()[0] == 2  # the last one before the NaN


def test_weights_that_are_not_finite_after_the_last_step_stop_the_run(small_net, tmp_path):
    run = training(small_net, rate=1e30, epochs=5)
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(Diverged, match="epoch 1"):
        run.run(checkpoints=checkpoints)
    run = training(small_net, epochs=5)
    step = run.topology.step

    def infinite_after_epoch_1():
        step()
        if run.topology.steps == 8:
            run.model[0].weight.data.fill_(float("inf"))

    run.topology.step = infinite_after_epoch_1
    with pytest.raises(Diverged, match="epoch 2, step 4 of 4"):
        run.run(checkpoints=checkpoints)
    assert checkpoints.latest()[0] == 1


def test_a_loaded_momentum_buffer_has_the_strides_of_its_weight(small_net, tmp_path):
    run = training(small_net, epochs=5)
    run.model.to(memory_format=torch.channels_last)
    checkpoints = Checkpoints(tmp_path)
    run.run(checkpoints=checkpoints)
    run.load_state_dict(checkpoints.latest()[1])
    weight = run.model[0].weight
    momentum = run.optimizer.state[weight]["momentum_buffer"]
    assert momentum.stride() == weight.stride()


def test_a_vote_before_the_masks_are_frozen_is_rejected_before_training(small_net):
    training(small_net, vote_from=3, t_end=16)  # the vote is cast at the end of the epoch
    with pytest.raises(ValueError, match=r"masks change until step 17; let at most 1 epoch vote, .*smaller t_end"):
        training(small_net, vote_from=3, t_end=17)


@pytest.mark.parametrize(("every", "voters"), [(1, [0, 0, 1, 2, 3, 4, 5]), (2, [0, 0, 1, 1, 2, 2, 3])])
def test_a_vote_is_cast_every_vote_every_epochs(small_net, every, voters):
    run = training(small_net, epochs=7, vote_from=2, vote_every=every, t_end=12)
    found = []
    run.run(on_epoch=lambda record: found.append(run.vote.voters))
    assert found == voters


def test_tickets_vote_with_different_masks_and_are_superposed(small_net):
    torch.manual_seed(0)
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    topology = SupTickets(model, optimizer, 0.8, TicketSchedule(8, 2, first=12, cycle=4, tickets=2))
    rate = CosineRate(0.1, 0.01, hold=0.4, cycles=2, peak=0.05)
    run = Training(model, optimizer, CrossEntropy(), topology, rate, Noise(), epochs=5, vote_from=3)
    elected = run.run()
    assert run.vote.voters == 2
    assert sum(map(torch.Tensor.sum, run.masks.values())) == sum(map(torch.Tensor.sum, topology.masks.values()))
    assert not torch.equal(run.masks["4.weight"], topology.masks["4.weight"])
    for name, mask in run.masks.items():
        assert not elected.get_parameter(name).detach()[~mask].any()


def test_the_learning_rate_follows_the_schedule(small_net):
    records = []
    training(small_net, rate=0.2).run(on_epoch=records.append)
    assert records[-1]["lr"] == pytest.approx(CosineRate(0.2, 0.01)(19 / 20))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # torch warns on CPUs without bfloat16
def test_bfloat16_differs_from_float32_by_rounding_only(small_net):
    losses = {}
    for precision in (torch.float32, torch.bfloat16):
        run, records = training(small_net, precision=precision, epochs=2, vote_from=None, t_end=0), []
        dtypes = {run.setup.loss(x, y, 0).dtype for x, y in run.batches.epoch(0)}
        model = run.run(on_epoch=records.append)
        assert dtypes | {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        losses[precision] = [record["loss"] for record in records]
    assert losses[torch.bfloat16] == pytest.approx(losses[torch.float32], rel=0.005)
    assert losses[torch.bfloat16] != losses[torch.float32]  # the forward pass is autocast


@pytest.mark.parametrize("captured", [False, True])
def test_bfloat16_does_not_tie_classes(captured):
    """100 and 100.1 are equal in bfloat16; MOON's arg-max must still be the second class, and its gradient too."""
    model = nn.Sequential(nn.Flatten(), OpenHead(1, 2, bias=False))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[100.0], [100.1], [0.0]]))
    before = model[1].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    run = Training(
        model, optimizer, Moon(1.0), Dense(optimizer), lambda _: 1.0, Noise(), epochs=1, precision=torch.bfloat16,
        captured=captured,
    )  # fmt: skip
    run.begin()
    assert run.is_captured == captured
    loss = run.step(torch.ones(4, 1), torch.ones(4, dtype=torch.int64), 0, 1.0)
    p = 1 / (1 + math.exp(-0.1))
    assert loss.item() == pytest.approx(-math.log(p), rel=1e-4)  # twice as large if the prediction were wrong
    change = (model[1].weight.detach() - before).flatten()
    torch.testing.assert_close(change, torch.tensor([p - 1, 1 - p, 0.0]), rtol=0, atol=2e-5)
    assert "forward" not in vars(model[1])


def test_a_dense_run_without_vote_returns_the_model(small_net):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = Training(model, optimizer, CrossEntropy(), Dense(optimizer), CosineRate(0.1, 0.0), Noise(), epochs=2)
    steps = []
    assert run.run(on_step=lambda epoch, step, loss: steps.append((epoch, step, loss()))) is model
    assert [s[:2] for s in steps] == [(e, s) for e in range(2) for s in range(4)]


def test_parameters_of_the_objective_must_be_in_the_optimizer(small_net):
    model = open_head(small_net())
    objective = Vos(num_known=4, num_features=16, epochs=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def make():
        return Training(model, optimizer, objective, Dense(optimizer), CosineRate(0.1, 0.0), Noise(), epochs=2)

    with pytest.raises(
        ValueError, match=r"does not update the parameters \['energy_weight', .*\] of Vos; build it from"
    ):
        make()
    optimizer.add_param_group({"params": [objective.energy_weight]})
    with pytest.raises(ValueError, match=r"\['logistic.weight', 'logistic.bias'\] of Vos"):
        make()
    objective.logistic.requires_grad_(False)  # frozen parameters need no update
    assert make().objective is objective


def test_a_model_without_a_linear_classifier_can_be_autocast():
    model = nn.Sequential(nn.Conv2d(1, 4, 8), nn.Flatten())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    setup = TrainingSetup(model, optimizer, CrossEntropy(), Dense(optimizer), torch.bfloat16)
    assert setup.loss(torch.ones(2, 1, 8, 8), torch.tensor([0, 1]), 0).isfinite()
