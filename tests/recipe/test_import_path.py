"""Networks that are named by their import path."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from moon.recipe import make_recipe, pick

MODULE = """
from torch import nn

sizes = [16]

def make(num_classes, in_channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(784 * in_channels, 16), nn.ReLU(), nn.Linear(16, num_classes))

def other(classes):
    return make(classes, 1)
"""


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A folder on the path with a package of networks."""
    folder = tmp_path / "my_networks"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "small.py").write_text(MODULE)
    (folder / "broken.py").write_text("import no_such_library")
    (folder / "raising.py").write_text("raise RuntimeError('not today\\nsecond line')")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_networks"]:
        del sys.modules[name]


def test_an_import_path_is_accepted_as_the_name_of_a_net(package):
    make = pick("net", "my_networks.small:make")
    assert make(num_classes=3, in_channels=1)[-1].out_features == 3
    recipe = make_recipe("digits", "moon", net="my_networks.small:make", epochs=20)
    assert recipe.to_json()["net"] == "my_networks.small:make"
    assert recipe.name.startswith("digits-rigl95-moon-s0-")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_netwrks.small:make", "there is no module 'my_netwrks'; is its folder the current one, or on PYTHONPATH?"),
        ("my_networks.smal:make", "there is no module 'my_networks.smal'; is its folder"),
        (
            "my_networks.broken:make",
            "importing 'my_networks.broken' failed (ModuleNotFoundError: No module named 'no_su",
        ),
        ("my_networks.raising:make", "importing 'my_networks.raising' failed (RuntimeError: not today)"),
        ("my_networks.small:mke", "small.py has no 'mke' (did you mean 'make'?)"),
        ("my_networks.small:sizes", "must be a function, not [16]"),
        (
            "my_networks.small:other",
            "other(num_classes=10, in_channels=3) fails (missing a required argument: 'classes')",
        ),
        ("my_networks.small:", "must be 'package.module:function'"),
        (":make", "must be 'package.module:function'"),
    ],
)
def test_errors_say_what_failed(package, name, message):
    with pytest.raises(ValueError, match=f"^net '{name}': ") as raised:
        pick("net", name)
    assert message in str(raised.value)


@pytest.mark.slow
def test_train_score_and_grid_find_a_net_in_the_current_folder(package):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    start = [sys.executable, "-P", "-c", "from moon.cli import main; main()"]  # as the script `moon`: -P, no folder

    def moon(*arguments: str, cwd: Path = package) -> subprocess.CompletedProcess:
        return subprocess.run([*start, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)

    net = ("--net", "my_networks.small:make", "--epochs", "2", "--objective", "cross-entropy")
    for command in (
        ("train", "digits", *net, "--out", "run"),
        ("score", "run", "--detector", "msp"),
        ("grid", "digits", *net, "--detector", "msp", "--jobs", "1", "--out", "grid"),
    ):
        done = moon(*command)
        assert done.returncode == 0, done.stderr
    (package / "elsewhere").mkdir()
    done = moon("score", "../run", "--detector", "ebo", cwd=package / "elsewhere")
    assert done.returncode == 2
    assert "net 'my_networks.small:make': there is no module 'my_networks'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_net_of_an_entry_point_is_trained(package):
    information = package / "my_networks-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: my_networks\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[moon.nets]\nmy-small = my_networks.small:make\n")
    done = subprocess.run(
        [sys.executable, "-m", "moon", "train", "digits", "--net", "my-small", "--epochs", "2", "--preset", "plain"],
        cwd=package,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


def test_a_net_that_rejects_its_arguments_is_named(package):
    (package / "my_networks" / "strict.py").write_text(
        "def inner(num_classes): ...\ndef make(**arguments): return inner(**arguments)\n"
    )
    with pytest.raises(ValueError, match=r"net 'my_networks.strict:make' cannot be made \(.*'in_channels'"):
        make_recipe("digits", net="my_networks.strict:make")


def test_a_net_with_another_number_of_outputs_is_rejected(package):
    (package / "my_networks" / "fixed.py").write_text(
        "from torch import nn\n"
        "def make(num_classes, in_channels): return nn.Sequential(nn.Flatten(), nn.Linear(784, 7))\n"
        "def nothing(num_classes, in_channels): pass\n"
    )
    with pytest.raises(ValueError, match="fixed:make' has 7 outputs, but there are 10 known classes"):
        make_recipe("digits", net="my_networks.fixed:make")
    with pytest.raises(ValueError, match=r"fixed:nothing' made a NoneType; it must return a torch.nn.Module"):
        make_recipe("digits", net="my_networks.fixed:nothing")
