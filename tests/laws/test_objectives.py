"""What every registered objective must obey."""

import pytest
import torch

from moon import DropSchedule, RigL, open_head
from moon.objectives import OBJECTIVES
from moon.sparse import sparse_weights

EVERY = pytest.mark.parametrize("name", OBJECTIVES)
EPOCHS = 8


@pytest.fixture
def made(small_net):
    def make(name):
        torch.manual_seed(0)
        objective = OBJECTIVES[name].for_run(epochs=EPOCHS)
        model = small_net()
        return objective, open_head(model) if objective.extra_logits else model

    return make


def batch(seed=0):
    chance = torch.Generator().manual_seed(seed)
    return torch.randn(16, 1, 8, 8, generator=chance), torch.randint(4, (16,), generator=chance)


@EVERY
@pytest.mark.parametrize("epoch", [0, EPOCHS - 1])
def test_the_loss_is_a_finite_scalar_with_a_gradient_in_every_weight(name, epoch, made):
    objective, model = made(name)
    loss = objective(model, *batch(), epoch=epoch)
    assert loss.shape == ()
    assert loss.isfinite()
    loss.backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().sum() > 0, key


@EVERY
def test_the_gradient_is_that_of_the_loss(name, made):
    # Against finite differences in float64, at the last epoch, where every term is switched on.
    objective, model = made(name)
    objective, model = objective.double(), model.double().eval()
    x, y = batch()
    weight = model[6].weight

    def loss(value):
        with torch.no_grad():
            weight.copy_(value)
        torch.manual_seed(1)
        return objective(model, x.double(), y, epoch=EPOCHS - 1)

    start = weight.detach().clone()
    loss(start).backward()
    direction = torch.randn_like(start)
    slope = (weight.grad * direction).sum().item()
    step = 1e-5
    measured = (loss(start + step * direction) - loss(start - step * direction)).item() / (2 * step)
    assert measured == pytest.approx(slope, rel=1e-5)


@EVERY
def test_the_network_stays_sparse(name, made):
    objective, model = made(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    topology = RigL(model, optimizer, 0.9, DropSchedule(8, 2))
    density = topology.density()
    for step in range(10):
        optimizer.zero_grad()
        objective(model, *batch(step), epoch=min(step, EPOCHS - 1)).backward()
        topology.step()
        exist = sum(int((w != 0).sum()) for w in sparse_weights(model).values())
        everything = sum(w.numel() for w in sparse_weights(model).values())
        assert exist / everything <= density
        assert topology.density() == density


@EVERY
def test_its_state_survives(name, made):
    objective, model = made(name)
    other, _ = made(name)
    objective(model, *batch(), epoch=0)
    other.load_state_dict(objective.state_dict())
    for epoch in range(EPOCHS):
        torch.manual_seed(epoch)
        a = objective(model, *batch(epoch), epoch=epoch)
        torch.manual_seed(epoch)
        assert torch.equal(a, other(model, *batch(epoch), epoch=epoch))


@EVERY
def test_every_option_can_be_named(name):
    import inspect

    for key, parameter in inspect.signature(OBJECTIVES[name].for_run).parameters.items():
        assert parameter.kind is parameter.KEYWORD_ONLY, key
        assert key == "epochs" or isinstance(parameter.default, (int, float, str, bool)), key


@EVERY
def test_it_has_a_card(name):
    from pathlib import Path

    assert (Path(__file__).parents[2] / "docs" / "methods" / f"{name.replace('-', '_')}.md").is_file()
