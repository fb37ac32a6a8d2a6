"""Methods that scripts register and that other packages provide."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import moon
from moon.data import BENCHMARKS, DataSet
from moon.detect import DETECTORS
from moon.files import write_json
from moon.recipe import Recipe, build, kinds, make_recipe, pick, registry, table
from moon.recipe.expand import expand
from moon.recipe.labels import labels
from moon.recipe.methods import find
from moon.recipe.registry import full_name
from moon.score.auto import check_names
from moon.sparse.pattern import UNSTRUCTURED

DIGITS = BENCHMARKS["digits"]


class Margin(moon.Detector):
    """The margin between the two largest logits."""

    def __init__(self, power: float = 1.0) -> None:
        self.power = power

    def score(self, evidence):
        top = evidence.known_logits.topk(2).values
        return (top[:, 0] - top[:, 1]) ** self.power


class Demanding(Margin):
    """A detector without a default for its argument."""

    def __init__(self, power: float) -> None:
        super().__init__(power)


class Plain(moon.Topology):
    """A topology that is not sparse, from scratch."""

    masks, weights = {}, {}

    def __init__(self, optimizer):
        self.optimizer = optimizer


class Halved(moon.CrossEntropy):
    """Half the cross-entropy."""

    def terms(self, model, x, y, *, epoch):
        return {name: term / 2 for name, term in super().terms(model, x, y, epoch=epoch).items()}


class Renamed(moon.RigL):
    """RigL under another name."""


class Warm(moon.RigL):
    """RigL with options."""

    def __init__(self, *args, temperature: float = 1.0, is_warm: bool = False, tau: float = 1.0, **shared):
        self.temperature, self.is_warm = temperature, is_warm
        super().__init__(*args, **shared)


class NeedsTemperature(moon.RigL):
    """RigL with an argument that no run provides."""

    def __init__(self, *args, temperature: float, **shared):
        super().__init__(*args, **shared)


class FirstRow:
    """All weights of the first output, then those of highest score."""

    def densities(self, shapes, sparsity, allocation):
        return UNSTRUCTURED.densities(shapes, sparsity, allocation)

    def fill(self, kept, scores, counts, ties=None):
        raised = [score.index_fill(0, torch.tensor([0]), torch.inf) for score in scores]
        return UNSTRUCTURED.fill(kept, raised, counts, ties)


def tiny(num_classes: int, in_channels: int) -> nn.Module:
    """One linear layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784 * in_channels, num_classes))


@pytest.fixture
def registered():
    """Registers methods for the duration of a test."""
    added = []

    def add(kind, name, entry):
        moon.register(kind, name, entry)
        added.append((kind, name))

    yield add
    for kind, name in added:
        moon.unregister(kind, name)


def test_registered_methods_are_used_like_built_in_ones(registered):
    for kind, name, entry in (
        ("detector", "margin", Margin),
        ("objective", "halved", Halved),
        ("topology", "renamed", Renamed),
        ("net", "tiny", tiny),
    ):
        registered(kind, name, entry)
        assert pick(kind, name) is entry
        assert name in list(table(kind))
    recipe = make_recipe(DIGITS, "halved", topology="renamed", net="tiny", sparsity=0.5, delta_t_steps=10)
    model = build.network(recipe, DIGITS, "cpu")
    assert isinstance(build.objective(recipe, model), Halved)
    assert isinstance(build.topology(recipe, model, torch.optim.SGD(model.parameters()), 100), Renamed)
    assert build.detector("margin", recipe, DIGITS, power=2.0).power == 2.0
    (method,) = find("margin")
    assert method.summary == "The margin between the two largest logits"
    assert method.options == {"power": 1.0}
    assert method.source == Margin.__module__


def test_a_topology_need_not_be_sparse(registered):
    registered("topology", "plain-sgd", Plain)
    recipe = make_recipe(DIGITS, "cross-entropy", topology="plain-sgd", epochs=1)
    assert recipe.sparsity == 0
    images = DataSet(np.zeros((40, 28, 28, 1), np.uint8), np.arange(40) % 10)
    training = build.training(recipe, DIGITS, images, "cpu")
    training.run()
    assert training.topology.density() == 1


