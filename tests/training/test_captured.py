"""Captured steps compute the same as plain ones. On a CPU the same code runs without a graph."""

import copy
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from moon.data import BENCHMARKS
from moon.evidence import OpenHead
from moon.fast import FlatBuffers, layers_on_buffers, write_addresses
from moon.fast.update import launch_update
from moon.objectives import OBJECTIVES, CrossEntropy, OutlierExposure
from moon.recipe import build, make_recipe
from moon.recipe.registry import pick
from moon.sparse import TOPOLOGIES, Dense, DropSchedule, RigL
from moon.timing import noise
from moon.training import Training, captured as captured_module
from moon.training.captured import CapturedSteps, CaptureFailed, capture_obstacle
from moon.training.plain import PlainSteps

BENCHMARK = BENCHMARKS["digits"]
SMALL = {"queue": 64, "draws": 50, "quiet_epochs": 1, "steps": 2, "replay": 40}


def training(
    objective="moon", topology="rigl", captured=None, net="lenet-norm", dtype=torch.float64, epochs=4, teachers=""
):
    """A run with 4 steps per epoch on random images, the last batch smaller than the others."""
    takes = pick("objective", objective).takes()
    outliers = noise(BENCHMARK, 40, seed=1) if "outliers" in takes else None
    recipe = make_recipe(
        BENCHMARK, objective, topology=topology, net=net, options={k: v for k, v in SMALL.items() if k in takes},
        outliers="" if outliers is None else "noise", epochs=epochs, batch_size=16, delta_t_steps=3, vote_share=0,
        teachers=teachers,
    )  # fmt: skip
    torch.set_default_dtype(dtype)
    try:
        run = build.training(recipe, BENCHMARK, noise(BENCHMARK, 56), "cpu", outliers)
    finally:
        torch.set_default_dtype(torch.float32)
    run.captured = captured
    original = run.batches.epoch
    run.batches.epoch = lambda epoch: ((x.to(dtype), y) for x, y in original(epoch))
    return run


def losses(run, steps=None):
    """The loss of each step of a run; checks that steps are captured if `captured` is True."""
    found = []
    run.run(on_step=lambda epoch, step, loss: found.append(loss()))
    assert run.capture_obstacle is None
    assert run.is_captured is bool(run.captured)
    assert steps is None or len(found) == steps
    return found


def check_same(plain, fast, tolerance):
    """Check that both runs have the same losses, weights, momentum buffers and masks."""
    expected, found = losses(plain), losses(fast)
    assert len(expected) == len(found) == 4 * plain.epochs
    assert len(set(expected)) == len(expected)
    assert found == pytest.approx(expected, rel=tolerance)
    for a, b in zip(plain.model.state_dict().values(), fast.model.state_dict().values(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=100 * tolerance)
    for a, b in zip(plain.optimizer.state.values(), fast.optimizer.state.values(), strict=True):
        assert torch.allclose(a["momentum_buffer"], b["momentum_buffer"], rtol=0, atol=100 * tolerance)
    for name, mask in plain.topology.masks.items():
        assert torch.equal(mask, fast.topology.masks[name]), name
        assert not fast.topology.weights[name][~mask].any(), name
    assert plain.topology.steps == fast.topology.steps


@pytest.mark.parametrize("name", [name for name, kind in OBJECTIVES.items() if kind.capturable])
@pytest.mark.slow
def test_every_objective_has_the_same_steps(name, untrained_run):
    teachers = str(untrained_run()) if "teachers" in OBJECTIVES[name].takes() else ""
    check_same(
        training(name, captured=False, teachers=teachers), training(name, captured=True, teachers=teachers), 1e-9
    )


@pytest.mark.slow
def test_composed_objectives_have_the_same_steps(untrained_run):
    teachers = f"{untrained_run(objective='moon-logitnorm')},{untrained_run(seed=1)}"
    name = "rotpred+logitnorm+distill+moon"
    plain, fast = (training(name, captured=captured, teachers=teachers) for captured in (False, True))
    check_same(plain, fast, 1e-9)


@pytest.mark.parametrize("name", [name for name in TOPOLOGIES if name != "sup-tickets"])
@pytest.mark.slow
def test_every_topology_has_the_same_steps(name):
    check_same(training(topology=name, captured=False), training(topology=name, captured=True), 1e-9)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available() or find_spec("triton") is None, reason="needs interpreted kernels")
