"""The programs in results/, which read the kept runs, and networks with invented values."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "results"))  # where `python results/documents.py` finds its modules

from kept import Kept  # noqa: E402


class Invented(Kept):
    """Runs whose values are given: by network, metric and seed."""

    def __init__(self, values):
        super().__init__(Path("nowhere"))
        self.given = values

    def runs(self, network):
        return {
            seed: None for metrics in [self.given.get(network, {})] for values in metrics.values() for seed in values
        }

    def values(self, network, metric):
        return self.given.get(network, {}).get(metric, {})


@pytest.fixture
def invented():
    """The class of kept runs whose values are given."""
    return Invented


@pytest.fixture(scope="session")
def kept():
    """The runs that are kept in this repository."""
    return Kept(ROOT / "results")