@pytest.mark.parametrize(
    ("kind", "name", "entry", "what"),
    [
        ("detector", "msp", Margin, "detector 'msp' already exists"),
        ("detector", "mine", Halved, "must be a subclass of Detector"),
        ("detector", "mine", type("Unscored", (moon.Detector,), {}), "'mine' does not implement score"),
        ("net", "mine", 3, "must be callable"),
        ("detector", "mine", Demanding, "requires power, which a run does not provide"),
        ("detector", "my margin", Margin, "not a valid detector name"),
        ("detector", "max_logit", Margin, "detector 'max_logit' already exists"),  # another name of mls
        ("topology", "mine", NeedsTemperature, "requires temperature, which a run does not provide"),
        ("pattern", "mine", FirstRow, "must be a Pattern object"),  # the class, not an object
        ("preset", "mine", {"objective": "moon"}, "must be a Preset object"),
        ("detectr", "mine", Margin, "unknown kind 'detectr' .did you mean 'detector'"),
    ],
)
def test_invalid_registrations_are_rejected(kind, name, entry, what):
    with pytest.raises(ValueError, match=what):
        moon.register(kind, name, entry)


def test_entry_points_of_other_packages_are_found_and_broken_ones_skipped(monkeypatch, caplog):
    points = [
        EntryPoint("margin", f"{__name__}:Margin", "moon.detectors"),
        EntryPoint("broken", "no_such_package:Broken", "moon.detectors"),
        EntryPoint("msp", f"{__name__}:Margin", "moon.detectors"),
    ]
    monkeypatch.setattr(EntryPoint, "load", lambda point: Margin if "Margin" in point.value else 1 / 0)
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "moon.detectors" else [])
    detectors = registry.Registry("detector")
    assert dict(detectors) == DETECTORS | {"margin": Margin}
    assert len(detectors) == len(DETECTORS) + 1
    assert "entry point broken = no_such_package:Broken is skipped: division by zero" in caplog.text
    assert "detector 'msp' already exists" in caplog.text


@pytest.mark.slow
def test_the_command_line_lists_methods_of_an_installed_package(tmp_path):
    (tmp_path / "plugin.py").write_text(
        "import moon\n\nclass Margin(moon.Detector):\n    '''The margin of the logits.'''\n"
        "    def score(self, evidence):\n        return evidence.known_logits.amax(1)\n"
        "\nrates = moon.CosineRate(0.3, 0.2)\npreset = moon.Preset('moon', {}, {'rates': 'margin'}, 'own rates')\n"
    )
    information = tmp_path / "plugin-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[moon.detectors]\nmargin = plugin:Margin\nlost = nowhere:Lost\n"
        "[moon.rates]\nmargin = plugin:rates\n[moon.presets]\nmargin = plugin:preset\n"
    )
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "moon", "methods", "margin"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=True,
    )
    for described in ("The margin of the logits", "Cosine from 0.3 to 0.2", "Own rates", "rates = margin"):
        assert described in done.stdout
    assert "entry point lost = nowhere:Lost is skipped: No module named 'nowhere'" in done.stderr


def test_a_detector_whose_fit_would_never_be_called_is_rejected():
    class Forgot(Margin):
        def fit(self, evidence):
            return self

    class Misspelled(Forgot):
        fits_on = "training"

    with pytest.raises(ValueError, match="'forgot' overrides fit, which is never called"):
        moon.register("detector", "forgot", Forgot)
    with pytest.raises(ValueError, match="fits_on must be one of nothing, train, validation, both, not 'training'"):
        moon.register("detector", "misspelled", Misspelled)


def test_a_method_that_is_not_here_may_be_that_of_another_package():
    hint = "; one of another package must be installed here, or registered"
    for kind in kinds():
        with pytest.raises(ValueError, match=f"unknown .* 'zzzzzz'; .*{hint}"):
            pick(kind, "zzzzzz")
    with pytest.raises(ValueError, match=r"unknown objective 'mon' .did you mean 'moon'") as error:
        pick("objective", "mon")
    assert hint not in str(error.value)


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind != "detector"])
def test_a_method_is_chosen_by_its_name(kind):
    with pytest.raises(ValueError, match=r"must be a name, such as '[\w:-]+', not <class 'moon.objectives.moon.Moon'>"):
        make_recipe("digits", **{kind: moon.Moon})


@pytest.mark.parametrize("kind", ["detector", "objective", "topology", "net"])
def test_a_method_may_be_named_by_its_class(kind):
    for name, entry in table(kind).items():
        for alias in (entry.__name__, entry.__name__.upper(), name.replace("-", "_")):
            assert full_name(kind, alias) == name
            assert pick(kind, alias) is entry


def test_a_class_may_be_named_by_the_key_of_its_method():
    assert (moon.Mls, moon.Ebo, moon.Mds) == (moon.MaxLogit, moon.Energy, moon.Mahalanobis)
    spelled = {name.lower(): getattr(moon, name) for name in moon.__all__}
    for kind in ("detector", "objective", "topology"):
        for name, entry in table(kind).items():
            if (kind, name) != ("detector", "rotpred"):  # moon.RotPred is the objective, RotPredScore the detector
                assert spelled[name.replace("-", "")] is entry