@pytest.mark.parametrize("name", ["dense", "rigl", "snip", "snfs"])
def test_topologies_have_the_same_steps_with_the_update_kernel(name, monkeypatch):
    """The GPU kernel, interpreted. It does not write to masked weights."""

    def update(buffers, gradients):
        write_addresses(buffers, gradients)
        launch_update(buffers, gradients, 0, len(gradients.addresses))

    plain, fast = (training(topology=name, captured=captured, dtype=torch.float32) for captured in (False, True))
    monkeypatch.setattr(captured_module, "sgd_update", update)
    assert losses(fast) == pytest.approx(losses(plain), rel=1e-3)
    for name, mask in fast.topology.masks.items():
        assert not fast.topology.weights[name][~mask].any(), name


@pytest.mark.skipif(torch.cuda.is_available() or find_spec("triton") is None, reason="needs triton and a CPU")
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_compiling_kernels_before_a_capture_changes_nothing(precision):
    run = training(captured=True, dtype=torch.float32)
    run.setup.precision = precision
    steps = CapturedSteps(run.setup)
    x, y = next(iter(run.batches.epoch(0)))

    def state():
        parts = {"model": run.model.state_dict(), "objective": dict(run.objective.named_buffers())}
        parts["masks"] = run.topology.masks
        parts["momentum"] = {str(i): momentum(run, p) for i, (_, p) in enumerate(parameters(run))}
        return {(part, name): tensor.clone() for part, tensors in parts.items() for name, tensor in tensors.items()}

    before = state()
    with captured_module._unchanged((run.model, run.objective), run.setup.device):
        steps._compile_kernels(x, y)
    after = state()
    assert after.keys() == before.keys()
    for name, old in before.items():
        assert torch.equal(after[name].nan_to_num(7), old.nan_to_num(7)), name
    assert run.objective.weight.beta.isnan()


def test_the_update_uses_gradients_that_a_topology_changed():
    plain, fast = (training(captured=captured) for captured in (False, True))
    for run in (plain, fast):
        run.topology.__class__ = CustomChange
    check_same(plain, fast, 1e-9)


@pytest.mark.slow
def test_a_residual_network_has_the_same_steps():
    plain, fast = (training(net="resnet18", epochs=2, captured=captured) for captured in (False, True))
    check_same(plain, fast, 1e-7)


def test_plain_steps_resume_from_captured_ones_and_vice_versa():
    expected = losses(training(captured=False))
    for first, second in ((False, True), (True, False)):
        stopped, resumed = training(captured=first), training(captured=second)

        class Stop(Exception):
            pass

        def stop(record):
            if record["epoch"] == 1:
                raise Stop

        with pytest.raises(Stop):
            stopped.run(on_epoch=stop)
        resumed.load_state_dict(copy.deepcopy(stopped.state_dict()))
        assert losses(resumed) == pytest.approx(expected[8:], rel=1e-9)


class Custom(CrossEntropy):
    """An objective of another package."""


class CustomDeclared(CrossEntropy):
    capturable = True


class CustomGrowth(RigL):
    """A topology with another grow score."""

    def grow_score(self, weight, grad):
        return grad.abs() + 1


class CustomChange(RigL):
    """A topology that changes gradients before the update."""

    def change(self):
        for weight in self.weights.values():
            weight.grad.mul_(0.5)
        return super().change()


class CustomStep(RigL):
    def step(self):
        super().step()


class CustomEnforce(RigL):
    def _enforce(self):
        super()._enforce()


class CustomNet(nn.Sequential):
    pass


class CustomDraw:
    def __call__(self, count):
        raise AssertionError("not called")


def hooked():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    model[1].register_forward_hook(lambda *_: None)
    return model


def with_weight_hook():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    model[1].weight.register_hook(lambda grad: grad.clamp(-1, 1))
    return model


def with_gaps():
    layer = nn.Linear(64, 4)
    layer.weight = nn.Parameter(torch.randn(4, 128)[:, :64])
    return nn.Sequential(nn.Flatten(), layer)


class Adversarial(CrossEntropy):
    """An objective that computes the gradient of the images before the loss."""

    capturable = True

    def terms(self, model, x, y, *, epoch):
        x = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(super().terms(model, x, y, epoch=epoch)["cross_entropy"], x)
        return super().terms(model, x.detach() + 0.1 * grad.sign(), y, epoch=epoch)


class Late(CrossEntropy):
    """An objective whose second term starts in epoch 2, without a `phase`."""

    capturable = True

    def terms(self, model, x, y, *, epoch):
        started = self.has_started(epoch, 2)
        terms = super().terms(model, x, y, epoch=epoch)
        return terms | {"late": started * model(x).square().mean()}


