from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from moon import Energy, Odin, OpenHead, Scaled
from moon.data import BENCHMARKS, DataSet, open_set, save
from moon.data.benchmarks import default_preset
from moon.detect import DETECTORS
from moon.objectives import OBJECTIVES
from moon.recipe import Recipe, build, make_recipe, pick, table
from moon.recipe.variants import Variant
from moon.score.auto import check_names
from moon.sparse import TOPOLOGIES

DIGITS = BENCHMARKS["digits"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"epochs": 5, "options": {"quiet_epochs": 5}}, "quiet_epochs"),
        ({"lr_start": -1.0}, "learning rates must be"),
        ({"lr_start": float("nan")}, "lr_start must be finite"),
        ({"epochs": 5, "warmup": 5}, "warmup=5 epochs must be at least 0 and below epochs=5"),
        ({"objective": "mooon"}, "unknown objective 'mooon' .did you mean 'moon'"),
        ({"allocation": "xyz"}, "unknown allocation 'xyz'; choose from: erk, uniform"),
        ({"rates": "fast"}, "unknown learning rates 'fast'; choose from: plain, moon, tickets"),
        ({"options": {"finale": "2"}}, "objective 'moon' has no option 'finale' .did you mean 'final'"),
        ({"options": {"final": "much"}}, "option 'final' of 'moon' must be of type float, not 'much'"),
        ({"objective_options": "final"}, "options must map names to values, such as {'final': 2.0}, not 'final'"),
        ({"lr_end": 0.1}, "lr_end follows from the learning-rate schedule"),
        ({"objective": "hod"}, "trains with images of no known class; name a set of them"),
        ({"objective": "moon", "outliers": "photos"}, "takes no outliers"),
        ({"objective": "vos", "options": {"queue": "1"}}, "queue=1 at least 2"),
        ({"pattern": "2-4"}, "unknown pattern '2-4' .did you mean '2:4'"),
        ({"pattern": "4:4"}, "n of m weights with 1 <= n < m"),
        ({"pattern": "2:4", "sparsity": 0.9}, "sparsity 0.9 is not possible with 2 of 4"),
        ({"pattern": "2:4", "topology": "dense"}, "a dense network has no pattern"),
        ({"topology": "sup-tickets", "rates": "plain"}, "needs learning rates with cycles"),
        ({"topology": "dense", "sparsity": 0.9}, "a dense network has no sparsity"),
        ({"objective": "hod", "outliers": "digits"}, "'digits' is the known set"),
        ({"pattern": "2:4", "topology": "granet"}, "GraNet does not support a pattern"),
        ({"sparsty": 0.9}, "a recipe has no setting 'sparsty' .did you mean 'sparsity'"),
        ({"preset": "control", "objective": "moon"}, "give a preset or an objective"),
        (
            {"topology": "sup-tickets", "epochs": 3, "objective": "mixup"},
            "epochs=3 leaves no epoch before the last 3 cycles",
        ),
    ],
)
def test_invalid_settings_are_rejected_with_a_suggestion(arguments, what):
    with pytest.raises(ValueError, match=what):
        make_recipe(DIGITS, **arguments)


def test_the_net_has_the_unknown_output_if_the_objective_needs_it():
    for objective, outputs in (("moon", 11), ("cross-entropy", 10)):
        model = build.network(make_recipe(DIGITS, objective), DIGITS, "cpu")
        assert model.fc.out_features == outputs
        assert isinstance(model.fc, OpenHead) == (outputs == 11)


def test_weights_depend_on_the_seed_only():
    def weight(seed):
        torch.rand(3)
        return build.network(make_recipe(DIGITS, seed=seed), DIGITS, "cpu").fc.weight

    state = torch.get_rng_state()
    assert torch.equal(weight(1), weight(1))
    assert not torch.equal(weight(1), weight(2))
    torch.set_rng_state(state)


def test_a_net_that_cannot_take_the_images_is_rejected(data_root):
    small = replace(DIGITS, size=13)
    images = DataSet(np.zeros((20, 13, 13, 1), np.uint8), np.arange(20) % 10)
    with pytest.raises(ValueError, match=r"net 'lenet-norm' does not accept images of 13x13"):
        build.training(make_recipe(small), small, images, "cpu")


