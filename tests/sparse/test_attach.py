"""`topology.attach()`: `optimizer.step()` is a step of the topology, also from a GradScaler or with a closure."""

import copy
import gc

import pytest
import torch
from torch import nn

from moon import SET, Dense, DropSchedule, Gmp, RigL, Snfs, Snip, Static, Topology


def started(kind=RigL, momentum=0.9, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum, weight_decay=0.01, **options)
    if kind is Dense:
        return model, Dense(optimizer)
    schedule = DropSchedule(8, 2) if kind.rewires else None
    return model, kind(model, optimizer, 0.8, schedule)


def loss_of(model, step, scale=1.0):
    x = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(step))
    return scale * nn.functional.cross_entropy(model(x), torch.arange(16) % 4)


def expected(kind, steps=10):
    model, topology = started(kind)
    for step in range(steps):
        topology.optimizer.zero_grad()
        loss_of(model, step).backward()
        topology.step()
    return model, topology


def assert_same(found, wanted):
    (model, topology), (other, reference) = found, wanted
    assert topology.steps == reference.steps
    for name, mask in reference.masks.items():
        assert torch.equal(topology.masks[name], mask)
    for name, value in other.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    for weight, one in zip(model.parameters(), other.parameters(), strict=True):
        momenta = topology.optimizer.state[weight], reference.optimizer.state[one]
        assert torch.equal(momenta[0]["momentum_buffer"], momenta[1]["momentum_buffer"])


@pytest.mark.parametrize("kind", [Dense, RigL, SET, Snfs, Gmp, Snip, Static])
@pytest.mark.parametrize("way", ["plain", "closure", "topology", "scheduler"])
def test_the_optimizer_steps_the_topology(kind, way):
    model, topology = started(kind)
    optimizer = topology.attach().optimizer
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)  # wraps optimizer.step

    for step in range(10):
        if way == "closure":

            def closure(step=step):
                optimizer.zero_grad()
                (loss := loss_of(model, step)).backward()
                return loss

            assert optimizer.step(closure) > 0
            continue
        optimizer.zero_grad()
        loss_of(model, step).backward()
        gradient = model[0].weight.grad
        (topology if way == "topology" else optimizer).step()
        assert model[0].weight.grad is gradient  # zeroing it is the task of the loop
        if way == "scheduler":
            scheduler.step()
    assert_same((model, topology), expected(kind))
    for name, mask in topology.masks.items():
        weight = topology.weights[name]
        assert not weight[~mask].any()
        assert not optimizer.state[weight]["momentum_buffer"][~mask].any()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clips", [False, True])
def test_grad_scaler(fused, clips):
    """Scale, unscale, clip and step as everywhere; the gradients are unscaled once, and skipped steps do not count."""
    model, topology = started(Snfs, fused=fused)
    optimizer = topology.attach().optimizer
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
    step = 0
    for turn in range(12):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step)).backward()
        overflows = turn in (4, 7)  # one of the two would have rewired
        if overflows:
            model[4].weight.grad[0, 0] = torch.inf
        step += not overflows
        before = copy.deepcopy(model.state_dict()) if overflows else None
        if clips:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1e6)  # no effect but on infinite gradients
        scaler.step(optimizer)
        scaler.update()
        if before is not None:
            assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert topology.steps == 10
    _, other = expected(Snfs)
    for name, mask in other.masks.items():
        assert torch.equal(topology.masks[name], mask)
        torch.testing.assert_close(topology.weights[name], other.weights[name])


def test_a_scaler_that_gets_the_topology_says_what_to_do():
    model, topology = started()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(model, 0)).backward()
    scaler.unscale_(topology.optimizer)
    with pytest.raises(AttributeError, match=r"takes the optimizer, not the topology: call topology.attach\(\) once"):
        scaler.step(topology)