def test_another_spelling_is_the_same_run_and_the_same_scores():
    same = make_recipe("digits", "RotPred+MOON", topology="SupTickets", net="LeNet_Norm", allocation="ERK")
    assert same == make_recipe("digits", "rotpred+moon", topology="sup-tickets", net="lenet-norm", allocation="erk")
    names = ["MaxLogit", "max-logit:released", "Fisher:MSP+MaxLogit", "Knn:k=5", "mls", "auto"]
    assert check_names(names) == ["mls", "mls:released", "fisher:msp+mls", "knn:k=5", "auto"]


def test_own_parts_of_a_run_are_chosen_by_name(registered, tmp_path):
    registered("allocation", "mine", lambda shapes, sparsity: dict.fromkeys(shapes, 0.25))
    registered("pattern", "first-row", FirstRow())
    registered("rates", "mine", moon.CosineRate(0.3, 0.1, hold=0.5))
    registered("topology", "warm", Warm)
    settings = {"topology": "warm", "allocation": "mine", "rates": "mine", "net": "lenet-norm", "epochs": 2}
    registered("preset", "mine", moon.Preset("cross-entropy", {"temperature": 0.5}, settings))
    recipe = make_recipe("digits", preset="mine", sparsity=0.75)
    assert (recipe.topology_options, recipe.lr_start, recipe.lr_end) == ((("temperature", 0.5),), 0.3, 0.1)
    model = build.network(recipe, DIGITS, "cpu")
    topology = build.topology(recipe, model, torch.optim.SGD(model.parameters()), 100)
    assert (topology.temperature, topology.is_warm) == (0.5, False)
    assert {round(float(mask.float().mean()), 2) for mask in topology.masks.values()} == {0.25}
    other = make_recipe("digits", "cross-entropy", topology="static", pattern="first-row", sparsity=0.5)
    masks = build.topology(other, model, torch.optim.SGD(model.parameters()), 100).masks
    assert all(mask[0].all() for mask in masks.values())
    write_json(tmp_path / "recipe.json", recipe.to_json())
    assert Recipe.load(tmp_path / "recipe.json") == recipe
    for kind, name in (("preset", "mine"), ("rates", "mine"), ("allocation", "mine"), ("pattern", "first-row")):
        (method,) = (each for each in find(name) if each.kind == kind)
        assert method.summary
    with pytest.raises(ValueError, match=r"unknown pattern 'first-rwo' .did you mean 'first-row'"):
        make_recipe("digits", pattern="first-rwo")


def test_options_of_a_topology_are_set_like_those_of_an_objective(registered):
    registered("topology", "warm", Warm)
    registered("topology", "plain-sgd", Plain)
    warm = make_recipe("digits", topology="warm", options={"final": "2", "temperature": "3", "is_warm": "true"})
    assert warm.topology_options == (("is_warm", True), ("temperature", 3.0))
    assert dict(warm.objective_options)["final"] == 2.0
    assert warm.digest != make_recipe("digits", topology="warm", options={"final": 2}).digest
    with pytest.raises(ValueError, match=r"'moon' with topology 'warm' has no option 'temprature' .did you mean"):
        make_recipe("digits", topology="warm", options={"temprature": 1})
    with pytest.raises(ValueError, match="option 'is_warm' of 'warm' must be of type bool, not 'perhaps'"):
        make_recipe("digits", topology="warm", options={"is_warm": "perhaps"})
    with pytest.raises(ValueError, match="'t2fnorm' and 'warm' both have an option 'tau'; rename that of yours"):
        make_recipe("digits", "t2fnorm", topology="warm", options={"tau": 1})
    axes = {"benchmark": "digits", "topology": ["warm", "rigl", "plain-sgd"], "sparsity": [0.8, 0.9]}
    found = expand(Path("data"), axes | {"set": {"temperature": [1, 2], "final": 2}})
    assert [(r.topology, r.sparsity, dict(r.topology_options).get("temperature")) for r in found] == [
        ("warm", 0.8, 1.0), ("warm", 0.8, 2.0), ("warm", 0.9, 1.0), ("warm", 0.9, 2.0),
        ("rigl", 0.8, None), ("rigl", 0.9, None), ("plain-sgd", 0.0, None),
    ]  # fmt: skip
    assert {*labels(found[:2]).values()} == {"moon temperature=1.0", "moon temperature=2.0"}
