"""Methods that scripts register and that other packages provide."""

import os
import subprocess
import sys
from functools import partial
from importlib.metadata import EntryPoint

import numpy as np
import pytest
import torch
from torch import nn

import moon
from moon.data import BENCHMARKS, DataSet
from moon.recipe import build, make_recipe, pick, registry, table
from moon.recipe.methods import find

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


def test_a_net_can_be_any_callable(registered):
    registered("net", "partial", partial(moon.lenet, norm=True))
    assert find("partial")[0].title == "partial"


@pytest.mark.parametrize(
    ("kind", "name", "entry", "what"),
    [
        ("detector", "msp", Margin, "detector 'msp' already exists"),
        ("detector", "mine", Halved, "must be a subclass of Detector"),
        ("detector", "mine", Margin(), "must be a subclass of Detector"),
        ("detector", "mine", type("Unscored", (moon.Detector,), {}), "'mine' does not implement score"),
        ("net", "mine", 3, "must be callable"),
        ("detector", "mine", Demanding, "requires power, which a run does not provide"),
        ("detector", "my margin", Margin, "not a valid detector name"),
        ("detector", "a:b", Margin, "not a valid detector name"),
        ("detector", "a+b", Margin, "not a valid detector name"),
        ("allocation", "mine", tiny, "kinds that can: objective, topology, detector, net"),
        ("detectr", "mine", Margin, "unknown kind 'detectr' .did you mean 'detector'"),
    ],
)
def test_invalid_registrations_are_rejected(kind, name, entry, what):
    with pytest.raises(ValueError, match=what):
        moon.register(kind, name, entry)


def test_only_registered_methods_can_be_unregistered():
    with pytest.raises(ValueError, match="no detector 'msp' was registered"):
        moon.unregister("detector", "msp")


def test_entry_points_of_other_packages_are_found_and_broken_ones_skipped(monkeypatch, caplog):
    points = [
        EntryPoint("margin", f"{__name__}:Margin", "moon.detectors"),
        EntryPoint("broken", "no_such_package:Broken", "moon.detectors"),
        EntryPoint("msp", f"{__name__}:Margin", "moon.detectors"),
    ]
    monkeypatch.setattr(EntryPoint, "load", lambda point: Margin if "Margin" in point.value else 1 / 0)
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "moon.detectors" else [])
    detectors = registry.Registry("detector", {"msp": moon.Msp}, moon.Detector)
    assert dict(detectors) == {"msp": moon.Msp, "margin": Margin}
    assert len(detectors) == 2
    assert "entry point broken = no_such_package:Broken is skipped: division by zero" in caplog.text
    assert "detector 'msp' already exists" in caplog.text


@pytest.mark.slow
def test_the_command_line_lists_methods_of_an_installed_package(tmp_path):
    (tmp_path / "plugin.py").write_text(
        "import moon\n\nclass Margin(moon.Detector):\n    '''The margin of the logits.'''\n"
        "    def score(self, evidence):\n        return evidence.known_logits.amax(1)\n"
    )
    information = tmp_path / "plugin-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[moon.detectors]\nmargin = plugin:Margin\nlost = nowhere:Lost\n")
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "moon", "methods", "margin"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "The margin of the logits" in done.stdout
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


def test_a_description_is_not_that_of_the_base_class(registered):
    class Silent(moon.Detector):
        def score(self, evidence):
            return evidence.confidence

    class Longer(Silent):
        """One line.

        A formula.

        Args:
            none: None.
        """

    registered("detector", "silent", Silent)
    registered("detector", "longer", Longer)
    (silent,), (longer,) = find("silent"), find("longer")
    assert silent.summary.startswith("no description (")
    assert silent.about == ""
    assert (longer.summary, longer.about) == ("One line", "A formula.")


def test_a_method_that_is_not_here_may_be_that_of_another_package():
    hint = "; one of another package must be installed here, or registered"
    for kind in ("objective", "topology", "detector", "net"):
        with pytest.raises(ValueError, match=f"unknown {kind} 'zzzzzz'; .*{hint}"):
            pick(kind, "zzzzzz")
    for kind, name in (("objective", "mon"), ("rates", "zzzzzz")):
        with pytest.raises(ValueError, match="unknown ") as error:
            pick(kind, name)
        assert hint not in str(error.value)


@pytest.mark.parametrize("kind", ["objective", "topology", "net", "allocation", "rates"])
def test_a_method_is_chosen_by_its_name(kind):
    with pytest.raises(ValueError, match=r"must be a name, such as '[\w-]+', not <class 'moon.objectives.moon.Moon'>"):
        make_recipe("digits", **{kind: moon.Moon})


def test_a_pattern_that_is_no_text_is_refused():
    with pytest.raises(ValueError, match="a pattern is n:m, such as 2:4, not '3'"):
        make_recipe("digits", pattern=3)
