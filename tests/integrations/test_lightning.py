"""`moon.integrations.lightning` with the real package: masks, checkpoints, precision, clipping, DDP, refusals."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("lightning")
import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision

from moon import AutoWeight, DropSchedule, Moon, RigL, Vos, WeightVote, open_head
from moon.integrations.lightning import Sparse

pytestmark = [  # advice of Lightning to its users, and its own use of a deprecated class
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
]
EPOCHS = 5


class Classifier(L.LightningModule):
    """A module of somebody who knows nothing of masks; `overflows` are batches with an infinite loss."""

    def __init__(self, objective=None, overflows=()):
        super().__init__()
        torch.manual_seed(0)
        self.net = open_head(
            nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
        )
        self.objective = objective or Moon(AutoWeight(epochs=EPOCHS, quiet_epochs=2))
        self.overflows, self.batches = overflows, 0

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        x, y = batch
        self.batches += 1
        loss = self.objective(self.net, x, y, epoch=self.current_epoch)
        return loss * (torch.inf if self.batches in self.overflows else 1.0)

    def validation_step(self, batch, index):
        self.log("val", self.net(batch[0]).mean())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)}


def loader(batches=6):
    x = torch.randn(16 * batches, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    return DataLoader(TensorDataset(x, torch.arange(16 * batches) % 4), batch_size=16)


def fit(module, sparse, path, epochs=EPOCHS, ckpt_path=None, callbacks=(), val=False, **options):
    options = {"logger": False, "enable_checkpointing": bool(callbacks)} | options
    trainer = L.Trainer(
        max_epochs=epochs, callbacks=[sparse, *callbacks], default_root_dir=path, accelerator="cpu",
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0, **options,
    )  # fmt: skip
    trainer.fit(module, loader(), loader(1) if val else None, ckpt_path=ckpt_path)
    return trainer


def assert_sparse(topology):
    """Outside the masks the weight and its momentum are exactly zero."""
    assert 0.09 < topology.density() < 0.12
    for name, mask in topology.masks.items():
        weight = topology.weights[name]
        assert not weight[~mask].any()
        state = topology.optimizer.state.get(weight, {})
        assert all(not value[~mask].any() for value in state.values() if value.shape == weight.shape)


def assert_same(module, other):
    for name, value in other.state_dict().items():
        assert torch.equal(module.state_dict()[name], value), name


def by_hand(clip=None, accumulate=1):
    """The same run in a plain loop."""
    module = Classifier()
    optimizer = module.configure_optimizers()["optimizer"]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    steps = EPOCHS * 6 // accumulate
    schedule = DropSchedule(int(0.7 * steps), min(100, (int(0.7 * steps) - 1) // 5))
    topology = RigL(module.net, optimizer, 0.9, schedule)
    vote = WeightVote(module.net, topology)
    for epoch in range(EPOCHS):
        for index, (x, y) in enumerate(loader()):
            if index % accumulate == 0:
                optimizer.zero_grad()
            (module.objective(module.net, x, y, epoch=epoch) / accumulate).backward()
            if (index + 1) % accumulate:
                continue
            if clip is not None:
                topology.mask_gradients()
                clip(module.parameters())
            topology.step()
        scheduler.step()
        if epoch == EPOCHS - 1:
            vote.cast(module.net)
    module.net.load_state_dict(vote.elect(loader()).state_dict())
    return module, topology


@pytest.mark.parametrize(
    ("options", "clip", "accumulate"),
    [
        ({}, None, 1),
        ({"gradient_clip_val": 0.1}, lambda p: nn.utils.clip_grad_norm_(p, 0.1), 1),
        (
            {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value", "accumulate_grad_batches": 2},
            lambda p: nn.utils.clip_grad_value_(p, 0.01),
            2,
        ),
    ],
)
def test_fit_is_the_plain_loop(options, clip, accumulate, tmp_path):
    module, sparse = Classifier(), Sparse("rigl", 0.9, network="net")
    trainer = fit(module, sparse, tmp_path, **options)
    other, reference = by_hand(clip, accumulate)
    assert_same(module, other)
    assert sparse.topology.steps == reference.steps == trainer.global_step == EPOCHS * 6 // accumulate
    assert sparse.topology.turnover() == reference.turnover() > 0
    assert_sparse(sparse.topology)
    assert sparse.vote.voters == 1
    assert trainer.callback_metrics["w"] == 1.0
    assert trainer.callback_metrics["density"] == pytest.approx(sparse.topology.density())
    # The trainer has gone: the optimizer is an ordinary one again.
    assert not sparse.topology.is_attached
    module.net(next(iter(loader()))[0]).sum().backward()
    trainer.optimizers[0].step()
    assert sparse.topology.density() > 0.5  # filled


@pytest.mark.parametrize("network", ["net", None])
@pytest.mark.parametrize("at_epoch_end", [True, False])
def test_resuming_is_bit_identical(network, at_epoch_end, tmp_path):
    def run(folder, **options):
        keep = ModelCheckpoint(folder, "{epoch}", save_top_k=-1, save_on_train_epoch_end=at_epoch_end)
        sparse = Sparse("rigl", 0.9, network=network, vote_share=0.4)
        module = Classifier()
        fit(module, sparse, tmp_path, callbacks=[keep], val=True, **options)
        return module, sparse

    module, sparse = run(tmp_path / "whole")
    for epoch in (1, 3):  # while masks change; after the first vote
        again, other = run(tmp_path / f"from-{epoch}", ckpt_path=tmp_path / "whole" / f"epoch={epoch}.ckpt")
        assert_same(again, module)
        assert other.topology.steps == sparse.topology.steps == 30
        assert other.vote.voters == sparse.vote.voters == 2
        assert all(torch.equal(other.topology.masks[name], mask) for name, mask in sparse.topology.masks.items())
        assert_sparse(other.topology)
    written = torch.load(tmp_path / "whole" / "epoch=4.ckpt", weights_only=True)["state_dict"]
    assert not torch.equal(written["net.0.weight"], module.net[0].weight)  # the vote replaces the weights after it


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_precision(precision, tmp_path):
    sparse = Sparse("set", 0.9, network="net")
    fit(Classifier(), sparse, tmp_path, precision=precision)
    assert sparse.topology.steps == 30
    assert_sparse(sparse.topology)


def test_steps_that_the_scaler_skips_do_not_count(tmp_path):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    module, sparse = Classifier(overflows=(5, 11)), Sparse("rigl", 0.9, network="net", delta_t=4)
    changes = []
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    before = RigL._rewire

    def rewire(self, share):
        changes.append((self.steps, module.batches, all(w.grad.isfinite().all() for w in self.weights.values())))
        before(self, share)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RigL, "_rewire", rewire)
        fit(module, sparse, tmp_path, plugins=[plugin], gradient_clip_val=1.0)
    assert sparse.topology.steps == 28
    # Step 4 would have been taken with batch 5, whose gradients are infinite; it was taken with batch 6.
    assert changes == [(4, 6, True), (8, 10, True), (12, 15, True), (16, 19, True), (20, 23, True)]
    assert scaler.get_scale() == 2.0
    assert all(value.isfinite().all() for value in module.state_dict().values())
    assert_sparse(sparse.topology)


def test_weights_of_objectives_stay_dense_and_are_trained(tmp_path):
    class Plain(Classifier):
        def __init__(self):
            super().__init__(Vos(num_known=4, num_features=288, epochs=EPOCHS))
            self.net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))

    module, sparse = Plain(), Sparse("static", 0.9)
    fit(module, sparse, tmp_path, epochs=1)
    assert sparse.vote is None
    assert all(mask.all() for name, mask in sparse.topology.masks.items() if name.startswith("objective"))
    assert int((module.net[0].weight != 0).sum()) + int((module.net[4].weight != 0).sum()) == round(0.1 * 1224)


DDP = """
import sys, torch
sys.path.insert(0, {tests!r})
import test_lightning as t
import warnings; warnings.simplefilter("ignore")
module, sparse = t.Classifier(), t.Sparse("rigl", 0.9, network="net", vote_share=0.4)
trainer = t.fit(module, sparse, {path!r}, strategy="ddp", devices=2, gradient_clip_val=1.0)
state = {{"model": module.state_dict(), "masks": sparse.topology.masks, "steps": sparse.topology.steps,
         "voters": sparse.vote.voters, "world": trainer.world_size}}
