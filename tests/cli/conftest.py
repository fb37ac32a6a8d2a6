"""Fixtures that run commands."""

import pytest

from moon import cli
from moon.cli import runner
from moon.grid import State, worker


@pytest.fixture
def moon(data_root, tmp_path, monkeypatch, capsys):
    """A function that runs a command in an empty folder and returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOON_DATA", str(data_root))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return run


@pytest.fixture
def in_this_process(data_root, monkeypatch):
    """Runs are executed one after the other in this process."""

    def run(grid, _):
        for job in grid.jobs:
            if job.state() is State.WAITING:
                worker.work(job.folder, data_root)

    monkeypatch.setattr(runner, "run_grid", run)