def test_a_step_without_gradients_does_not_count():
    model, topology = started()
    optimizer = topology.attach().optimizer
    topology.steps = 2  # is due
    optimizer.zero_grad()
    optimizer.step()
    optimizer.step(lambda: None)  # Lightning, if training_step returns None
    assert topology.steps == 2
    loss_of(model, 0).backward()
    optimizer.step()
    assert topology.steps == 3


def test_an_interrupted_step_gives_the_gradients_back():
    model, topology = started()
    optimizer = topology.attach().optimizer
    topology.steps = 2  # is due: the update is left out
    loss_of(model, 0).backward()

    def fails(*_):
        raise KeyboardInterrupt

    handle = optimizer.register_step_pre_hook(fails)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    handle.remove()
    assert topology.steps == 2
    optimizer.step()
    assert topology.steps == 3
    assert all(weight.grad is not None for weight in model.parameters())


def test_detach_and_a_second_topology():
    model, topology = started()
    optimizer = topology.attach().attach().optimizer
    other = Static(model, optimizer, 0.5)
    with pytest.raises(ValueError, match=r"another topology is attached.*detach\(\)"):
        other.attach()
    loss_of(model, 0).backward()
    with pytest.raises(RuntimeError, match="Static, the newest topology"):
        optimizer.step()
    topology.detach()
    topology.detach()
    other.attach()
    optimizer.step()
    assert (topology.steps, other.steps) == (0, 1)
    other.detach()
    with pytest.raises(RuntimeError, match=r"topology.attach\(\)"):
        optimizer.step()


def test_what_cannot_be_attached_says_so():
    class Own(Dense):
        def update(self):
            super().update()

    model = nn.Linear(8, 4)
    sgd, lbfgs = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.LBFGS(model.parameters())
    with pytest.raises(ValueError, match="Own overrides step or update"):
        Own(sgd).attach()
    topology: Topology = Dense(lbfgs)
    with pytest.raises(ValueError, match="LBFGS computes the gradients several times"):
        topology.attach()
    assert not topology.is_attached


def test_masked_gradients_have_the_norm_of_the_sparse_network():
    model, topology = started()
    loss_of(model, 0).backward()
    inside = torch.cat([topology.weights[name].grad[mask] for name, mask in topology.masks.items()])
    topology.mask_gradients()
    whole = torch.cat([weight.grad.flatten() for weight in topology.weights.values()])
    assert whole.norm() == pytest.approx(inside.norm().item())
    topology.steps = 2  # RigL needs the dense gradient in this step
    loss_of(model, 1).backward()
    topology.mask_gradients()
    assert all(topology.weights[name].grad[~mask].any() for name, mask in topology.masks.items())


def test_a_newer_topology_gets_all_gradients_and_none_is_masked_without_one():
    model, topology = started(momentum=0)
    topology.attach()
    for number in range(2):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        newer = RigL(model, optimizer, 0.8, DropSchedule(8, 1), seed=number).attach()
        loss_of(model, 0).backward()
        optimizer.step()
        optimizer.zero_grad()
        loss_of(model, 1).backward()  # a step that changes masks
        for name, mask in newer.masks.items():
            assert bool((model.get_parameter(name).grad[~mask] != 0).any()) == (not mask.all())
    del topology, newer, optimizer
    gc.collect()
    torch.optim.SGD(model.parameters(), lr=0.1).step()  # no topology is left that would refuse it


def test_other_code_clips_by_the_norm_of_the_sparse_network():
    model, topology = started()
    topology.attach()
    for step in range(3):
        topology.optimizer.zero_grad()
        loss_of(model, step).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        inside = [p.grad[topology.masks[n]] if n in topology.masks else p.grad for n, p in model.named_parameters()]
        sparse = nn.utils.get_total_norm(inside)
        assert (norm > sparse) if step == 2 else torch.isclose(norm, sparse)  # step 2 needs all gradients
        topology.optimizer.step()
    topology.detach()
    loss_of(model, 3).backward()
    assert any(bool((model.get_parameter(name).grad[~mask] != 0).any()) for name, mask in topology.masks.items())