def with_parts(objective=None, topology=None, model=None, optimizer=torch.optim.SGD):
    model = model or nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    optimizer = optimizer(model.parameters(), lr=0.1)
    run = training()
    topology = Dense(optimizer) if topology is None else topology(model, optimizer, 0.5, DropSchedule(9, 2))
    return Training(model, optimizer, objective or CrossEntropy(), topology, lambda _: 0.1, run.batches, epochs=2)


@pytest.mark.parametrize(
    ("parts", "obstacle"),
    [
        ({}, None),
        ({"objective": Custom()}, "Custom does not declare"),
        ({"objective": CustomDeclared()}, None),
        ({"topology": CustomGrowth}, None),
        ({"topology": CustomStep}, "CustomStep overrides"),
        ({"topology": CustomEnforce}, "CustomEnforce overrides"),
        ({"objective": OutlierExposure(CustomDraw())}, "CustomDraw does not declare"),
        ({"objective": OutlierExposure(lambda count: None)}, "<lambda> does not declare"),
        ({"model": hooked()}, "Linear has hooks"),
        ({"model": with_weight_hook()}, "a parameter has hooks"),
        ({"model": with_gaps()}, "gaps in memory"),
        ({"model": CustomNet(nn.Linear(4, 4))}, "CustomNet does not declare"),
        ({"optimizer": torch.optim.AdamW}, "only SGD"),
    ],
)
def test_code_of_other_packages_is_captured_only_if_it_declares_so(parts, obstacle):
    found = capture_obstacle(with_parts(**parts).setup)
    assert (found is None) if obstacle is None else (obstacle in found)


@pytest.mark.parametrize("kind", [Adversarial, Late])
@pytest.mark.slow
def test_a_custom_objective_that_declares_so_has_the_same_steps(kind):
    plain, fast = (training("cross-entropy", captured=captured) for captured in (False, True))
    plain.setup.objective, fast.setup.objective = kind(), kind()
    check_same(plain, fast, 1e-9)


def test_the_objective_sees_the_epoch_on_the_device_and_its_phase_on_the_host():
    """A branch that `phase` separates is decided in Python, any other is a tensor."""
    decisions = []

    class Phased(Late):
        capturable = True

        def phase(self, epoch):
            return epoch >= 2

        def terms(self, model, x, y, *, epoch):
            decisions.append((self.has_started(epoch, 2), CrossEntropy().has_started(epoch, 2)))
            return super().terms(model, x, y, epoch=epoch)

    run = training("cross-entropy", captured=True)
    run.setup.objective = Phased()
    losses(run, 16)
    assert [decided for decided, _ in decisions] == [False] * 8 + [True] * 8
    assert all(isinstance(computed, torch.Tensor) for _, computed in decisions)
    assert [bool(computed) for _, computed in decisions] == [False] * 8 + [True] * 8


def test_a_state_can_be_loaded_between_steps():
    batch = next(iter(training().batches.epoch(0)))
    batches = [(batch[0], batch[1], 3, 0.05)] * 3
    found = []
    for captured in (False, True):
        run = training(captured=captured)
        run.model.train()
        run.begin()
        kept = copy.deepcopy(run.state_dict())
        for step in batches:
            run.step(*step)
        run.load_state_dict(kept)
        found.append([run.step(*step).item() for step in batches])
    assert found[1] == pytest.approx(found[0], rel=1e-9)


def test_the_open_head_uses_the_buffers_and_a_layer_that_overrides_forward_does_not():
    class Doubled(nn.Linear):
        def forward(self, input):
            return 2 * super().forward(input)

    class DoubledHead(OpenHead):
        def forward(self, input):
            return 2 * super().forward(input)

    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 16), Doubled(16, 16), OpenHead(16, 10), DoubledHead(11, 10))
    buffers = FlatBuffers(torch.optim.SGD(model.parameters(), lr=0.1), {}, None)
    with layers_on_buffers(model), buffers.step() as gradients:
        loss = model(torch.randn(4, 1, 28, 28)).square().sum()
        with buffers.collect_gradients():
            loss.backward()
    assert set(gradients.separate) == {p for layer in (model[1], model[3]) for p in layer.parameters()}
    assert model[2].weight.grad.any()
    assert model[4].weight.grad.any()
    assert not gradients.missing


