import shutil

import pytest


@pytest.fixture
def plain_folder(trained_runs, tmp_path):
    """A run without the unknown output, a copy for each test."""
    return shutil.copytree(trained_runs(objective="cross-entropy", epochs=3), tmp_path / "run")
