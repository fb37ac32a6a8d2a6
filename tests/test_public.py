"""The public names: importable from `moon`, lazily, and documented well enough to be used."""

import doctest
import inspect
import subprocess
import sys

import pytest

import moon
from moon import data, detect, objectives, sparse

HEAVY = {"torch", "numpy", "scipy", "PIL", "rich", "matplotlib", "sklearn", "mlxtend", "skimage", "jinja2"}


def test_every_method_is_public():
    tables = (detect.DETECTORS, objectives.OBJECTIVES, sparse.TOPOLOGIES)
    for entry in (entry for table in tables for entry in table.values()):
        assert getattr(moon, entry.__name__) is entry
    assert moon.DataSet is data.DataSet


def test_all_names_exist_and_others_are_an_error():
    assert set(moon.__all__) <= set(dir(moon))
    for name in moon.__all__:
        assert getattr(moon, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Fishr'"):
        moon.Fishr  # noqa: B018
    with pytest.raises(ImportError):
        from moon import Fishr  # noqa: F401


def _output(code: str) -> str:
    """What the code prints in a new process."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def _imported(code: str) -> set[str]:
    """The packages that a new process has imported after running the code."""
    return set(_output(f"import sys\n{code}\nprint(*{{name.partition('.')[0] for name in sys.modules}})").split())


@pytest.mark.slow
def test_packages_are_attributes():
    assert "RigL" in _output("import moon; print(moon.sparse.RigL)")


@pytest.mark.slow
def test_commands_work_without_the_extras():
    code = "import sys; sys.modules.update(dict.fromkeys(('jinja2', 'matplotlib', 'ray', 'mlxtend', 'skimage')))\n"
    assert "usage: moon" in _output(f"{code}from moon.cli.main import parser; parser().print_help()")


def test_importing_moon_imports_nothing_heavy():
    assert not _imported("import moon") & HEAVY


@pytest.mark.slow
def test_using_a_name_imports_its_package_only():
    assert _imported("from moon import Moon, RigL, Knn, WeightVote, open_head, auroc") & HEAVY == {"torch", "numpy"}


DOCUMENTED = sorted(name for name in moon.__all__ if callable(getattr(moon, name)))


@pytest.mark.parametrize("name", DOCUMENTED)
def test_public_names_are_documented(name):
    entry = getattr(moon, name)
    text = inspect.getdoc(entry) or ""
    assert text, f"{name} has no docstring"
    if inspect.isclass(entry) and issubclass(entry, Exception):
        return
    text += inspect.getdoc(entry.__init__) or ""  # subclasses share it: the arguments of all topologies
    parameters = [
        p for p in inspect.signature(entry).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if parameters:
        assert "Args:" in text, f"{name}: no Args"
        for parameter in parameters:
            assert f"    {parameter.name}" in text, f"{name}: argument '{parameter.name}' is not described"
    if not inspect.isclass(entry) and inspect.signature(entry).return_annotation not in (None, "None"):
        assert "Returns:" in text, f"{name}: no Returns"
    assert "Example" in text, f"{name}: no Example"


@pytest.mark.parametrize("name", DOCUMENTED)
def test_examples_run(name):
    entry = getattr(moon, name)
    finder, runner = doctest.DocTestFinder(recurse=True), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in finder.find(entry, name, globs={}):
        runner.run(test)
    assert runner.failures == 0