def test_other_code_may_change_gradients_between_epochs():
    plain, fast = (training(captured=captured) for captured in (False, True))
    for run in (plain, fast):
        run.run(on_epoch=lambda _, run=run: run.model.zero_grad())
    for a, b in zip(plain.model.parameters(), fast.model.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-7)


def test_frozen_weights_do_not_change():
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10)).double()
    model[1].weight.requires_grad_(False)
    frozen = model[1].weight.clone()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    topology = RigL(model, optimizer, 0.5, DropSchedule(9, 2), dense=("1.weight",))
    batches = training("cross-entropy").batches
    run = Training(model, optimizer, CrossEntropy(), topology, lambda _: 0.1, batches, epochs=3, captured=True)
    run.run()
    assert torch.equal(model[1].weight, frozen)
    assert (model[3].weight == 0).double().mean() == 0.5


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
of_the_compiler = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute")


def small_run(name, device, captured, monkeypatch, epochs=3):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    takes = OBJECTIVES[name].takes()
    options = {key: value for key, value in SMALL.items() if key in takes}
    net = "resnet18" if device == "cuda" else "lenet-norm"
    recipe = make_recipe(
        BENCHMARK,
        name,
        net=net,
        options=options,
        epochs=epochs,
        batch_size=16,
        delta_t_steps=3,
        vote_share=0,
        lr_start=0.001,
    )
    run = build.training(recipe, BENCHMARK, noise(BENCHMARK, 56), device)
    run.captured = captured
    return run


@on_a_gpu
@of_the_compiler
@pytest.mark.parametrize("name", ["moon", "vos", "eow-softmax", "mixup", "rotpred", "t2fnorm"])
def test_on_a_gpu_captured_steps_start_like_plain_ones(name, monkeypatch):
    """Consecutive steps. The fourth loss differs as much as in plain steps if the last bits of their weights change."""
    expected, found = (losses(small_run(name, "cuda", captured, monkeypatch), 3 * 4) for captured in (False, True))
    assert found[:2] == pytest.approx(expected[:2], rel=1e-5)
    assert found[:4] == pytest.approx(expected[:4], rel=1e-3)
    assert found == pytest.approx(expected, rel=0.1)  # plain steps differ from themselves by 5% (docs/LOG.md)


on_both = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_a_gpu)])


@of_the_compiler
@on_both
@pytest.mark.parametrize("name", ["moon", "vos", "eow-softmax", "mixup"])
@pytest.mark.slow
def test_the_best_captured_step_of_each_kind_equals_the_plain_one_up_to_rounding(name, device, monkeypatch):
    """An error of the method is in all steps of a kind, also in those in which no input of a ReLU changes its sign."""
    plain, fast = (small_run(name, device, captured, monkeypatch, epochs=8) for captured in (False, True))
    convolutions = [name for name, part in plain.model.named_modules() if isinstance(part, nn.Conv2d)]
    biases = {f"{name}.bias" for name in convolutions}  # before BatchNorm: their gradients are only rounding errors
    errors: dict[object, list[float]] = {}
    for kinds, changes in step_by_step(plain, fast):
        for (name, what), (old, one, other) in changes.items():
            rounding = 1.2e-7 * old.abs().mean()  # of the weight itself
            beyond = ((one - other).abs().mean() - rounding).clamp(min=0) / one.abs().mean().clamp(min=1e-30)
            for kind in kinds if name not in biases else ():
                errors.setdefault((kind, name, what), []).append(beyond.item())
    assert {kind[0] for kind, *_ in errors} == {"due", "phase", "batch"}
    for what, values in errors.items():
        assert len(values) >= 3, what
        assert torch.tensor(values).min() <= 2e-5, what  # not Python's min, which may skip a NaN


def step_by_step(plain, fast):
    """Take every step twice from the same state, plain and captured, and check losses, masks and buffers.

    Yields the kinds of the step and, by parameter name and quantity, the old weight, the plain result and the captured
    one. Masks may differ in a few weights with nearly equal scores; these are left out of the results.
    """
    for run in (plain, fast):
        run.model.train()
        run.begin()
        assert run.is_captured is run.captured
    rewired = 0
    for epoch in range(plain.epochs):
        for x, y in plain.batches.epoch(epoch):
            copy_state(plain, fast)
            masks = {name: mask.clone() for name, mask in plain.topology.masks.items()}
            before = [p.detach().clone() for _, p in parameters(plain)]
            seed, losses = plain.topology.steps, []
            usual = [("phase", plain.objective.phase(epoch)), ("batch", len(x))]
            kinds = [("due", True)] if plain.topology.is_due else usual  # due: perhaps only masks change
            for run in (plain, fast):
                torch.manual_seed(seed)
                losses.append(run.step(x, y, epoch, 0.05).item())
            assert losses[1] == pytest.approx(losses[0], rel=1e-4)
            rewired += any(not torch.equal(mask, plain.topology.masks[name]) for name, mask in masks.items())
            yield kinds, changes_of(plain, fast, before)
    assert rewired >= 2


