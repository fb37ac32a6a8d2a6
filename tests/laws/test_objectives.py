"""Properties that every registered objective must have, including those of other packages.

An objective is built from the facts and small options below, which are passed by parameter name.
"""

import copy

import pytest
import torch
from torch import nn

from moon import (
    DropSchedule,
    Objective,
    SparseTopology,
    TicketSchedule,
    Vos,
    WeightVote,
    open_head,
    rotation_head,
)
from moon.objectives.epoch import DeviceEpoch
from moon.recipe.registry import table

OBJECTIVES, TOPOLOGIES = table("objective"), table("topology")
EVERY = pytest.mark.parametrize("name", OBJECTIVES)
EPOCHS = 12
FACTS = {"epochs": EPOCHS, "num_known": 4, "num_features": 16, "outlier_classes": 3}
SMALL = {"queue": 64, "draws": 50, "steps": 3, "replay": 40, "layer": "4", "concentration": 1.0}


def outliers(count):
    return torch.randn(count, 1, 8, 8), torch.randint(3, (count,))


@pytest.fixture
def make_objective(small_net):
    def make(name):
        torch.manual_seed(0)
        kind = OBJECTIVES[name]
        values = FACTS | SMALL | {"outliers": outliers}
        if "teachers" in kind.takes():
            values["teachers"] = [small_net(), open_head(small_net())]
        objective = kind.for_run(**{key: values[key] for key in kind.takes() if key in values})
        model = small_net()
        model = open_head(model) if objective.extra_logits else model
        return objective, rotation_head(model) if objective.rotates else model

    return make


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(16, 1, 8, 8, generator=generator), torch.randint(4, (16,), generator=generator)


@EVERY
@pytest.mark.parametrize("epoch", [0, EPOCHS - 1])
def test_the_loss_is_a_finite_scalar_with_a_gradient_in_every_weight(name, epoch, make_objective):
    objective, model = make_objective(name)
    loss = objective(model, *batch(), epoch=epoch)
    assert loss.shape == ()
    assert loss.isfinite()
    loss.backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().sum() > 0, key


def check_every_term_has_a_gradient(objective, model):
    """In the last epoch, where every term is active, each has a gradient with respect to the model's weights."""
    terms = objective.terms(model, *batch(), epoch=EPOCHS - 1)
    for key, term in terms.items():
        gradients = torch.autograd.grad(term, list(model.parameters()), retain_graph=True, allow_unused=True)
        assert any(g is not None and g.abs().sum() > 0 for g in gradients), f"'{key}' has no gradient in the model"
    return terms


@EVERY
def test_every_term_has_a_gradient_in_the_model(name, make_objective):
    objective, model = make_objective(name)
    terms = check_every_term_has_a_gradient(objective, model)
    torch.manual_seed(1)
    a = copy.deepcopy(objective)(model, *batch(), epoch=EPOCHS - 1)
    torch.manual_seed(1)
    b = objective.terms(model, *batch(), epoch=EPOCHS - 1)
    torch.testing.assert_close(a, sum(b.values()))
    assert b.keys() == terms.keys()


def test_a_detached_second_term_of_vos_is_detected(small_net):
    class Detached(Vos):
        """As in public code: only the logistic regression learns from the virtual outliers."""

        def energy_loss(self, known, virtual):
            return super().energy_loss(known.detach(), virtual.detach())

    model = small_net()
    check_every_term_has_a_gradient(Vos(4, 16, EPOCHS), model)
    detached = Detached(4, 16, EPOCHS)
    detached.terms(model, *batch(), epoch=EPOCHS - 1)["virtual_outliers"].backward()
    assert detached.logistic.weight.grad.abs().sum() > 0  # the term looks as if it were trained
    with pytest.raises(AssertionError, match="'virtual_outliers' has no gradient in the model"):
        check_every_term_has_a_gradient(detached, model)


