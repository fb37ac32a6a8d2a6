"""The unknown output of an `OpenHead` keeps its weights, whatever the topology drops."""

import logging

import pytest
import torch
from torch import nn

from moon import SET, AutoWeight, DropSchedule, Moon, NOfM, OpenHead, RigL, Snip, Static, open_head, uniform
from moon.sparse import Gmp, GraNet, Mest, Snfs
from moon.sparse.rows import RowGroups

WEIGHT = "3.weight"


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options)


def net(classes=20, features=32):
    torch.manual_seed(0)
    return open_head(nn.Sequential(nn.Flatten(), nn.Linear(64, features), nn.Tanh(), nn.Linear(features, classes)))


def groups(known, inputs, extra=1):
    head = OpenHead(inputs, known)
    head.out_features = known + extra
    head.weight = nn.Parameter(torch.zeros(known + extra, inputs))
    return RowGroups(head, {"weight": head.weight})


@pytest.mark.parametrize(
    ("known", "inputs", "count", "unknown"),
    [
        (100, 512, 51712, 512),  # dense
        (100, 512, 37233, 512),  # ERK at 95%
        (100, 512, 7239, 512),  # ERK at 99%
        (10, 512, 2048, 512),  # exactly a quarter
        (10, 512, 2000, 500),  # a quarter of 2000
        (10, 512, 282, 70),  # uniform at 95%
        (2, 512, 90, 30),  # its share is more than a quarter
        (10, 512, 3, 1),
        (10, 512, 1, 1),
    ],
)
def test_the_unknown_output_has_all_its_weights_or_a_quarter_of_the_layers(known, inputs, count, unknown):
    assert groups(known, inputs).divide("weight", count) == [
        (slice(known), count - unknown),
        (slice(known, None), unknown),
    ]


@pytest.mark.parametrize(("known", "inputs", "extra"), [(2, 5, 1), (10, 7, 1), (9, 3, 2)])
def test_no_group_gets_more_than_it_has_and_none_loses_if_the_layer_gains(known, inputs, extra):
    before = 0, 0
    for count in range(1, (known + extra) * inputs + 1):
        (_, of_known), (_, unknown) = groups(known, inputs, extra).divide("weight", count)
        assert of_known + unknown == count
        assert before[0] <= of_known <= known * inputs
        assert max(1, before[1]) <= unknown <= extra * inputs
        before = of_known, unknown
    assert before == (known * inputs, extra * inputs)


def test_other_layers_are_one_group():
    model = net()
    assert RowGroups(model, {"1.weight": model[1].weight}).divide("1.weight", 7) == [(slice(None), 7)]


@pytest.mark.slow
def test_training_with_moon_connects_the_unknown_output():
    """Without its own group, RigL leaves it 0 or 1 of 48 weights, while the median of the other rows is above 10."""
    task = torch.Generator().manual_seed(0)
    centres = torch.randn(50, 16, generator=task)
    model = open_head(nn.Sequential(nn.Linear(16, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 50)))
    optimizer, objective = sgd(model, weight_decay=5e-3), Moon(AutoWeight(epochs=10, final=2.0))
    topology = RigL(model, optimizer, 0.7, DropSchedule(450, 30), uniform)
    for epoch in range(10):
        for _ in range(60):
            y = torch.randint(50, (64,), generator=task)
            x = centres[y] + torch.randn(64, 16, generator=task)
            optimizer.zero_grad()
            objective(model, x, y, epoch=epoch).backward()
            topology.step()
    mask = topology.masks[WEIGHT]
    assert mask[-1].all()
    assert mask[:-1].sum(1).median() > 10
    assert topology.density() == pytest.approx(0.3, abs=1e-3)
    z = model.eval()(torch.randn(100, 16, generator=task))[:, -1]
    assert z.std() > 0.01  # not constant


