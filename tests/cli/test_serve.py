"""`moon serve`: the options are those of the runtime's server, errors are one line, and SIGTERM is a success."""

import argparse
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from moon_runtime.serve.settings import add_options
from PIL import Image

from moon.cli import serve

FILE = Path(__file__).parents[2] / "runtime" / "tests" / "kept" / "format1.moon"


def options(parser):
    return {
        action.option_strings[-1]: (action.default, action.metavar, action.help)
        for action in parser._actions
        if action.option_strings
    }


def test_the_options_are_those_of_the_server():
    ours, theirs = argparse.ArgumentParser(), argparse.ArgumentParser()
    serve.describe(ours)
    add_options(theirs)
    assert options(ours) == options(theirs)


def test_what_cannot_be_served_is_one_line(moon, tmp_path, monkeypatch):
    (tmp_path / "bad.moon").write_bytes(b"nothing")
    for arguments, code, reason in (
        (["no.moon"], 2, "no.moon: no such run folder or .moon file"),
        ([tmp_path], 2, "is a folder; pack a run first"),
        (["bad.moon"], 4, "bad.moon: not a .moon file"),
        ([FILE, "--port", "99999"], 2, "--port must be from 0 to 65535"),
        ([FILE, "--max-queue", "0"], 2, "--max-queue"),
        ([FILE, "--false-alarm", "1"], 2, "--false-alarm"),
    ):
        found, out, err = moon("serve", *arguments)
        assert (found, out, err.count("\n")) == (code, "", 1)
        assert reason in err
    for missing, reason in (("starlette", "pip install 'moon-runtime[serve]'"), ("moon_runtime", "moon-runtime")):
        with monkeypatch.context() as patch:
            for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
                patch.delitem(sys.modules, name)
            for name in [name for name in sys.modules if name.startswith("moon_runtime.serve")]:
                patch.delitem(sys.modules, name)
            patch.setitem(sys.modules, missing, None)
            found, out, err = moon("serve", FILE)
        assert (found, out, err.count("\n")) == (2, "", 1)
        assert reason in err


@pytest.mark.slow
def test_a_server_answers_until_sigterm(tmp_path):
    path = tmp_path / "image.png"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)
    command = [sys.executable, "-m", "moon", "serve", str(FILE), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        url = process.stdout.readline().partition("listening on ")[2].partition(" ")[0]
        request = urllib.request.Request(f"{url}/predict", path.read_bytes(), {"content-type": "image/png"})
        with urllib.request.urlopen(request, timeout=30) as reply:
            answer = json.load(reply)["answers"][0]
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert answer.keys() == {"file", "verdict", "class", "is_known", "probability", "p_value", "score"}
    assert (process.returncode, out, err) == (0, "", "")
