import time

import pytest
import torch

from moon import AutoWeight, CrossEntropy, Dense, DropSchedule, Moon, RigL, open_head
from moon.sparse import SupTickets, TicketSchedule
from moon.training import Checkpoints, CosineRate, Diverged, Training


class Noise:
    """Four batches an epoch whose content depends on the epoch alone."""

    def __len__(self):
        return 4

    def epoch(self, epoch):
        chance = torch.Generator().manual_seed(epoch)
        for _ in range(4):
            y = torch.randint(4, (16,), generator=chance)
            x = torch.randn(16, 1, 8, 8, generator=chance)
            x[torch.arange(16), 0, 2 * y] += 3  # a bright row tells the class
            yield x, y


def training(small_net, epochs=5, vote_from=4, t_end=14, precision=torch.float32, rate=0.1, vote_every=1):
    torch.manual_seed(0)
    model = open_head(small_net())
    model.insert(6, torch.nn.Dropout(0.2))  # draws from torch's own chance
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    topology = RigL(model, optimizer, 0.8, DropSchedule(t_end, 3))
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


def test_it_learns_votes_and_records(small_net):
    records = []
    elected = training(small_net, epochs=6, vote_from=4).run(
        watch=lambda model: {"val_accuracy": 1.0}, on_epoch=records.append
    )
    assert [r["epoch"] for r in records] == list(range(6))
    assert records[-1]["loss"] < 0.7 * records[0]["loss"]
    assert {"loss", "lr", "density", "turnover", "w", "val_accuracy", "seconds"} <= records[0].keys()
    elapsed = [record["elapsed_seconds"] for record in records]
    assert elapsed == sorted(elapsed)
    assert elapsed[-1] + 0.01 >= sum(record["seconds"] for record in records) > 0
    assert records[0]["w"] == 0
    assert records[-1]["w"] == 1
    assert records[-1]["turnover"] > 0
    assert all(r["density"] == records[0]["density"] for r in records)
    assert (elected[4].weight == 0).float().mean() > 0.7


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_resuming_is_bit_identical(small_net, tmp_path, stop):
    whole = training(small_net)
    expected = whole.run()

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
    for name, mask in whole.topology.masks.items():
        assert torch.equal(mask, second.topology.masks[name])
    assert torch.equal(whole.objective.weight.beta, second.objective.weight.beta)


def test_checkpoints_are_no_more_frequent_than_asked(small_net, tmp_path):
    numbers = []
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save = lambda number, state: numbers.append(number)
    training(small_net).run(checkpoints=checkpoints, checkpoint_seconds=1000)
    assert numbers == [5]  # the end is always saved


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_what_was_saved_is_on_disk_when_a_run_ends(small_net, tmp_path, monkeypatch, ends):
    whole = Checkpoints._save
    monkeypatch.setattr(Checkpoints, "_save", lambda *task: (time.sleep(0.2), whole(*task)))
    run = training(small_net)
    if ends == "well":
        run.run(checkpoints=Checkpoints(tmp_path), checkpoint_seconds=1000)
    else:
        with pytest.raises(ZeroDivisionError):
            run.run(checkpoints=Checkpoints(tmp_path), on_epoch=lambda record: 1 / (2 - record["epoch"]))
    assert max(path.name for path in tmp_path.iterdir()) == ("000005" if ends == "well" else "000002")


def test_a_full_disk_does_not_hide_what_ended_the_run(small_net, tmp_path, monkeypatch):
    def fail(*task):
        raise OSError("no space left")

    monkeypatch.setattr(Checkpoints, "_save", fail)
    said = []
    with pytest.raises(KeyboardInterrupt):
        training(small_net).run(checkpoints=Checkpoints(tmp_path), on_epoch=stop_after_the_first, say=said.append)
    assert said == ["the last checkpoint was not written: no space left"]
    with pytest.raises(OSError, match="no space left"):
        training(small_net).run(checkpoints=Checkpoints(tmp_path), checkpoint_seconds=1000)