torch.save(state, {path!r} + f"/rank{{trainer.global_rank}}.pt")
"""


@pytest.mark.slow
def test_ddp_has_the_same_masks_in_all_processes(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(DDP.format(tests=str(Path(__file__).parent), path=str(tmp_path)))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    assert first["steps"] == second["steps"] == 15
    assert first["voters"] == first["world"] == 2
    for part in ("model", "masks"):
        for name, value in first[part].items():
            assert torch.equal(value, second[part][name]), name
    for name, mask in first["masks"].items():
        assert not first["model"][f"net.{name}"][~mask].any()


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        ("manual", {}, "uses manual optimization, but Sparse needs automatic"),
        ("two", {}, "multiple optimizers is only supported with manual optimization"),  # says Lightning
        ("no forward", {}, r"has no forward.*Sparse\(network='net'\)"),
        ("usual", {"network": "body"}, "has no submodule 'body'; choose one of: net, objective"),
        ("usual", {"t_end_share": 0.9, "vote_share": 0.5, "network": "net"}, "the masks change until step"),
        ("usual", {"topology": "rigel"}, "unknown topology 'rigel'.*rigl"),
        ("usual", {"vote_share": 2}, "vote_share=2 must be in"),
    ],
)
def test_what_is_refused_in_one_line(module, options, message, tmp_path):
    class Manual(Classifier):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Two(Manual):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = True

        def configure_optimizers(self):
            return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.net[0], self.net[4])]

    class NoForward(Classifier):
        forward = L.LightningModule.forward

    kinds = {"manual": Manual, "two": Two, "no forward": NoForward, "usual": Classifier}
    with pytest.raises((ValueError, RuntimeError), match=message) as caught:
        fit(kinds[module](), Sparse(**options), tmp_path)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_without_masks_is_refused(tmp_path):
    fit(Classifier(), L.Callback(), tmp_path, epochs=1, callbacks=[ModelCheckpoint(tmp_path, "dense")])
    again = {"callbacks": [ModelCheckpoint(tmp_path / "again", "dense")], "ckpt_path": tmp_path / "dense.ckpt"}
    with pytest.raises(ValueError, match="would continue after 6 steps, but without masks"):
        fit(Classifier(), Sparse("rigl", 0.9, network="net"), tmp_path, **again)


def test_a_network_is_not_masked_twice(tmp_path):
    module, sparse = Classifier(), Sparse("rigl", 0.9, network="net")
    fit(module, sparse, tmp_path)
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(ValueError, match=r"already used for a training of this network.*create a new callback"):
        fit(module, sparse, tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in module.net.state_dict(prefix="net.").items())


def test_the_first_masks_may_keep_the_largest_weights(tmp_path):
    module = Classifier()
    weight = module.net[4].weight.detach().clone()
    sparse = Sparse("static", 0.9, network="net", first_mask="magnitude")
    fit(module, sparse, tmp_path, epochs=1)
    mask = sparse.topology.masks["4.weight"]
    weight, mask = weight[:4], mask[:4]  # without the unknown output, which has a share of its own
    assert weight[mask].abs().min() >= weight[~mask].abs().max()


def test_a_run_without_end_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"length of the run; give Trainer\(max_epochs"):
        fit(Classifier(), Sparse(network="net"), tmp_path, epochs=-1)


def test_the_limit_of_steps_may_end_before_the_epochs(tmp_path):
    sparse = Sparse("rigl", 0.9, network="net", vote_share=0.4)
    fit(Classifier(Moon(1.0)), sparse, tmp_path, epochs=100, max_steps=27)
    assert sparse.topology.steps == 27
    assert sparse.vote.voters == 2  # of the 5 epochs that there were


def test_an_exception_gives_the_optimizer_back(tmp_path):
    class Failing(Classifier):
        def training_step(self, batch, index):
            if self.batches == 3:
                raise RuntimeError("out of luck")
            return super().training_step(batch, index)

    sparse = Sparse("static", 0.9, network="net")
    with pytest.raises(RuntimeError, match="out of luck"):
        fit(Failing(), sparse, tmp_path)
    assert sparse.topology.steps == 3
    assert not sparse.topology.is_attached