def test_too_little_memory_is_not_an_error_of_the_net(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("torch.nn.Conv2d.forward", full)
    images = DataSet(np.zeros((20, 28, 28, 1), np.uint8), np.arange(20) % 10)
    with pytest.raises(torch.OutOfMemoryError):
        build.training(make_recipe(DIGITS), DIGITS, images, "cpu")


def test_the_schedule_is_in_steps():
    recipe = make_recipe(DIGITS, epochs=10, delta_t_steps=7, t_end_share=0.5, drop_fraction=0.2)
    model = build.network(recipe, DIGITS, "cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = build.topology(recipe, model, optimizer, steps=300).schedule
    assert (schedule.t_end, schedule.delta_t, schedule.fraction) == (150, 7, 0.2)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_topology_is_built_and_steps(name):
    recipe = make_recipe(DIGITS, "cross-entropy", topology=name, delta_t_steps=1)
    model = build.network(recipe, DIGITS, "cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    topology = build.topology(recipe, model, optimizer, steps=400)
    for _ in range(3):
        model(torch.randn(4, 1, 28, 28)).sum().backward()
        topology.step()
    assert isinstance(topology, TOPOLOGIES[name])


def test_detectors_by_name():
    recipe = make_recipe(DIGITS, "moon")
    odin = build.detector("odin", recipe, BENCHMARKS["cifar10"])
    assert isinstance(odin, Odin)
    assert odin.std == (0.2470, 0.2435, 0.2616)
    energy = build.detector("ebo:released", recipe, DIGITS)
    assert isinstance(energy, Energy)
    assert energy.released
    scaled = build.detector("ebo:released:scaled", recipe, DIGITS, temperature=2.0)
    assert isinstance(scaled, Scaled)
    assert isinstance(scaled.inner, Energy)
    assert (scaled.inner.released, scaled.inner.temperature) == (True, 2.0)
    of_scale = "those that depend on the scale of the logits have: ebo, unknown, gen"
    for wrong, what in (
        ("msp:released", "'msp' has no variant 'released'"),
        ("msp:scaled", f"'msp' has no variant 'scaled'; {of_scale}.*; tempscale is MSP at the fitted temperature"),
        ("knn:scaled", f"'knn' has no variant 'scaled'; {of_scale}.*rotpred, klm, entropy, gradnorm, openmax$"),
        ("knn:unscaled", f"'knn' has no variant 'unscaled'; {of_scale}.*rotpred$"),
        ("klm:unscaled", "'klm' is at T = 1 in all runs and has no variant 'unscaled'; use 'klm'$"),
        ("fisher:entropy+knn:scaled", "'fisher' has no variant 'scaled'"),
        ("ebo:msp+knn", "'ebo' does not combine others, so it has no variant 'msp\\+knn'"),
        ("fisher:rotpred", "'fisher' has no variant 'rotpred'; name its parts as fisher:msp\\+knn"),
        ("fisher:msp+odin", "Fisher cannot combine 'odin'"),
        ("fisher:", "'fisher:' has an empty variant; leave out the ':' or name a variant"),
        ("fisher:msp+msp", "'msp' is named twice"),
        ("knn:j=3", "'knn' has no option 'j'; choose from: k$"),
        ("gen:gama=1", "'gen' has no option 'gama' .did you mean 'gamma'.*; choose from: gamma, top$"),
        ("knn:k=3.5", "option 'k' of 'knn' must be an integer, not '3.5'"),
        ("knn:k=3,k=4", "'knn:k=3,k=4' has the option 'k' twice"),
        ("knn:k=0", "k must be at least 1, not 0"),
        ("fisher:k=5:msp+knn", "no variant 'msp\\+knn'; the order is fisher:released:PART\\+PART:OPTION=VALUE:scaled"),
        ("fisher:msp+gen:k=5", "k=5 is for KNN, which is not one of the parts: msp, gen"),
    ):
        with pytest.raises(ValueError, match=what):
            build.detector(wrong, recipe, DIGITS)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("knn:k=5", {"k": 5}),
        ("vim:dim=8", {"dim": 8}),  # its default is no number
        ("ebo:released:temperature=2", {"released": True, "temperature": 2.0}),
        ("gen:gamma=0.5,top=3:scaled", {"gamma": 0.5, "top": 3}),
        ("fisher:msp+knn:k=5", {"k": 5, "parts": ["msp", "knn"], "scaled": False}),
    ],
)
def test_a_name_can_give_options(name, options):
    check_names([name])
    detector = build.detector(name, make_recipe(DIGITS, "moon"), DIGITS)
    assert options.items() <= detector.options().items()
    assert isinstance(detector, Scaled) is name.endswith(":scaled")


def test_the_type_of_an_option_is_that_of_its_annotation_or_else_of_its_default(monkeypatch):
    class Mine(Energy):
        def __init__(self, a: float = 1, b=2, c=0.5, d: int | None = None, e: float | int = 3, f: str = "x", g=True):
            super().__init__()
            self.a, self.b, self.c, self.d, self.e, self.f, self.g = a, b, c, d, e, f, g

    monkeypatch.setitem(DETECTORS, "mine", Mine)
    options = Variant.of("mine:a=1,b=1,c=1,d=1,e=1").options
    assert [(name, type(value)) for name, value in options] == [
        ("a", float), ("b", int), ("c", float), ("d", int), ("e", float)
    ]  # fmt: skip
    for name in "fg":
        with pytest.raises(ValueError, match=f"has no option '{name}'"):
            Variant.of(f"mine:{name}=1")


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_objective_determines_the_temperature_of_names_without_a_suffix(objective, untrained_run):
    normalises = objective in ("logitnorm", "moon-logitnorm", "t2fnorm")
    takes = OBJECTIVES[objective].takes()
    outliers, teachers = "photos" if "outliers" in takes else "", str(untrained_run()) if "teachers" in takes else ""
    recipe = make_recipe(DIGITS, objective, outliers=outliers, teachers=teachers)
    for name, kind in DETECTORS.items():
        detector = build.detector(name, recipe, DIGITS)
        inner = detector.inner if isinstance(detector, Scaled) else detector
        assert isinstance(inner, kind)
        assert isinstance(detector, Scaled) == (normalises and kind.depends_on_scale)
        if kind.depends_on_scale or kind.can_be_scaled:
            assert isinstance(build.detector(f"{name}:scaled", recipe, DIGITS), Scaled)
        if kind.depends_on_scale:
            assert isinstance(build.detector(f"{name}:unscaled", recipe, DIGITS), kind)
    fisher = build.detector("fisher", recipe, DIGITS)
    assert [type(part).__name__ for part in fisher.parts.values()] == ["Msp", "Fdbd", "Knn"]  # unchanged
    fisher = build.detector("fisher:gen+knn", recipe, DIGITS, k=7)  # only the parts that depend on the scale
    assert [isinstance(part, Scaled) for part in fisher.parts.values()] == [normalises, False]
    assert fisher.parts["knn"].k == 7
    released = build.detector("ebo:released", recipe, DIGITS)  # another rule for the K+1-th output, the same T
    assert isinstance(released, Scaled) == normalises


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_is_built_from_a_recipe(name, untrained_run):
    needs = "outliers" in OBJECTIVES[name].takes()
    teachers = str(untrained_run()) if "teachers" in OBJECTIVES[name].takes() else ""
    outliers = "photos" if needs else ""
    recipe = make_recipe(DIGITS, name, outliers=outliers, teachers=teachers, epochs=20, delta_t_steps=2)
    images = DataSet(np.zeros((40, 28, 28, 1), np.uint8), np.arange(40) % 10)
    training = build.training(recipe, DIGITS, images, "cpu", images if needs else None)
    assert isinstance(training.objective, OBJECTIVES[name])
    updated = {id(p) for group in training.optimizer.param_groups for p in group["params"]}
    assert all(id(p) in updated for p in training.objective.parameters())  # VOS and HOD have parameters


def test_parameters_of_an_objective_depend_on_the_seed():
    def weight(seed):
        model = build.network(make_recipe(DIGITS, "vos"), DIGITS, "cpu")
        return build.objective(make_recipe(DIGITS, "vos", seed=seed), model).energy_weight

    assert torch.equal(weight(1), weight(1))
    assert not torch.equal(weight(1), weight(2))


def test_tickets_start_after_the_cosine_and_vote_at_the_ends_of_their_cycles():
    recipe = make_recipe(DIGITS, "cross-entropy", topology="sup-tickets", epochs=20)
    assert (recipe.lr_cycles, recipe.vote_every, recipe.vote_from) == (3, 1, 17)
    recipe = make_recipe(DIGITS, "cross-entropy", topology="sup-tickets", epochs=40, vote_share=0.3)
    assert (recipe.vote_every, recipe.vote_from) == (4, 31)
    schedule = build.schedule(recipe, steps=400)
    assert [step for step in range(280, 400) if schedule.is_due(step)] == [280, 320, 360]
    rate = build.rate(recipe)
    assert rate(280 / 400) == pytest.approx(0.001)
    assert rate(300 / 400) == pytest.approx(0.005)


def test_cycles_are_whole_epochs_and_a_vote_share_of_0_disables_the_vote():
    def chosen(**arguments):
        recipe = make_recipe(DIGITS, "moon", rates="tickets", **arguments)
        return recipe.lr_hold_share, recipe.vote_share, recipe.vote_from, recipe.vote_every

    assert chosen() == (0.09, 0.09, 93, 3)  # not 0.2, the share of MOON
    assert chosen(vote_share=0.0) == (0.09, 0.0, None, 3)
    for epochs in range(6, 30):  # tickets never start while the masks still change
        make_recipe(DIGITS, "cross-entropy", topology="sup-tickets", epochs=epochs)


def test_the_sparsity_follows_from_the_pattern():
    recipe = make_recipe(DIGITS, pattern="2:4", delta_t_steps=10)
    assert recipe.sparsity == 0.5
    model = build.network(recipe, DIGITS, "cpu")
    topology = build.topology(recipe, model, torch.optim.SGD(model.parameters(), 0.1), 100)
    assert topology.counts["fc.weight"] == model.fc.weight.numel() // 2
    assert topology.counts["body.0.weight"] == model.body[0].weight.numel()  # one input channel


def test_impossible_batches_and_layers_are_rejected_by_a_trial_step_that_changes_nothing():
    images = DataSet(np.zeros((40, 28, 28, 1), np.uint8), np.arange(40) % 10)
    for objective, options, what in (
        ("vos", {"queue": 3}, "a batch of 40 does not fit in queues of 3"),
        ("eow-softmax", {"layer": "nonsense"}, "has no module 'nonsense'"),
    ):
        with pytest.raises(ValueError, match=what):
            build.training(make_recipe(DIGITS, objective, options=options), DIGITS, images, "cpu")
    training = build.training(make_recipe(DIGITS, "vos", delta_t_steps=9), DIGITS, images, "cpu")
    assert not training.objective.seen.any()
    assert training.model.training
    assert training.model.body[1].num_batches_tracked == 0
    moon = build.training(make_recipe(DIGITS, "moon", delta_t_steps=9), DIGITS, images, "cpu")
    assert moon.objective.weight.beta.isnan()


def test_settings_override_the_preset():
    control = make_recipe(DIGITS, preset="control", epochs=10)
    assert control == make_recipe(DIGITS, "cross-entropy", rates="moon", vote_share=0.2, epochs=10)
    assert make_recipe(DIGITS, preset="control", rates="plain", epochs=10).lr_start == 0.1
    ablated = make_recipe(DIGITS, preset="without-lm", epochs=10, options={"final": 0.5})
    assert dict(ablated.objective_options) == {"schedule": "final", "final": 0.5, "quiet_epochs": 1}


def test_defaults_shrink_with_a_short_run(data_root):
    # mnist has 256 training images: 120 steps in 15 epochs of 8 batches, of which 84 may rewire
    recipe = make_recipe("mnist", "moon", root=data_root, epochs=15, batch_size=32)
    assert recipe.delta_t_steps == 16
    assert build.schedule(recipe, 120).changes == 5
    assert dict(recipe.objective_options)["quiet_epochs"] == 1
    assert make_recipe("mnist", "moon", root=data_root, epochs=15, batch_size=32, delta_t_steps=3).delta_t_steps == 3
    long = make_recipe("mnist", "moon", root=data_root, epochs=100, batch_size=8)
    assert long.delta_t_steps == 100  # 22 rewirings
    assert "quiet_epochs" not in dict(long.objective_options)
    assert make_recipe("mnist", "moon", root=data_root, topology="static", epochs=15).delta_t_steps == 100  # unused
    assert make_recipe("cifar10", "moon", root=data_root, epochs=1).delta_t_steps == 100  # images cannot be counted
    for epochs, quiet in ((1, 0), (2, 1), (3, 1), (30, 2), (50, 2), (99, 5), (300, None)):
        assert dict(make_recipe(DIGITS, "moon", epochs=epochs).objective_options).get("quiet_epochs") == quiet
    assert dict(make_recipe(DIGITS, "dac", epochs=20).objective_options)["quiet_epochs"] == 2  # 10 of 100


def test_a_run_that_would_never_rewire_is_rejected(data_root, caplog):
    images = open_set(data_root, "mnist", "train")
    recipe = make_recipe("mnist", root=data_root, epochs=15, batch_size=32, delta_t_steps=100)
    with pytest.raises(ValueError, match=r"RigL would never change its masks: with delta_t=100 and t_end=84"):
        build.training(recipe, BENCHMARKS["mnist"], images, "cpu")
    training = build.training(replace(recipe, delta_t_steps=30), BENCHMARKS["mnist"], images, "cpu")
    assert training.topology.schedule.changes == 2
    assert "RigL changes its masks only 2 times" in caplog.text
    caplog.clear()
    build.training(replace(recipe, delta_t_steps=16), BENCHMARKS["mnist"], images, "cpu")
    assert caplog.text == ""


def test_votes_while_masks_change_are_rejected_before_data_are_read():
    with pytest.raises(
        ValueError, match=r"after 61 of 100 epochs.*masks change during the first 70; let at most 31 epochs vote"
    ):
        make_recipe(DIGITS, "moon", vote_share=0.4)
    assert make_recipe(DIGITS, "moon", vote_share=0.3).vote_from == 70
    assert make_recipe(DIGITS, "moon", vote_share=0.31).vote_from == 69  # cast at the end of the epoch
    assert make_recipe(DIGITS, "moon", vote_share=0.4, t_end_share=0.6).vote_from == 60
    for topology in ("static", "snip", "dense"):  # their masks do not change
        assert make_recipe(DIGITS, "moon", vote_share=0.9, topology=topology).vote_from == 10


@pytest.mark.parametrize(("preset", "folder"), [("best-1", "cifar10-300"), ("best-2", "cifar10"), ("quick", "cifar10")])
def test_a_preset_is_the_recipe_of_the_kept_runs(preset, folder):
    kept = Path(__file__).parents[2] / "results" / folder
    benchmark = replace(BENCHMARKS["cifar10"], name="cifar10-part")
    for seed in (0, 1, 2):
        recipe = make_recipe(benchmark, preset=preset, seed=seed, precision="bfloat16")
        assert Recipe.load(kept / recipe.name / "recipe.json") == recipe


def test_a_warmup_is_in_epochs_and_that_of_a_preset_shrinks_with_a_short_run():
    recipe = make_recipe(DIGITS, "moon", warmup=10, epochs=40)
    assert build.rate(recipe) == replace(build.rate(make_recipe(DIGITS, "moon", epochs=40)), warmup=0.25)
    found = {epochs: make_recipe(DIGITS, preset="quick", epochs=epochs).warmup for epochs in (1, 7, 20, 100, 300)}
    assert found == {1: 0.05, 7: 0.35, 20: 1, 100: 5, 300: 5}  # exactly, so that --warmup 0.35 is the same recipe
    assert make_recipe(DIGITS, preset="quick", epochs=20, warmup=4).warmup == 4


@pytest.mark.parametrize("name", table("preset"))
def test_every_preset_is_a_recipe(name):
    outliers = "letters" if name == "small-outliers" else ""
    assert pick("objective", make_recipe(DIGITS, preset=name, outliers=outliers).objective)


def few_images(root, size=(20, 24), count=40):
    """A data root with a set of one's own."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, *size, 1), np.uint8)
    for split in ("train", "test"):
        save(DataSet(pixels, np.arange(count) % 2), root, "mine", split)
    return root


def test_few_small_images_of_ones_own_get_a_preset_of_their_own(tmp_path, caplog):
    root = few_images(tmp_path)
    with caplog.at_level("INFO", "moon"):
        recipe = make_recipe("mine", root=root)
    assert "mine has few small images: trained with the preset small" in caplog.text
    assert recipe == make_recipe("mine", preset="small", root=root)
    assert (recipe.net, recipe.objective, recipe.sparsity) == ("resnet8", "cross-entropy", 0.8)
    assert make_recipe("mine", "moon", root=root).net == "resnet18"
    assert make_recipe("mine", preset="plain", root=root).net == "resnet18"
    assert make_recipe("mine", options={"final": 2.0}, root=root).objective == "moon"
    dense = make_recipe("mine", topology="Dense", root=root)
    pattern = make_recipe("mine", pattern="2:4", root=root)
    assert [(r.net, r.sparsity) for r in (dense, pattern)] == [("resnet8", 0.0), ("resnet8", 0.5)]
    assert make_recipe("mine", pattern="2:4", topology="rigl", sparsity=0.5, root=root).sparsity == 0.5
    assert make_recipe("mine", topology="static", root=root).sparsity == 0.8


def test_no_other_images_get_it(tmp_path):
    small = [default_preset(size, images) for size, images in ((28, 5000), (63, 10), ((40, 48), 600), ((32, 127), 10))]
    assert small == ["small"] * 4
    assert not any(default_preset(size, images) for size, images in ((28, 5001), (64, 10), ((32, 128), 10)))
    own = {name for name, benchmark in BENCHMARKS.items() if benchmark.preset}
    assert own == {name for name in BENCHMARKS if name.startswith("small-")}
    assert make_recipe("mine", root=few_images(tmp_path, size=(64, 64))).objective == "moon"
