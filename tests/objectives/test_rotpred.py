import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from moon import (
    DropSchedule,
    LogitNorm,
    Mixup,
    Moon,
    OutlierExposure,
    RegMixup,
    RigL,
    RotPred,
    Vos,
    WeightVote,
    open_head,
    rotation_head,
)
from moon.evidence import rotated
from moon.objectives.logitnorm import normalised


def images(count=8):
    return torch.randn(count, 1, 8, 8), torch.arange(count) % 4


def corners():
    """A model whose four features are the corners of a 2x2 image; its rotation head returns them as they are."""
    model = rotation_head(nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False)))
    with torch.no_grad():
        model[1].weight.copy_(torch.eye(2, 4))
        model[1].rotation.weight.copy_(torch.eye(4))
        model[1].rotation.bias.zero_()
    return model


def test_formula_by_hand():
    # The image [[a, 0], [0, 0]] turned counter-clockwise: its bright corner moves from top left (feature 0) to bottom
    # left (2), bottom right (3) and top right (1). The head takes feature r for r quarter turns.
    x, y, a = torch.tensor([[[[2.0, 0.0], [0.0, 0.0]]]]), torch.tensor([1]), 2.0
    terms = RotPred(rotation_weight=0.5)(corners(), x, y, epoch=0), RotPred().terms(corners(), x, y, epoch=0)
    log_sum = math.log(math.exp(a) + 3)
    right, wrong = log_sum - a, log_sum  # -log q of the bright corner and of the others
    rotation = (right + wrong + wrong + wrong) / 4  # turns 0, 1, 2, 3 are at the corners 0, 2, 3, 1
    assert terms[1]["rotation"].item() == pytest.approx(rotation)
    assert terms[1]["cross_entropy"].item() == pytest.approx(math.log(1 + math.exp(a)))  # only the upright image
    assert terms[0].item() == pytest.approx(math.log(1 + math.exp(a)) + 0.5 * rotation)


def test_all_four_rotations_have_the_same_weight(small_net):
    model, (x, y) = rotation_head(small_net()).eval(), images()
    loss = RotPred().terms(model, x, y, epoch=0)["rotation"]
    every = torch.cat([x, *rotated(x)])
    turns = torch.arange(4).repeat_interleave(len(x))
    torch.testing.assert_close(loss, cross_entropy(model[6].rotation(model[:6](every)), turns))


@pytest.mark.parametrize("copies", [1, 2])
def test_fewer_copies_have_the_same_expectation(copies, small_net):
    model, (x, y) = rotation_head(small_net()).eval(), images()
    with torch.no_grad():
        model[6].rotation.weight *= 20
        expected = RotPred().terms(model, x, y, epoch=0)["rotation"].item()
        found = [RotPred(copies=copies).terms(model, x, y, epoch=0)["rotation"].item() for _ in range(2000)]
    deviation = torch.tensor(found).std().item()
    assert deviation > 0.01
    assert sum(found) / len(found) == pytest.approx(expected, abs=5 * deviation / math.sqrt(len(found)))


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_copies_are_different_rotations_of_each_image(copies):
    x = torch.randn(50, 3, 4, 4)
    found, turns = RotPred(copies=copies).rotated_copies(x)
    assert found.shape == (50 * copies, 3, 4, 4)
    for index, (image, turn) in enumerate(zip(found, turns, strict=True)):
        assert torch.equal(image, x[index % 50].rot90(int(turn), (1, 2)))
    assert set(turns.tolist()) == {1, 2, 3}
    assert all(len(set(turns.view(copies, 50)[:, index].tolist())) == copies for index in range(50))
    assert RotPred(copies=copies).step_inputs(x).shape == (50 * (1 + copies), 3, 4, 4)


def test_the_head_learns_and_the_classifier_sees_only_upright_images(small_net):
    model, (x, y) = rotation_head(small_net()), images()
    terms = RotPred().terms(model, x, y, epoch=0)
    weights = model[6].weight, model[6].rotation.weight, model[0].weight
    by_class = torch.autograd.grad(terms["cross_entropy"], weights, retain_graph=True, allow_unused=True)
    by_rotation = torch.autograd.grad(terms["rotation"], weights, allow_unused=True)
    assert by_class[1] is None
    assert by_rotation[0] is None
    assert all(gradient.abs().sum() > 0 for gradient in (by_class[0], by_class[2], *by_rotation[1:]))


def test_it_is_computed_around_other_objectives(small_net):
    model, (x, y) = rotation_head(open_head(small_net())).eval(), images()
    terms = RotPred(inner=LogitNorm(0.1, Moon(0.7))).terms(model, x, y, epoch=0)
    assert list(terms) == ["unknown_aware", "rotation"]
    torch.testing.assert_close(terms["unknown_aware"], Moon(0.7).loss(normalised(model(x), 0.1), y, epoch=0))
    assert RotPred(inner=Moon(0.7)).log(0) == {"w": 0.7}
    for inner in (Mixup(), RegMixup()):  # they change the upright images
        terms = RotPred(inner=inner).terms(model, x, y, epoch=0)
        assert terms["rotation"].isfinite()
    with pytest.raises(ValueError, match="Vos cannot be an inner objective"):
        RotPred(inner=Vos(4, 16, 10)).terms(model, x, y, epoch=0)


def test_outliers_and_blends_are_not_upright_images(small_net):
    model, (x, y) = rotation_head(small_net()).eval(), images()
    alone = RotPred().terms(model, x, y, epoch=0)["rotation"]
    for inner in (OutlierExposure(lambda count: (torch.randn(count, 1, 8, 8), torch.zeros(count).long())), RegMixup()):
        torch.testing.assert_close(RotPred(inner=inner).terms(model, x, y, epoch=0)["rotation"], alone)


def test_the_answers_do_not_depend_on_the_head(small_net):
    model, (x, _) = small_net(), images()
    expected = model.eval()(x)
    assert rotation_head(model) is model
    assert torch.equal(model(x), expected)


def test_masks_and_votes_include_the_head(small_net):
    model = rotation_head(small_net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    topology = RigL(model, optimizer, 0.8, DropSchedule(t_end=2, delta_t=1))
    assert "6.rotation.weight" in topology.masks
    assert topology.density() == pytest.approx(0.2, abs=0.01)
    vote = WeightVote(model, topology)
    weights = []
    for step in range(6):
        optimizer.zero_grad()
        RotPred()(model, *images(), epoch=step).backward()
        topology.step()
        if step > 3:
            vote.cast(model)
            weights.append(model[6].rotation.weight.detach().clone())
    elected = vote.elect([images()])
    torch.testing.assert_close(elected[6].rotation.weight, sum(weights) / 2)


def test_what_it_cannot_use_is_rejected(small_net):
    x, y = images()
    with pytest.raises(ValueError, match=r"Sequential has no rotation head; .*rotation_head\(model\)"):
        RotPred()(small_net(), x, y, epoch=0)
    with pytest.raises(ValueError, match=r"shape \(N, C, size, size\), not \(8, 1, 8, 4\)"):
        RotPred()(rotation_head(small_net()), x[..., :4], y, epoch=0)
    with pytest.raises(ValueError, match="must be 1, 2 or 3, not 4"):
        RotPred(copies=4)
    with pytest.raises(ValueError, match="rotation_weight must be at least 0"):
        RotPred(rotation_weight=-1.0)