@EVERY
def test_the_gradient_is_that_of_the_loss(name, make_objective):
    # Against finite differences in float64, in the last epoch, where every term is active.
    objective, model = make_objective(name)
    objective, model = objective.double(), model.double().eval()
    if hasattr(objective, "outliers"):
        objective.outliers = lambda count: (outliers(count)[0].double(), outliers(count)[1])
    if name == "eow-softmax":  # its samples depend on the weights, but no gradient flows through them
        objective.sample = lambda *_: torch.arange(16 * 512.0, dtype=torch.float64).reshape(16, 512).sin()
    x, y = batch()
    weight = model[6].weight
    objective(model, x.double(), y, epoch=0)

    def loss(value):
        with torch.no_grad():
            weight.copy_(value)
        torch.manual_seed(1)
        return copy.deepcopy(objective)(model, x.double(), y, epoch=EPOCHS - 1)

    start = weight.detach().clone()
    loss(start).backward()
    direction = torch.randn_like(start)
    derivative = (weight.grad * direction).sum().item()
    step = 1e-5
    measured = (loss(start + step * direction) - loss(start - step * direction)).item() / (2 * step)
    assert measured == pytest.approx(derivative, rel=1e-5)


@EVERY
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_it_works_with_every_topology_and_a_vote(name, topology, make_objective):
    objective, model = make_objective(name)
    parameters = [*model.parameters(), *objective.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)
    kind = TOPOLOGIES[topology]
    if not issubclass(kind, SparseTopology):
        topology = kind(optimizer)
    elif kind.superposes:
        topology = kind(model, optimizer, 0.8, TicketSchedule(4, 2, first=4, cycle=2, tickets=2))
    else:
        topology = kind(model, optimizer, 0.8, DropSchedule(6, 2) if kind.rewires else None)
    vote = WeightVote(model)
    for step in range(8):
        optimizer.zero_grad()
        objective(model, *batch(step), epoch=min(2 * step, EPOCHS - 1)).backward()
        topology.step()
        for key, mask in topology.masks.items():
            assert not model.get_parameter(key).detach()[~mask].any(), key
        if step in (5, 7):
            vote.cast(model)
    trained = vote.elect([batch()])
    for key, mask in (topology.masks | vote.masks).items():
        assert not trained.get_parameter(key).detach()[~mask].any(), key
    assert all(p.isfinite().all() for p in trained.parameters())


@EVERY
@pytest.mark.parametrize("at", [0, EPOCHS - 2])
def test_the_state_can_be_saved_and_loaded(name, at, make_objective):
    # Including queues and replay buffers: both continue in the same way from a state in which all terms are active.
    objective, model = make_objective(name)
    other, other_model = make_objective(name)
    for epoch in (0, at):
        objective(model, *batch(20 + epoch), epoch=epoch)
    other.load_state_dict(copy.deepcopy(objective.state_dict()))
    other_model.load_state_dict(model.state_dict())
    for epoch in range(at, EPOCHS):
        torch.manual_seed(epoch)
        a = objective(model, *batch(epoch), epoch=epoch)
        torch.manual_seed(epoch)
        assert torch.equal(a, other(other_model, *batch(epoch), epoch=epoch))
    for (key, a), (_, b) in zip(objective.state_dict().items(), other.state_dict().items(), strict=True):
        assert torch.equal(a, b), key


@EVERY
def test_objectives_that_normalise_logits_ignore_their_scale_and_say_so(name, make_objective):
    # Either the logits, or the features, from which the classifier computes them (T2FNorm).
    losses = {}
    for scaled, factor in ((None, 1.0), ("logits", 3.0), ("features", 3.0)):
        objective, model = make_objective(name)
        with torch.no_grad():
            for parameter in model[{"logits": -1, "features": 4}.get(scaled, 4)].parameters():
                parameter.mul_(factor)
        torch.manual_seed(1)
        losses[scaled] = objective(model, *batch(), epoch=EPOCHS - 1).item()
    ignored = [losses[scaled] == pytest.approx(losses[None], rel=1e-5) for scaled in ("logits", "features")]
    assert any(ignored) == objective.normalises_logits


