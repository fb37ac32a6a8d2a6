"""Loggers write what `log.jsonl` has, and one that fails costs a line, not the run."""

import csv
import logging
import os
import resource
import subprocess
import sys
import threading

import pytest

from moon.cli import train as cli
from moon.files import write_json
from moon.recipe import make_recipe
from moon.run.log import read_log
from moon.run.loggers import LOGGERS, Loggers, check_loggers
from moon.run.train import train_run


@pytest.fixture
def recipe(data_root):
    return make_recipe(
        "mnist", "cross-entropy", root=data_root, topology="static", net="lenet", epochs=2, batch_size=64
    )


RECORD = {"epoch": 0, "loss": 0.5, "val_accuracy": None}


def scalars(folder):
    """What TensorBoard reads."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder / "tensorboard"))
    board.Reload()
    return {tag: [(event.step, event.value) for event in board.Scalars(tag)] for tag in board.Tags()["scalars"]}


def test_tensorboard_reads_the_log_also_of_a_resumed_run(recipe, tmp_path):
    pytest.importorskip("tensorboard")
    first = Loggers(["tensorboard"], tmp_path, recipe, [])
    for epoch in range(3):
        first.write({"epoch": epoch, "loss": 1.0 - epoch / 4, "val_accuracy": None})
    first.close()
    resumed = Loggers(["tensorboard"], tmp_path, recipe, [RECORD])  # the checkpoint was that of the first epoch
    resumed.write({"epoch": 1, "loss": 0.125})
    resumed.close()
    assert scalars(tmp_path) == {"loss": [(0, 1.0), (1, 0.125)]}


def test_csv_has_a_column_for_every_number(recipe, tmp_path):
    log = Loggers(["csv"], tmp_path, recipe, [RECORD])
    log.write({"epoch": 1, "loss": 0.25, "w": 1.0})
    log.close()
    assert (tmp_path / "metrics.csv").read_text() == "epoch,loss,val_accuracy,w\n0,0.5,,\n1,0.25,,1.0\n"


@pytest.mark.slow
def test_a_run_writes_all_of_them(recipe, images, tmp_path):
    pytest.importorskip("tensorboard")
    train_run(recipe, tmp_path, images, loggers=["csv", "tensorboard"])
    log = read_log(tmp_path)
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows] == [line["loss"] for line in log]
    assert [value for _, value in scalars(tmp_path)["loss"]] == pytest.approx([line["loss"] for line in log])


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, 2048])
def test_wandb_offline(recipe, tmp_path, size):
    """In a process of its own: wandb starts threads and another process. With a size, the disk is full at once."""
    pytest.importorskip("wandb")
    limit = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.RLIM_INFINITY))" if size else "pass"
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from moon.recipe import Recipe; from moon.run.loggers import Loggers\n"
        f"folder = Path(sys.argv[1]); recipe = Recipe.load(folder / 'recipe.json'); {limit}\n"
        "log = Loggers(['wandb'], folder, recipe, [])\n"
        "for epoch in range(50): log.write({'epoch': epoch, 'loss': 0.5, 'w': None})\n"
        "log.close()"
    )
    write_json(tmp_path / "recipe.json", recipe.to_json())
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WANDB")}
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if size:
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr.count("\n") <= 1  # wandb may notice it or not
        assert "Traceback" not in done.stderr
        return
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (written,) = (tmp_path / "wandb").glob("**/run-*.wandb")
    assert b"loss" in written.read_bytes()


@pytest.mark.parametrize("name", ["tensorboard", "csv", "wandb"])
def test_a_folder_that_cannot_be_used_costs_one_line(recipe, images, tmp_path, caplog, capfd, name):
    if name != "csv":
        pytest.importorskip(name)
    target = tmp_path / ("metrics.csv" if name == "csv" else name)
    target.mkdir() if name == "csv" else target.write_text("precious")
    with caplog.at_level(logging.WARNING, "moon.run"):
        train_run(recipe, tmp_path, images, loggers=[name])
    assert len(read_log(tmp_path)) == 2
    (line,) = [record.getMessage() for record in caplog.records if record.name == "moon.run.loggers"]
    assert line.startswith(f"the {name} log is no longer written, but training continues: ")
    assert "\n" not in line
    assert target.name in line
    assert "Traceback" not in capfd.readouterr().err
    if name != "csv":
        assert target.read_text() == "precious"


@pytest.mark.parametrize(("name", "size"), [("tensorboard", 2048), ("tensorboard", 10), ("csv", 2048)])
def test_a_full_disk_costs_one_line(recipe, tmp_path, caplog, capfd, name, size):
    """The kernel refuses to write more than 2 kB, or 10 bytes, per file, as a full disk would."""
    if name != "csv":
        pytest.importorskip(name)
    threads = threading.active_count()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        log = Loggers([name], tmp_path, recipe, [])
        for epoch in range(200):
            log.write({"epoch": epoch, "loss": 0.123456789, "val_accuracy": 0.5})
        log.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(caplog.records) == 1
    assert "File too large" in caplog.text
    assert threading.active_count() == threads
    assert capfd.readouterr().err == ""
    if size < 100:
        return
    if name == "tensorboard":
        assert 5 < len(scalars(tmp_path)["loss"]) < 200  # what was written before can be read
    else:
        assert 5 < len((tmp_path / "metrics.csv").read_text().splitlines()) < 200


def test_names_are_checked_before_anything_is_written(recipe, images, tmp_path):
    with pytest.raises(ValueError, match=r"unknown logger 'tensorbord' \(did you mean 'tensorboard'"):
        train_run(recipe, tmp_path / "run", images, loggers=["tensorbord"])
    assert check_loggers("csv") == ("csv",)
    assert not (tmp_path / "run").exists()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("moon.run.loggers.find_spec", lambda name: None)
    assert check_loggers(None) == ()
    assert check_loggers(["csv"]) == ("csv",)
    with pytest.raises(ValueError, match=r"needs the package wandb: pip install 'moon-sparse\[wandb\]'"):
        check_loggers(["wandb"])


def test_the_command_line_knows_all_loggers():
    assert set(cli.LOGGERS) == LOGGERS.keys()