def train(kind, sparsity, dense=(), steps=8, **options):
    model = net()
    topology = kind(model, sgd(model), sparsity, dense=dense, **options)
    for number in range(steps):
        generator = torch.Generator().manual_seed(number)
        x, y = torch.randn(16, 64, generator=generator), torch.randint(20, (16,), generator=generator)
        topology.optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        topology.step()
    return topology


@pytest.mark.parametrize("kind", [Static, SET, RigL, Mest, Snfs, Gmp, GraNet, Snip])
def test_nothing_changes_if_the_classifier_is_dense(kind, monkeypatch):
    options = {"schedule": DropSchedule(7, 2)} if kind.rewires else {}
    options |= {"dense": [WEIGHT]} if kind is Snip else {"allocation": lambda *_: {"1.weight": 0.4, WEIGHT: 1.0}}
    now = train(kind, 0.5, **options)
    monkeypatch.setattr(RowGroups, "divide", lambda self, name, count: [(slice(None), count)])
    before = train(kind, 0.5, **options)
    assert now.masks[WEIGHT].all()
    for key, weight in now.weights.items():
        assert torch.equal(weight, before.weights[key])
        assert torch.equal(now.masks[key], before.masks[key])


@pytest.mark.parametrize("kind", [Static, RigL])
def test_a_pattern_gives_every_row_its_share(kind):
    options = {"schedule": DropSchedule(7, 2)} if kind.rewires else {}
    topology = train(kind, 0.5, pattern=NOfM(2, 4), **options)
    assert (topology.masks[WEIGHT].view(21, 8, 4).sum(2) == 2).all()


def test_a_layer_with_few_weights_warns_and_still_connects_the_unknown_output(caplog):
    with caplog.at_level(logging.WARNING):
        topology = train(RigL, 0.95, schedule=DropSchedule(7, 2), allocation=uniform)
    assert caplog.messages[-1] == (
        "the unknown output of '3.weight' keeps 8 of its 32 weights, because the layer keeps only 34; for all of them "
        "choose a lower sparsity, another allocation, or name the weight in `dense`"
    )
    assert topology.masks[WEIGHT][-1].sum() == 8
    assert topology.counts[WEIGHT] == topology.masks[WEIGHT].sum() == 34


def test_it_holds_for_the_classifier_of_any_model():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.output = nn.Linear(8, 16), nn.Linear(16, 30)

        def forward(self, x):
            return self.output(self.body(x).relu())

    model = nn.Sequential(open_head(Own(), "output"))  # wrapped
    topology = Static(model, sgd(model), 0.8)
    assert topology.masks["0.output.weight"][-1].all()
    assert not topology.masks["0.output.weight"].all()
    assert topology.density() == pytest.approx(0.2, abs=0.01)
    closed = nn.Linear(16, 31)
    assert not Static(closed, sgd(closed), 0.8).masks["weight"][-1].all()


class Pairs:
    """A pattern of one's own: the weights of two neighbouring inputs are non-zero together."""

    def densities(self, shapes, sparsity, allocation):
        return allocation(shapes, sparsity)

    def fill(self, kept, scores, counts, ties=None):
        masks = []
        for mask, score, count in zip(kept, scores, counts, strict=True):
            pairs = torch.where(mask, torch.inf, score).view(-1, 2).sum(1)
            chosen = torch.zeros_like(pairs, dtype=torch.bool)
            chosen[pairs.topk((int(mask.sum()) + count) // 2).indices] = True
            masks.append(chosen.repeat_interleave(2).view(mask.shape))
        return masks


@pytest.mark.parametrize("kind", [RigL, Snip])
def test_the_unknown_output_keeps_its_weights_with_a_pattern_of_ones_own(kind):
    model = net()
    schedule = {"schedule": DropSchedule(20, 2)} if kind.rewires else {}
    topology = kind(model, sgd(model), 0.9, allocation=uniform, pattern=Pairs(), **schedule)
    for _ in range(8):
        model.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(8, 64)), torch.randint(20, (8,))).backward()
        topology.step()
    assert int(topology.masks[WEIGHT][20].sum()) >= 16
