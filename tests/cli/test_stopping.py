"""Ctrl-C: one line and exit code 130, whenever it is pressed."""

import os
import signal
import subprocess
import sys

import pytest

from moon import cli
from moon.cli import bench, methods, report, score, train
from moon.cli.main import VERBS
from moon.cli.stopping import STOPPED


@pytest.mark.parametrize(
    ("module", "arguments", "line"),
    [
        (train, ("digits",), "moon train: stopped; the same command resumes from the last checkpoint"),
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


def test_only_commands_that_exist_have_a_line():
    assert STOPPED.keys() < set(VERBS)


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
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 130
    assert done.stderr.strip() == "moon train: stopped; the same command resumes from the last checkpoint"
    assert done.stdout == ""


def test_ctrl_c_outside_of_imports_raises_and_the_handler_is_restored(moon, monkeypatch):
    cleaned = []

    def work(_):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()
        finally:
            cleaned.append(True)

    monkeypatch.setattr(methods, "act", work)
    assert moon("methods")[0] == 130
    assert cleaned == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


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
