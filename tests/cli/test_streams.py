"""Standard output and error that are closed, or whose reader is gone; each command in a process of its own."""

import os
import subprocess
import sys

import pytest

from moon.cli.stopping import RESUMES

RUN = "import os, sys\nfrom moon.cli import main, {verb}\n{verb}.act = lambda _: {act}\nmain(['{verb}', {arguments}])"
ADVICE = f"moon train: stopped, because the reader of its output is gone; {RESUMES}\n"


def command(verb, act, arguments=""):
    """A command whose work is an expression."""
    return [sys.executable, "-c", RUN.format(verb=verb, act=act, arguments=arguments)]


def start(arguments, tmp_path, buffers, **streams):
    environment = os.environ | {"PYTHONUNBUFFERED": "" if buffers else "1"}
    return subprocess.Popen(arguments, cwd=tmp_path, text=True, env=environment, **streams)


@pytest.mark.parametrize("buffers", [True, False])
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([sys.executable, "-m", "moon", "completion", "bash"], 1, ""),
        ([sys.executable, "-m", "moon", "methods", "moon"], 1, ""),
        ([sys.executable, "-m", "moon", "--help"], 0, ""),
        (command("train", "print('an epoch')", "'digits'"), 1, ADVICE),
    ],
)
def test_a_reader_that_is_gone(tmp_path, arguments, code, message, buffers):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start(arguments, tmp_path, buffers, **pipes) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (message, code)


@pytest.mark.parametrize("buffers", [True, False])
def test_answers_are_written_although_nobody_reads_messages(tmp_path, buffers):
    act = "[print('cat'), print('1 image', file=sys.stderr)]"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start(command("predict", act, "'a.moon', 'a.png'"), tmp_path, buffers, **pipes) as process:
        process.stderr.close()
        assert (process.stdout.read(), process.wait()) == ("cat\n", 1)


@pytest.mark.parametrize("closing", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_as_if_nobody_looked(tmp_path, closing):
    act = "[print('an answer'), print('a message', file=sys.stderr)]"
    shell = ["sh", "-c", f'exec "$@" {closing}', "sh", *command("methods", act)]
    with start(shell, tmp_path, True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        found = process.communicate()
    assert process.returncode == 0
    assert found == ("" if ">&-" in closing.split() else "an answer\n", "" if "2>&-" in closing else "a message\n")


def test_a_full_disk_is_one_line(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full, which Linux has")
    with open("/dev/full", "w") as full:
        arguments = [sys.executable, "-m", "moon", "completion", "bash"]
        with start(arguments, tmp_path, True, stdout=full, stderr=subprocess.PIPE) as process:
            assert process.stderr.read() == "moon completion: the disk is full; free some space, then try again\n"
    assert process.returncode == 7
