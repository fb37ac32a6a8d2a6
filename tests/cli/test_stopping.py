"""Ctrl-C, SIGTERM and SIGHUP: one line and an exit code, whenever they arrive."""

import os
import signal
import subprocess
import sys
import time
import warnings

import pytest

from moon import cli
from moon.cli import bench, methods, report, score, train
from moon.cli.stopping import RESUMES
from moon.training import is_locked


@pytest.fixture(autouse=True)
def interruptible():
    """Signals arrive, also if the tests run in the background or under nohup, where some are ignored."""
    handlers = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGHUP: signal.SIG_DFL,
        signal.SIGTERM: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("module", "arguments", "line"),
    [
        (
            train,
            ("digits",),
            "moon train: stopped; the same command resumes from the last checkpoint, or starts again if",
        ),
        (score, ("run",), "moon score: stopped; runs that were scored completely are written; run the"),
        (report, ("run",), "moon report: stopped; no page was written"),
        (bench, ("train",), "moon bench: stopped; no times were written"),
        (methods, (), "moon methods: stopped"),
    ],
)
def test_every_command_says_what_is_left_in_its_own_words(moon, monkeypatch, module, arguments, line):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "act", interrupt)
    code, _, err = moon(module.__name__.rpartition(".")[2], *arguments)
    assert code == 130
    assert err.strip().startswith(line)
    assert len(err.strip().splitlines()) == 1


INTERRUPTED_NUMPY = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass
except KeyboardInterrupt:
    raise ImportError("you should not try to import numpy from its source directory")
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", [["-m", "moon"], ["-c", "from moon.cli import main; main()"]])
def test_ctrl_c_during_an_import_is_one_line_and_not_an_error_of_the_imported_module(tmp_path, start):
    (tmp_path / "numpy.py").write_text(INTERRUPTED_NUMPY)
    done = subprocess.run(
        [sys.executable, *start, "train", "digits"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells ignore it for background jobs
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 130
    assert done.stderr.strip() == f"moon train: stopped; {RESUMES}"
    assert done.stdout == ""


SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGHUP, 75)]


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_signals_outside_of_imports_raise_and_the_handlers_are_restored(moon, monkeypatch, number, code):
    cleaned = []
    before = [signal.getsignal(each) for each, _ in SIGNALS]

    def work(_):
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            cleaned.append(True)

    monkeypatch.setattr(train, "act", work)
    found, _, err = moon("train", "digits")
    assert found == code
    assert err.strip() == f"moon train: stopped; {RESUMES}"
    assert cleaned == [True]
    assert [signal.getsignal(each) for each, _ in SIGNALS] == before


def test_a_forked_process_ends_as_without_a_handler(moon, monkeypatch):
    found = []

    def work(_):
        if (child := os.fork()) == 0:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                signal.pause()
            finally:
                os._exit(9)
        found.append(os.waitpid(child, 0)[1])

    monkeypatch.setattr(methods, "act", work)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process with threads
        assert moon("methods")[0] == 0
    assert os.WTERMSIG(found[0]) == signal.SIGTERM


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_grid_leaves_no_workers(data_root, tmp_path, number):
    command = [
        *(sys.executable, "-m", "moon", "grid", "mnist", "--net", "lenet-norm", "--epochs", "100000"),
        *("--seed", "0", "1", "--jobs", "2", "--checkpoint-seconds", "0", "--out", str(tmp_path / "runs")),
        *("--objective", "cross-entropy", "--data", str(data_root)),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as driver:
        deadline = time.monotonic() + 300  # a guard against hanging
        # Until both runs are being trained.
        while len({path.parent for path in tmp_path.glob("runs/*/checkpoints/0*")}) < 2 and time.monotonic() < deadline:
            assert driver.poll() is None
            time.sleep(0.05)
        driver.send_signal(number)
        _, err = driver.communicate(timeout=300)
    assert err.strip() == "moon grid: stopped; finished runs are kept; the same command resumes the others"
    assert driver.returncode == 75
    folders = list((tmp_path / "runs").iterdir())
    assert len(folders) == 2
    assert not any(is_locked(folder) for folder in folders)
    assert all(list(folder.glob("checkpoints/0*")) for folder in folders)


def test_an_ignored_ctrl_c_stays_ignored(moon, monkeypatch):
    found = []
    monkeypatch.setattr(methods, "act", lambda _: found.append(signal.getsignal(signal.SIGINT)))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as nohup does
    try:
        with pytest.raises(SystemExit):
            cli.main(["methods"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert found == [signal.SIG_IGN]
