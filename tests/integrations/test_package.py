"""The package `integrations` itself: importing it imports none of the libraries that it connects to."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["torch", "lightning", "transformers", "timm", "torchvision", "pytorch_ood"])
def test_importing_it_imports_no_library(package):
    code = f"import sys, moon.integrations; sys.exit({package!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
