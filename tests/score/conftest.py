import shutil

import pytest

from moon.run.images import BenchmarkImages


@pytest.fixture
def images(data_root):
    return BenchmarkImages.open(data_root, "mnist")


@pytest.fixture
def plain_folder(trained_runs, tmp_path):
    """A run without the unknown output, a copy for each test."""
    return shutil.copytree(trained_runs(objective="cross-entropy", epochs=3), tmp_path / "run")
