"""What a worker does in the folder of a run, which may have been made by somebody else."""

import json

import pytest

from moon.files import write_json
from moon.grid.todo import Todo
from moon.grid.worker import work
from moon.recipe import make_recipe
from moon.run.folder import is_done

WRITTEN = (
    "lock", "data.json", "log.jsonl", "model.safetensors", "result.json", "scores.json", "scores.npz",
    "known.npz", "examples.npz",
)  # fmt: skip


@pytest.fixture
def run(data_root, tmp_path):
    """A run folder that a grid has prepared."""
    recipe = make_recipe(
        "mnist", "cross-entropy", root=data_root, net="lenet-norm", batch_size=64, epochs=2, topology="static"
    )
    folder = tmp_path / "runs" / recipe.name
    folder.mkdir(parents=True)
    write_json(folder / "recipe.json", recipe.to_json())
    Todo(("msp",)).write(folder)
    return folder


def test_no_file_elsewhere_is_overwritten(run, data_root, tmp_path):
    (tmp_path / "precious").write_text("precious")
    for name in WRITTEN:
        if name not in ("data.json", "result.json"):  # these would be read first
            (run / name).symlink_to(tmp_path / "precious")
    work(run, data_root)
    assert is_done(run)
    assert (tmp_path / "precious").read_text() == "precious"
    assert not [path for path in run.iterdir() if path.is_symlink()]


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard"])
def test_no_folder_elsewhere_is_written_to(run, data_root, tmp_path, name):
    if name == "tensorboard":
        pytest.importorskip("tensorboard")
    (tmp_path / "elsewhere" / "000007").mkdir(parents=True)
    (run / name).symlink_to(tmp_path / "elsewhere")
    work(run, data_root)
    if name == "tensorboard":  # the run is not lost for a copy of its log
        assert is_done(run)
    else:
        assert f"{name}: is a link" in json.loads((run / "failure.json").read_text())["message"]
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["000007"]