def copy_state(plain, fast):
    """Copy the state of plain steps to captured ones in place, so that no step has to be captured again."""
    with torch.no_grad():
        for (_, a), (_, b) in zip(parameters(plain), parameters(fast), strict=True):
            b.copy_(a)
            momentum(fast, b).copy_(momentum(plain, a))
        for name, mask in plain.topology.masks.items():
            fast.topology.masks[name].copy_(mask)
        for a, b in buffers(plain, fast):
            b.copy_(a)
    fast.topology.steps = plain.topology.steps
    fast._steps.refresh()


def parameters(run):
    return [*run.model.named_parameters(), *run.objective.named_parameters()]


def momentum(run, parameter):
    return run.optimizer.state[parameter].get("momentum_buffer", torch.zeros_like(parameter))


def buffers(plain, fast):
    for part in ("model", "objective"):
        ours, theirs = dict(getattr(plain, part).named_buffers()), dict(getattr(fast, part).named_buffers())
        for name, buffer in ours.items():
            if buffer.shape == theirs[name].shape:  # some are created in the first step
                yield buffer, theirs[name]


def changes_of(plain, fast, before):
    differ = {name: mask != fast.topology.masks[name] for name, mask in plain.topology.masks.items()}
    assert sum(int(m.sum()) for m in differ.values()) <= 1e-4 * sum(m.numel() for m in differ.values())
    for a, b in buffers(plain, fast):
        assert torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-5, equal_nan=True)
    found = {}
    for (name, a), (_, b), old in zip(parameters(plain), parameters(fast), before, strict=True):
        shared = ~differ[name] if name in differ else torch.ones_like(a, dtype=torch.bool)
        pairs = {"change": (a - old, b - old), "momentum": (momentum(plain, a), momentum(fast, b))}
        for what, pair in pairs.items():
            found[name, what] = tuple(tensor.detach()[shared] for tensor in (old, *pair))
    return found


def test_the_reason_for_plain_steps_is_logged(caplog):
    run = training("cross-entropy")
    caplog.set_level("INFO", logger="moon")
    caplog.clear()
    run.setup.objective = Custom()
    run.begin()
    assert not caplog.messages  # on a CPU nothing is captured by default
    run.captured = True
    with pytest.raises(ValueError, match=r"cannot be captured: .*Custom does not declare"):
        run.run()
    run.captured, run.setup.device = None, torch.device("cuda")
    run.begin()
    assert len(caplog.messages) == 1
    assert "Custom does not declare" in caplog.messages[0]
    assert "Custom does not declare" in run.capture_obstacle
    assert isinstance(run._steps, PlainSteps)


def test_plain_steps_replace_captured_ones_if_capturing_fails(monkeypatch, caplog):
    """The failed step is repeated, so that no step is lost."""
    caplog.set_level("INFO", logger="moon")
    expected = losses(training(captured=False))
    step, calls = CapturedSteps.step, []

    def fail_once(self, *batch):
        calls.append(batch)
        if len(calls) == 3:
            raise CaptureFailed("out of memory")
        return step(self, *batch)

    monkeypatch.setattr(CapturedSteps, "step", fail_once)
    run, found = training(captured=True), []
    run.begin()
    run.captured = None  # as on a GPU: steps are captured where possible
    monkeypatch.setattr(run, "begin", lambda: None)
    run.run(on_step=lambda epoch, step, loss: found.append(loss()))
    assert found == pytest.approx(expected, rel=1e-9)
    assert len(calls) == 3
    assert run.capture_obstacle == "out of memory"
    assert not run.is_captured
    assert "steps are not captured, which is slower: out of memory" in caplog.messages


def test_weights_have_their_own_memory_after_the_run():
    run = training(captured=True)
    losses(run)
    sizes = {parameter.untyped_storage().nbytes() for parameter in run.model.parameters()}
    assert max(sizes) == max(p.numel() * p.element_size() for p in run.model.parameters())
