import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from moon import lenet, open_head, resnet18
from moon.nets.lenet import lenet_norm
from moon.objectives import EowSoftmax
from moon.objectives.eow_softmax import _last_stage, _stage, _tail

FAR = 5.0  # a value that no new chain has
LOGITS = torch.tensor([[1.0, 4.0, 3.0]]).log()  # p = 1/8, 1/2 | 3/8


@pytest.fixture
def identity_model(identity_model):
    """A model whose logits are its input, K = 2; that input is also what is sampled with layer="1"."""
    return nn.Sequential(nn.Identity(), identity_model)


def at_rest(chains, **options):
    """An objective whose chains start at FAR and do not move."""
    objective = EowSoftmax(1, steps=1, step=0.0, noise=0.0, replay=chains, **options)
    objective.replay = torch.full((chains, 3), FAR)
    return objective


def test_formula_by_hand(identity_model, monkeypatch):
    objective = EowSoftmax(epochs=15, layer="1")
    monkeypatch.setattr(objective, "sample", lambda *_: LOGITS)
    terms = objective.terms(identity_model, LOGITS, torch.tensor([1]), epoch=14)
    assert terms["cross_entropy"].item() == pytest.approx(math.log(2))
    assert terms["samples"].item() == pytest.approx(0.1 * math.log(8 / 3))


def test_one_langevin_step_by_hand():
    # The energy is log p_{K+1} up to the 1e-12, its gradient in the logits is (0, 0, 1) - p, and a step descends.
    objective = EowSoftmax(1, steps=1, step=0.8, noise=0.0, replay=1, restart=0.0)
    objective.replay = LOGITS.clone()
    sample = objective.sample(lambda h: h, LOGITS, 1)
    torch.testing.assert_close(sample, LOGITS + 0.8 * torch.tensor([[1 / 8, 1 / 2, -5 / 8]]))


def test_samples_move_to_where_p_unknown_is_low(small_net):
    model = open_head(small_net())
    objective = EowSoftmax(1, steps=20, step=1.0, noise=0.0, replay=16, restart=0.0, layer="4")
    with _tail(model, _stage(model, "4"), torch.randn(2, 1, 8, 8)) as (logits_of, like):
        objective.replay = torch.randn(16, 512)
        before = logits_of(objective.replay).softmax(1)[:, -1].sort().values
        after = logits_of(objective.sample(logits_of, like, 16)).softmax(1)[:, -1].sort().values
    assert (after < before).all()
    assert after.mean() < 0.9 * before.mean()


def test_the_noise_is_added_in_every_step():
    objective = EowSoftmax(1, steps=100, step=0.0, noise=0.1, replay=2000, restart=0.0)
    objective.replay = torch.zeros(2000, 3)
    assert objective.sample(lambda h: h, torch.zeros(1, 3), 2000).std().item() == pytest.approx(1.0, rel=0.05)


def test_only_the_chains_that_were_drawn_move():
    objective = EowSoftmax(1, steps=2, replay=10, restart=0.0)
    objective.replay = torch.arange(30.0).reshape(10, 3)
    before = objective.replay.clone()
    samples = objective.sample(lambda h: h, torch.zeros(1, 3), 4)
    moved = (objective.replay != before).any(1)
    assert moved.sum() == 4
    assert torch.equal(objective.replay[moved].sort(0).values, samples.sort(0).values)


def test_chains_restart_with_the_given_probability():
    samples = at_rest(4000, restart=0.05).sample(lambda h: h, torch.zeros(1, 3), 4000)
    restarted = (samples != FAR).all(1)
    assert restarted.float().mean().item() == pytest.approx(0.05, abs=0.015)
    assert torch.equal(samples[~restarted], torch.full((int((~restarted).sum()), 3), FAR))
    assert samples[restarted].abs().max() <= 0.1
    assert samples[restarted].min() < -0.05