@EVERY
def test_the_model_is_not_changed(name, make_objective):
    objective, model = make_objective(name)
    before = {key: value.clone() for key, value in model.named_parameters()}
    objective(model, *batch(), epoch=EPOCHS - 1)
    assert all(torch.equal(value, before[key]) for key, value in model.named_parameters())
    assert all(module.training for module in model.modules())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


@EVERY
@pytest.mark.parametrize("on_device", [torch.tensor, lambda epoch: DeviceEpoch(torch.tensor(epoch), host=epoch)])
def test_the_epoch_may_be_on_the_device(name, on_device, make_objective):
    objective, model = make_objective(name)
    model.eval()  # so that two calls give the same result
    for epoch in (0, 5, EPOCHS - 1):
        torch.manual_seed(epoch)
        other = copy.deepcopy(objective)
        a = objective(model, *batch(), epoch=epoch)
        torch.manual_seed(epoch)
        torch.testing.assert_close(a, other(model, *batch(), epoch=on_device(epoch)))


@EVERY
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16 warns once
def test_the_loss_is_float32_under_autocast(name, make_objective):
    objective, model = make_objective(name)
    with torch.autocast("cpu", torch.bfloat16):
        terms = objective.terms(model, *batch(), epoch=EPOCHS - 1)
    assert all(term.dtype == torch.float32 and term.isfinite() for term in terms.values())


@EVERY
def test_a_model_without_the_unknown_output_is_rejected(name, make_objective, small_net):
    objective, _ = make_objective(name)
    if objective.extra_logits:
        with pytest.raises(ValueError, match=r"open_head\(model\)"):
            objective(small_net(), *batch(), epoch=0)


@EVERY
def test_every_parameter_is_a_scalar_option_or_a_fact_of_the_run(name):
    for key, parameter in OBJECTIVES[name].takes().items():
        is_option = isinstance(parameter.default, (int, float, str, bool))
        assert is_option or key in (*FACTS, "outliers", "teachers", "inner"), key


def test_a_new_objective_needs_only_terms(small_net):
    class Mine(Objective):
        def terms(self, model, x, y, *, epoch):
            return {"squares": (model(x) - nn.functional.one_hot(y, 4)).square().mean()}

    assert Mine.for_run()(small_net(), *batch(), epoch=0) > 0


class ReturnsLogits(nn.Sequential):
    def forward(self, input):
        return {"logits": super().forward(input)}


class ReturnsTuple(nn.Sequential):
    def forward(self, input):
        return input.mean(), super().forward(input)


class TakesKeywords(nn.Sequential):
    def forward(self, *, pixel_values):
        return super().forward(pixel_values)


def loss_of(objective, model, x, y):
    torch.manual_seed(1)
    return objective(model.eval(), x, y, epoch=EPOCHS - 1)


@EVERY
@pytest.mark.parametrize("kind", [ReturnsLogits, ReturnsTuple])
def test_the_model_may_return_more_than_a_tensor(name, kind, make_objective):
    objective, model = make_objective(name)
    x, y = batch()
    expected = loss_of(copy.deepcopy(objective), model, x, y)
    loss = loss_of(objective, kind(*model), x, y)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert model[0].weight.grad.abs().sum() > 0


@EVERY
def test_inputs_may_be_keyword_arguments_unless_the_objective_changes_them(name, make_objective):
    objective, model = make_objective(name)
    x, y = batch()
    expected = loss_of(copy.deepcopy(objective), model, x, y)
    if name in ("mixup", "regmixup", "outlier-exposure", "hod", "eow-softmax", "rotpred"):
        with pytest.raises(ValueError, match=r"needs them as one tensor, .* such as batch\['pixel_values'\]"):
            loss_of(objective, TakesKeywords(*model), {"pixel_values": x}, y)
    else:
        for teacher in getattr(objective, "teachers", ()):
            teacher.model = TakesKeywords(*teacher.model)
        torch.testing.assert_close(loss_of(objective, TakesKeywords(*model), {"pixel_values": x}, y), expected)
