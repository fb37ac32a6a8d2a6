"""`--help`, `--version` and errors in the arguments answer without importing the library."""

import subprocess
import sys

import pytest

from moon.cli.main import VERBS

HEAVY = {"torch", "scipy", "safetensors", "matplotlib", "numpy", "PIL", "ray"}
ANSWERED = [
    ("--version",),
    ("--help",),
    (),
    ("trian",),
    ("train", "digits", "--objctive", "moon"),
    ("train", "digits", "--epochs", "0"),
    ("data", "imprt"),
    ("data", "import", "--help"),
    *((verb, "--help") for verb in VERBS),
]


@pytest.mark.slow
def test_nothing_heavy_is_imported_before_a_command_acts(tmp_path):
    code = f"""
import sys
from moon.cli import main
for arguments in {ANSWERED!r}:
    try:
        main(list(arguments))
    except SystemExit as stop:
        assert stop.code in (0, 2), arguments
    found = {HEAVY!r} & sys.modules.keys()
    assert not found, (arguments, found)
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