def test_the_replay_buffer_may_be_smaller_than_the_batch():
    assert at_rest(2, restart=0.0).sample(lambda h: h, torch.zeros(1, 3), 5).tolist() == [[FAR] * 3] * 5


def test_the_replay_buffer_is_created_with_the_first_sample_and_saved():
    objective, other = (EowSoftmax(1, steps=1, replay=7) for _ in range(2))
    objective.sample(lambda h: h.flatten(1), torch.zeros(1, 2, 3, 3), 4)
    assert objective.replay.shape == (7, 2, 3, 3)
    other.load_state_dict(objective.state_dict())
    assert torch.equal(other.replay, objective.replay)
    before = objective.replay.clone()
    other.sample(lambda h: h.flatten(1), torch.zeros(1, 2, 3, 3), 4)
    assert (other.replay != before).flatten(1).any(1).sum() == 4  # it continues from what was loaded


def test_sampling_does_not_change_the_model(small_net):
    # layer="1" is the BatchNorm itself: every sample goes through it.
    model = open_head(small_net())
    model[5].eval()
    plain = copy.deepcopy(model)
    x, y = torch.randn(8, 1, 8, 8), torch.arange(8) % 4
    loss = cross_entropy(plain(x), y)
    terms = EowSoftmax(1, start_share=0.0, steps=2, replay=8, layer="1").terms(model, x, y, epoch=0)
    assert torch.equal(terms["cross_entropy"], loss)
    for (key, mine), its in zip(model.state_dict().items(), plain.state_dict().values(), strict=True):
        assert torch.equal(mine, its), key
    assert [part.training for part in model] == [part.training for part in plain]
    assert model.training


def test_the_loss_at_samples_is_that_of_the_network_they_are_drawn_from(monkeypatch):
    # In training mode BatchNorm would normalise samples by themselves, and the loss would be that of another network.
    model = open_head(nn.Sequential(nn.Identity(), nn.BatchNorm1d(3), nn.Dropout(0.9), nn.Linear(3, 4)))
    h = torch.randn(8, 3) + 5
    objective = EowSoftmax(epochs=1, weight=1.0, start_share=0.0, layer="1")
    monkeypatch.setattr(objective, "sample", lambda *_: h)
    term = objective.terms(model, torch.randn(8, 3), torch.arange(8) % 4, epoch=0)["samples"]
    torch.testing.assert_close(term, -model.eval()(h).log_softmax(1)[:, -1].mean())


DISTANT = torch.tensor([[100.0, 0.0, 0.0]])  # p_{K+1} = e^-100


def test_a_distant_sample_stays_where_it_is():
    objective = EowSoftmax(1, steps=5, step=1.0, noise=0.0, replay=1, restart=0.0)
    objective.replay = DISTANT.clone()
    torch.testing.assert_close(objective.sample(lambda h: h, DISTANT, 1), DISTANT)


def test_the_loss_of_a_distant_sample_has_its_whole_gradient(identity_model, monkeypatch):
    objective = EowSoftmax(epochs=1, weight=1.0, start_share=0.0, layer="1")
    monkeypatch.setattr(objective, "sample", lambda *_: DISTANT)
    term = objective.terms(identity_model, LOGITS, torch.tensor([1]), epoch=0)["samples"]
    assert term.item() == pytest.approx(100.0)
    term.backward()  # the gradient in the logits is p - (0, 0, 1)
    torch.testing.assert_close(identity_model[1].weight.grad, torch.tensor([[1.0], [0.0], [-1.0]]) * DISTANT)


def test_the_second_term_starts_in_its_epoch(identity_model):
    objective = EowSoftmax(epochs=15, steps=1, replay=4, layer="1")
    y = torch.tensor([1])
    assert set(objective.terms(identity_model, LOGITS, y, epoch=7)) == {"cross_entropy"}
    assert objective.replay.numel() == 0
    assert set(objective.terms(identity_model, LOGITS, y, epoch=8)) == {"cross_entropy", "samples"}


