import copy
import pickle

import pytest
import torch
from torch import nn

from moon import DropSchedule, RigL, Static


@pytest.fixture
def start(small_net):
    """A function that makes a model with gradients and its optimizer."""

    def make():
        model = small_net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        backward(model)
        return model, optimizer

    return make


def backward(model, scaled=lambda loss: loss):
    model.zero_grad()
    scaled(nn.functional.cross_entropy(model(torch.randn(16, 1, 8, 8)), torch.arange(16) % 4)).backward()


def density_of(model):
    weights = [m.weight for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    return sum(int((w != 0).sum()) for w in weights) / sum(w.numel() for w in weights)


def test_a_bare_optimizer_step_is_an_error_before_anything_changes(start):
    model, optimizer = start()
    topology = RigL(model, optimizer, 0.9, DropSchedule(100, 10))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match=r"RigL.*call topology.step\(\) instead.*attach\(\).*GradScaler.*Lightning"):
        optimizer.step()
    with pytest.raises(RuntimeError, match=r"topology.attach\(\)"):
        optimizer.step(lambda: pytest.fail("the closure must not run"))  # as Lightning calls it
    with pytest.raises(RuntimeError, match=r"topology.attach\(\)"):
        torch.amp.GradScaler("cpu", enabled=False).step(optimizer)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert topology.steps == 0
    topology.step()  # still works
    assert topology.density() == density_of(model) < 0.11


def test_a_step_by_a_scheduler_of_learning_rates_is_allowed(start):
    model, optimizer = start()
    topology = Static(model, optimizer, 0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)  # wraps optimizer.step
    topology.step()
    scheduler.step()
    with pytest.raises(RuntimeError, match="Static"):
        optimizer.step()


def test_only_the_newest_topology_may_step(start):
    model, optimizer = start()
    old = RigL(model, optimizer, 0.5, DropSchedule(100, 10))
    new = Static(model, optimizer, 0.9)
    new.step()
    with pytest.raises(RuntimeError, match="that Static, the newest topology"):
        old.step()
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    newest = RigL(model, other, 0.9, DropSchedule(100, 10))
    with pytest.raises(RuntimeError, match="that RigL, the newest topology"):
        optimizer.step()
    newest.step()


def test_a_second_optimizer_of_the_weights_is_watched_as_well(start):
    model, optimizer = start()
    topology = Static(model, optimizer, 0.9)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match=r"that Static, .*call topology.step\(\) instead"):
        torch.optim.AdamW(model.parameters()).step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    other = nn.Linear(2, 2)
    other(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(other.parameters(), lr=0.1).step()  # other weights
    torch.optim.SGD([model[1].weight], lr=0.1).step()  # a weight without a mask
    topology.step()


def test_topologies_that_share_an_optimizer_step_together(start):
    """A step of one of them would fill the weights of the other."""
    model, optimizer = start()
    body = Static(model, optimizer, 0.5, dense=["6.weight"])
    head = RigL(model, optimizer, 0.5, DropSchedule(100, 10), dense=["0.weight", "4.weight"])
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        RuntimeError, match=r"weights of RigL, another topology.*attach\(\) one of two and call step\(\)"
    ):
        body.step()
    with pytest.raises(RuntimeError, match="weights of Static, another topology"):
        head.step()
    body.attach()
    with pytest.raises(RuntimeError, match="weights of RigL, another topology"):
        optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    densities = body.density(), head.density()
    for _ in range(3):
        backward(model)
        head.step()
    assert (body.density(), head.density()) == densities
    assert max(densities) < 1
    assert body.steps == head.steps == 3


def test_without_a_topology_the_optimizer_is_free_again(start):
    model, optimizer = start()
    topology = Static(model, optimizer, 0.9)
    topology.step()
    del topology
    optimizer.step()
    assert density_of(model) > 0.9


def test_a_topology_with_its_own_update_may_step(start):
    class Clipped(Static):
        def update(self):
            torch.nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
            self.optimizer.step()
            self._enforce()

    model, optimizer = start()
    topology = Clipped(model, optimizer, 0.9)
    topology.step()
    assert topology.density() < 0.11


def test_update_without_step_is_allowed(start):
    model, optimizer = start()
    topology = Static(model, optimizer, 0.9)
    topology.update()
    assert topology.density() < 0.11
    with pytest.raises(RuntimeError):
        optimizer.step()


def test_optimizers_can_be_copied_and_saved(start):
    model, optimizer = start()
    topology = Static(model, optimizer, 0.9)
    topology.step()
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(pickle.loads(pickle.dumps(state)))
    pickle.loads(pickle.dumps(optimizer)).step()  # a copy has weights of its own
    copy.deepcopy(optimizer).step()
    both = copy.deepcopy({"topology": topology, "model": model, "optimizer": optimizer})
    assert both["topology"].density() == topology.density()
    topology.step()


def test_density_is_measured_from_the_weights(start):
    model, optimizer = start()
    topology = Static(model, optimizer, 0.9)
    sparse = topology.density()
    with torch.no_grad():
        model[4].weight.add_(1.0)  # by other code
    assert topology.density() == pytest.approx(density_of(model))
    assert topology.density() > sparse + 0.8


def test_density_counts_weights_that_have_just_grown():
    layer = nn.Linear(8, 1, bias=False)
    topology = RigL(layer, torch.optim.SGD(layer.parameters(), lr=0.1), 0.5, DropSchedule(100, 1, 1.0))
    layer.weight.grad = torch.ones(1, 8)
    topology.steps = 50
    topology.step()
    assert int((layer.weight != 0).sum()) < 4  # two of four are new and still zero
    assert topology.density() == 0.5
