"""What all objectives share."""

import pytest
import torch
from torch import nn

from moon import CigL, CrossEntropy, Hod, LogitNorm, Moon, Objective, OpenHead, Vos, look, open_head
from moon.evidence import classifier_name, logits_of
from moon.objectives.models import View, check_open


def batch():
    return torch.randn(8, 6), torch.arange(8) % 4


def vos():
    return nn.Linear(6, 4), Vos(4, 6, epochs=10, start_share=0.0, queue=16, draws=20)


def hod():
    return open_head(nn.Linear(6, 4)), Hod(lambda n: (torch.randn(n, 6), torch.randint(3, (n,))), 3, 6)


@pytest.mark.parametrize("make", [vos, hod])
def test_an_optimizer_without_the_objective_s_parameters_is_rejected_in_the_second_step(make):
    model, objective = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    objective(model, *batch(), epoch=0).backward()
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(ValueError, match=r"SGD\(\[\*model.parameters\(\), \*objective.parameters\(\)\]"):
        objective(model, *batch(), epoch=0)


@pytest.mark.parametrize("wrap", [LogitNorm, CigL])
def test_parameters_of_an_inner_objective_are_checked(wrap):
    model, inner = hod()
    objective = wrap(inner=inner)
    objective(model, *batch(), epoch=0).backward()
    model.zero_grad()
    with pytest.raises(ValueError, match=f"{wrap.__name__} has parameters of its own"):
        objective(model, *batch(), epoch=0)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("make", [vos, hod])
def test_an_optimizer_of_both_is_accepted(make, set_to_none):
    model, objective = make()
    optimizer = torch.optim.SGD([*model.parameters(), *objective.parameters()], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad(set_to_none)
        objective(model, *batch(), epoch=0).backward()
        optimizer.step()


def test_gradients_may_be_accumulated():
    model, objective = vos()
    optimizer = torch.optim.SGD([*model.parameters(), *objective.parameters()], lr=0.1)
    for step in range(6):
        objective(model, *batch(), epoch=0).backward()
        if step % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


def test_a_frozen_model_and_evaluation_without_gradients_are_accepted():
    model, objective = hod()
    model.requires_grad_(False)
    for _ in range(2):
        objective(model, *batch(), epoch=0).backward()
    model.requires_grad_(True)
    with torch.no_grad():
        objective(model, *batch(), epoch=0)


def test_a_model_whose_open_head_is_replaced_is_rejected(small_net):
    model, x, y = open_head(small_net()), torch.randn(4, 1, 8, 8), torch.arange(4)
    Moon(1.0)(model, x, y, epoch=0)
    model[6] = nn.Linear(16, 5)
    with pytest.raises(ValueError, match=r"Moon needs K\+1 outputs, but Sequential has no unknown output"):
        Moon(1.0)(model, x, y, epoch=0)


def test_an_open_head_is_found_anywhere_in_the_model():
    model = nn.ModuleDict({"a": nn.Sequential(nn.Linear(4, 4), OpenHead(4, 3)), "b": nn.Linear(4, 4)})
    check_open(model, Moon(1.0))
    check_open(View(model, lambda x: x), Moon(1.0))
    check_open(model["a"][1], Moon(1.0))


def test_an_open_head_that_is_not_the_classifier_is_an_error():
    model = nn.Sequential(OpenHead(6, 3), nn.ReLU(), nn.Linear(4, 3))  # the hidden layer was widened
    with pytest.raises(
        ValueError, match=r"Sequential has 3 outputs, but its open head has 4.*open_head\(model, 'fc'\)"
    ):
        Moon(1.0)(model, torch.randn(8, 6), torch.arange(8) % 3, epoch=0)


def test_a_view_has_the_classifier_of_its_model(small_net, monkeypatch):
    model, x = small_net(), torch.randn(4, 1, 8, 8)
    assert classifier_name(model) == "6"
    monkeypatch.setattr(
        "moon.evidence.head.output_layers", lambda _: pytest.fail("a view is not traced in every batch")
    )
    for _ in range(2):
        view = View(model, lambda x: 2 * model(x))
        assert classifier_name(view) == "model.6"
        assert torch.equal(look(view.eval(), x).logits, 2 * model(x))


def test_a_view_passes_keyword_arguments_on():
    view = View(nn.Identity(), lambda x: x["pixel_values"])
    assert torch.equal(view(pixel_values=torch.ones(2)), torch.ones(2))
    assert torch.equal(logits_of(view, {"pixel_values": torch.ones(2)}), torch.ones(2))


class Remembers(Objective):
    """An objective with a buffer that is created with the first batch."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.empty(0))

    def terms(self, model, x, y, *, epoch):
        self.last = x.detach().clone()
        return {"mean": model(x).mean()}


def test_a_buffer_created_with_the_first_batch_is_saved_and_loaded():
    first, second = Remembers(), Remembers()
    x, y = batch()
    first(nn.Identity(), x, y, epoch=0)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.last, x)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (lambda loss: loss.mean(), "Mine.terms must return a dict of scalars, .* not a Tensor"),
        (lambda loss: {}, "Mine.terms must return a dict of scalars, .* not an empty dict"),
        (lambda loss: {"a": 1.0}, "Mine.terms: 'a' must be a scalar tensor, not a float"),
        (lambda loss: {"a": loss}, r"Mine.terms: 'a' must be a scalar, not of shape \(8,\); take its mean"),
        (lambda loss: {"a": loss.mean().detach()}, "Mine: the loss does not depend on the model's weights"),
    ],
)
def test_what_terms_must_return(terms, message):
    class Mine(Objective):
        def terms(self, model, x, y, *, epoch):
            return terms(nn.functional.cross_entropy(model(x), y, reduction="none"))

    model, (x, y) = nn.Linear(6, 4), batch()
    with pytest.raises(ValueError, match=message):
        Mine()(model, x, y, epoch=0)


def test_a_term_may_be_a_number_beside_a_tensor():
    class Mine(CrossEntropy):
        def terms(self, model, x, y, *, epoch):
            return {"off": 0.0, **super().terms(model, x, y, epoch=epoch), "constant": 2}

    model, (x, y) = nn.Linear(6, 4), batch()
    torch.testing.assert_close(Mine()(model, x, y, epoch=0), CrossEntropy()(model, x, y, epoch=0) + 2)


def test_a_loss_may_be_computed_without_gradients():
    model, (x, y) = nn.Linear(6, 4), batch()
    expected = CrossEntropy()(model, x, y, epoch=0).detach()
    with torch.no_grad():
        assert CrossEntropy()(model, x, y, epoch=0) == expected
    assert CrossEntropy()(model.requires_grad_(False), x, y, epoch=0) == expected