def stop_after_the_first(record):
    if record["epoch"] == 1:
        raise KeyboardInterrupt


def test_a_loss_that_is_not_finite_stops_the_run(small_net, tmp_path):
    run = training(small_net)
    checkpoints = Checkpoints(tmp_path)
    whole = run.objective.forward

    def bad_in_epoch_2(model, x, y, *, epoch):
        loss = whole(model, x, y, epoch=epoch)
        run.calls = getattr(run, "calls", 0) + 1
        return loss * float("nan") if run.calls == 11 else loss

    run.objective.forward = bad_in_epoch_2
    with pytest.raises(Diverged, match="epoch 2, step 2 of 4"):
        run.run(checkpoints=checkpoints)
    assert checkpoints.latest()[0] == 2  # the last good one


def test_a_last_step_that_breaks_the_weights_stops_the_run(small_net, tmp_path):
    run = training(small_net, rate=1e30, epochs=5)
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(Diverged, match="epoch 0"):
        run.run(checkpoints=checkpoints)
    run = training(small_net, epochs=5)
    last = run.topology.step

    def break_in_the_last_step_of_epoch_1():
        last()
        if run.topology.steps == 8:
            run.model[0].weight.data.fill_(float("inf"))

    run.topology.step = break_in_the_last_step_of_epoch_1
    with pytest.raises(Diverged, match="epoch 1, step 3 of 4"):
        run.run(checkpoints=checkpoints)
    assert checkpoints.latest()[0] == 1


def test_momentum_keeps_the_layout_of_its_weight(small_net, tmp_path):
    run = training(small_net, epochs=5)
    run.model.to(memory_format=torch.channels_last)
    checkpoints = Checkpoints(tmp_path)
    run.run(checkpoints=checkpoints)
    run.load_state_dict(checkpoints.latest()[1])
    weight = run.model[0].weight
    momentum = run.optimizer.state[weight]["momentum_buffer"]
    assert momentum.stride() == weight.stride()


def test_a_vote_that_begins_before_the_masks_are_frozen_is_refused_at_once(small_net):
    training(small_net, vote_from=3, t_end=16)  # the vote is cast at the end of the epoch
    with pytest.raises(ValueError, match="let the last 1 epochs or fewer vote"):
        training(small_net, vote_from=3, t_end=17)


@pytest.mark.parametrize(("every", "voters"), [(1, [0, 0, 1, 2, 3, 4, 5]), (2, [0, 0, 1, 1, 2, 2, 3])])
def test_every_so_many_epochs_vote(small_net, every, voters):
    run = training(small_net, epochs=7, vote_from=2, vote_every=every, t_end=12)
    found = []
    run.run(on_epoch=lambda record: found.append(run.vote.voters))
    assert found == voters


def test_tickets_vote_before_the_masks_are_frozen_and_are_superposed(small_net):
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


def test_the_learning_rate_follows_the_recipe(small_net):
    records = []
    training(small_net, rate=0.2).run(on_epoch=records.append)
    assert records[-1]["lr"] == pytest.approx(CosineRate(0.2, 0.01)(19 / 20))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # torch's own words where the CPU lacks bfloat16
def test_bfloat16_keeps_float32_weights_and_loss(small_net):
    records = []
    run = training(small_net, precision=torch.bfloat16, epochs=2, vote_from=None, t_end=4)
    model = run.run(on_epoch=records.append)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert records[-1]["loss"] < 5


def test_plain_training_is_the_same_loop(small_net):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = Training(model, optimizer, CrossEntropy(), Dense(optimizer), CosineRate(0.1, 0.0), Noise(), epochs=2)
    steps = []
    assert run.run(on_step=lambda epoch, step, loss: steps.append((epoch, step, loss()))) is model
    assert [s[:2] for s in steps] == [(e, s) for e in range(2) for s in range(4)]
