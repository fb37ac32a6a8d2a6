import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from moon.data import SOURCES
from moon.recipe import kinds, names, table
from moon.recipe.names import keys_of, names_of


@pytest.mark.parametrize("kind", kinds())
def test_the_names_in_the_source_are_those_of_the_registry(kind):
    assert names_of(kind) == list(table(kind))


def test_the_sets_that_can_be_downloaded():
    assert keys_of("moon.data.download", "SOURCES") == tuple(SOURCES)


def test_entry_points_are_listed_and_not_loaded(monkeypatch):
    points = EntryPoints([EntryPoint("margin", "no_such_package:Margin", "moon.detectors")])
    monkeypatch.setattr(names, "entry_points", lambda: points)
    names._installed.cache_clear()
    try:
        assert names_of("detector")[-1] == "margin"
        assert "margin" not in names_of("net")
    finally:
        names._installed.cache_clear()


def test_names_and_parameters_need_no_torch():
    code = "import sys; from moon.recipe import PARAMETERS, names_of; names_of('net'); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