def test_the_default_layer_is_the_last_stage():
    model = open_head(resnet18(10))
    assert _last_stage(model) is model.layer4
    with _tail(model, _stage(model, ""), torch.zeros(2, 3, 32, 32)) as (logits_of, like):
        assert like.shape == (1, 256, 8, 8)
        assert logits_of(torch.zeros(3, 256, 8, 8)).shape == (3, 11)
    for net in (lenet(10), lenet_norm(10)):
        third = [part for part in net.body if isinstance(part, nn.Conv2d)][2]
        assert _last_stage(net) is third


class Staged(nn.Module):
    """A stage between two layers, which a connection may bypass; keeps the sizes of its batches."""

    def __init__(self, before=torch.relu, bypassed=False):
        super().__init__()
        self.first, self.stage, self.head = (nn.Linear(4, 4).double() for _ in range(3))
        self.before, self.bypassed, self.sizes = before, bypassed, []

    def forward(self, x):
        self.sizes.append(len(x))
        h = self.before(self.first(x))
        return self.head(self.stage(h) + h if self.bypassed else self.stage(h))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        (Staged(), [0]),
        (Staged(before=torch.relu_), [0]),
        (Staged(before=lambda h: h.reshape(len(h), -1)), [1]),  # -1 may be any size if the batch is empty
        (Staged(bypassed=True), [1]),
    ],
    ids=["plain", "in place", "no empty batch", "bypass"],
)
def test_what_is_before_the_stage_runs_on_an_empty_batch_or_one_image(model, sizes, count):
    x, h = torch.randn(2, 4).double(), torch.randn(count, 4).double()
    with _tail(model, model.stage, x) as (tail, _):
        model.sizes.clear()
        around = model.before(model.first(x[:1])) if model.bypassed else 0
        expected = model.head(model.stage.forward(h) + around)
        torch.testing.assert_close(tail(h), expected)
    assert model.sizes == sizes


def test_a_resnet_computes_nothing_before_its_last_stage():
    model, h = open_head(resnet18(10, width=0.125)).eval(), torch.randn(3, 32, 8, 8)
    computed = []
    with _tail(model, model.layer4, torch.randn(2, 3, 32, 32)) as (tail, _):
        for part in (model.conv1, model.layer3):
            part.register_forward_hook(lambda *values: computed.append(values[-1].numel()))
        expected = model.fc(model.avgpool(model.layer4.forward(h)).flatten(1))
        assert torch.equal(tail(h), expected)
    assert computed == [0, 0]


def test_an_invalid_layer_is_rejected(small_net):
    model = open_head(small_net())
    model.unused = nn.Linear(2, 2)
    model.forward = model[:7].forward
    x, y = torch.randn(2, 1, 8, 8), torch.tensor([0, 1])
    for layer, what in (
        ("layer9", "Sequential has no module 'layer9'"),
        ("unused", "the Linear whose input is to be sampled is not part of the forward pass"),
        ("", "no convolution after its first one"),
    ):
        with pytest.raises(ValueError, match=what):
            EowSoftmax(1, start_share=0.0, steps=1, replay=2, layer=layer)(model, x, y, epoch=0)
    with pytest.raises(ValueError, match="no module 'layer9'"):  # in the first step, not when sampling starts
        EowSoftmax(10, start_share=0.5, layer="layer9")(model, x, y, epoch=0)
    assert model.training


@pytest.mark.parametrize(
    "wrong",
    [
        {"weight": -0.1},
        {"weight": math.nan},
        {"start_share": 1.1},
        {"steps": 0},
        {"step": -1.0},
        {"noise": math.inf},
        {"replay": 0},
        {"restart": 1.1},
        {"restart": -0.1},
    ],
)
def test_invalid_arguments_are_rejected(wrong):
    with pytest.raises(ValueError, match=r"must be (at least 0 and finite, steps=.* at least 1|in \[0, 1\])"):
        EowSoftmax(10, **wrong)
