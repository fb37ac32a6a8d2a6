"""A sample of the trials of tests/torture; `make torture` makes many."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    ["kill --count 24 --only train", "kill --count 2 --only serve", "crash --count 3", "damage --count 2"],
)
def test_trials_have_no_findings(run_group, command):
    if "serve" in command and not all(map(find_spec, ("moon_runtime", "starlette", "uvicorn", "python_multipart"))):
        pytest.skip("needs moon-runtime with its server")
    tool, *options = command.split()
    done = run_group([sys.executable, "-m", f"tests.torture.{tool}", *options], cwd=ROOT, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
