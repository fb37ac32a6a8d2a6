"""Running a grid from the command line: where its runs go, and what is shown without and with a terminal."""

import io
import json
from contextlib import ExitStack

import pytest
import torch
from rich.console import Console

from moon.cli import runner
from moon.cli.runner import check_done, execute, local_workers, show_states
from moon.grid import Grid, State
from moon.recipe import make_recipe

RECIPES = [make_recipe("digits", "cross-entropy", epochs=2, seed=seed) for seed in range(3)]
NAMES = [recipe.name for recipe in RECIPES]


class Instant:
    """Workers that finish a run at once; the run with seed 2 fails."""

    places = 2

    def start(self, folder):
        if json.loads((folder / "recipe.json").read_text())["seed"] == 2:
            (folder / "failure.json").write_text('{"message": "no [red] images"}')
        else:
            (folder / "result.json").write_text("{}")

    def ended(self, _):
        return ""

    def warnings(self, _):
        return []

    def stop(self, _):
        pass


@pytest.fixture
def grid(tmp_path):
    """A grid of three runs, the first of which is done."""
    grid = Grid.plan(tmp_path, RECIPES)
    (grid.jobs[0].folder / "result.json").write_text("{}")
    return grid


@pytest.fixture
def screen(monkeypatch):
    """A function that replaces the terminal by one of this width, and returns what it will show."""

    def make(width, encoding="utf-8"):
        file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
        console = Console(force_terminal=True, width=width, file=file, color_system=None, legacy_windows=False)
        monkeypatch.setattr(runner, "get_console", lambda: console)
        return lambda: file.buffer.getvalue().decode(encoding)

    return make


def test_without_a_terminal_there_is_a_line_per_run(grid, capsys):
    execute(grid, Instant())
    out = capsys.readouterr().out
    assert out.splitlines() == [
        "2 runs to do, 2 at a time",
        f"done   {NAMES[1]}",
        f"failed {NAMES[2]}: no [red] images",
    ]


def test_the_reason_of_a_failed_run_names_flags(grid, monkeypatch, capsys):
    grid.jobs[2].failure.write_text('{"message": "diverged; try a lower learning rate (lr_start)"}')
    (grid.jobs[1].folder / "result.json").write_text("{}")
    execute(grid, Instant())
    assert capsys.readouterr().out == f"failed {NAMES[2]}: diverged; try a lower learning rate (--lr)\n"
    monkeypatch.setenv("COLUMNS", "300")
    show_states(grid)
    assert "try a lower learning rate (--lr)" in capsys.readouterr().out


def test_without_a_terminal_there_is_a_status_line_at_changes(grid, capsys, monkeypatch):
    monkeypatch.setattr(runner, "STATUS_SECONDS", 0.0)
    execute(grid, Instant())
    assert "2 of 3 runs done, 1 failed, 0 running, 4 of 6 epochs, 0:00:00 left\n" in capsys.readouterr().out


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_terminal_shows_finished_runs_above_the_bars(grid, screen, encoding):
    shown = screen(40, encoding)
    execute(grid, Instant())
    assert f"done   {NAMES[1]}\n" in shown()
    assert f"failed {NAMES[2]}: no [red] images\n" in shown()


@pytest.mark.parametrize("has_terminal", [False, True])
def test_a_warning_of_a_run_is_shown_once(grid, screen, capsys, has_terminal):
    class Warning(Instant):
        def __init__(self):
            self.polls = {}

        def start(self, folder):
            return folder

        def ended(self, folder):  # None at first, so that the warning comes before the end
            self.polls[folder] = self.polls.get(folder, 0) + 1
            return None if self.polls[folder] < 2 else super().start(folder) or ""

        def warnings(self, folder):
            return [f"[red] nothing learned in {folder.name}"]

    shown = screen(400) if has_terminal else lambda: capsys.readouterr().out
    execute(grid, Warning())
    lines = shown().splitlines()
    assert [sum(f"warning {name}: [red] nothing learned in {name}" in line for line in lines) for name in NAMES] == [
        0, 1, 1,
    ]  # fmt: skip
    place = [next(i for i, line in enumerate(lines) if f"{word} {NAMES[1]}" in line) for word in ("warning", "done  ")]
    assert place == sorted(place)


@pytest.mark.parametrize(("cores", "jobs", "places"), [(1, None, 1), (2, None, 2), (8, None, 2), (2, 5, 5)])
def test_one_run_per_core_but_no_more_than_are_missing(grid, monkeypatch, cores, jobs, places):
    monkeypatch.setattr(runner, "cores", lambda: cores)
    with ExitStack() as stack:
        assert local_workers(grid, grid.folder, "cpu", stack=stack, jobs=jobs).places == places


def test_threads_are_those_that_the_user_wants(grid, monkeypatch):
    def threads(**settings):
        with ExitStack() as stack:
            return local_workers(grid, grid.folder, "cpu", stack=stack, **settings).threads

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads() is None  # chosen for each run
    assert threads(threads=3) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    assert threads() == torch.get_num_threads()
    assert threads(threads=3) == 3


def test_a_grid_that_is_not_done_says_what_to_do(grid):
    with pytest.raises(ValueError, match="2 of 3 runs are not done"):
        check_done(grid)
    execute(grid, Instant())
    assert list(grid.states().values()) == [State.DONE, State.DONE, State.FAILED]
    with pytest.raises(ValueError, match=r"1 of 3 runs failed, .*: no \[red\] images; .* with --retry-failed"):
        check_done(grid)
    with pytest.raises(ValueError, match=r"correct the cause, then run the command again$"):
        check_done(grid, "run the command again")


def test_different_numbers_of_threads_are_reported(grid, capsys):
    for job, threads in zip(grid.jobs, (1, 1, 4), strict=True):
        (job.folder / "result.json").write_text(json.dumps({"model_sha256": "", "threads": threads}))
        runner._remark_on_threads(grid)
        assert ("different numbers of CPU threads (1, 4" in capsys.readouterr().out) == (threads == 4)
