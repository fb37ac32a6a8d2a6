"""Which package may import which, as in docs/architecture.md. Any other import fails here."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "moon"

BASE = {"arrays", "seeds", "suggest", "files", "records", "errors", "lazy"}  # every package may import them
METHODS = {"evidence", "metrics", "fast", "data", "sparse", "nets", "objectives", "detect", "training"}
MAY_IMPORT = {
    "arrays": set(),
    "seeds": set(),
    "suggest": set(),
    "files": {"errors"},
    "records": {"errors", "files"},
    "errors": set(),
    "lazy": set(),
    "evidence": {"suggest"},
    "metrics": {"arrays"},
    "fast": set(),
    "data": BASE,
    "sparse": BASE | {"evidence", "fast"},
    "nets": {"evidence", "fast"},
    "objectives": {"evidence", "fast"},
    "detect": {"evidence"},
    "export": BASE | {"evidence", "detect"},
    "training": BASE | {"evidence", "objectives", "sparse", "fast", "nets"},
    "recipe": BASE | METHODS,
    "integrations": BASE | METHODS | {"recipe", "deploy", "results"},
    "run": BASE | METHODS | {"recipe", "export"},
    "score": BASE | METHODS | {"recipe", "run"},
    "deploy": BASE | METHODS | {"export", "recipe", "run", "score"},
    "grid": BASE | METHODS | {"recipe", "run", "score"},
    "results": BASE | METHODS | {"recipe", "run", "score"},
    "paper": BASE | METHODS | {"recipe", "run", "score", "results"},
    "report": BASE | METHODS | {"recipe", "run", "score", "results"},
    "timing": BASE | METHODS | {"recipe", "run", "export"},
    "demo": {"data", "recipe", "run", "deploy", "results"},
    "suite": {"files", "records", "data", "recipe", "run", "deploy"},
    "cli": BASE
    | {
        "data",
        "training",
        "recipe",
        "run",
        "score",
        "deploy",
        "grid",
        "results",
        "paper",
        "report",
        "timing",
        "demo",
        "suite",
    },
    "__main__": {"cli"},
    "__init__": {"lazy"},
}


def modules() -> dict[str, Path]:
    """Every module of the package by its full name; a package stands for its `__init__.py`."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def imports(path: Path) -> frozenset[str]:
    """The modules of `moon` that a file imports, at its top or inside its functions."""
    known, found = modules(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.partition(".")[0] == "moon"}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports must be absolute"
            if (node.module or "").partition(".")[0] == "moon":
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    found.add(full if full in known else node.module)
    return frozenset(found)


def test_packages_import_only_what_they_may():
    for name, path in modules().items():
        package = package_of(path)
        for target in imports(path):
            if target == "moon":  # the version only
                text = path.read_text(encoding="utf-8")
                assert "from moon import __version__" in text, f"{name}: import from its package, not from moon"
                continue
            other = target.split(".")[1]
            allowed = {package} | MAY_IMPORT[package]
            assert other in allowed, f"{name} imports {target}: {package} -> {other} is not allowed"


def test_there_is_no_import_cycle():
    known = modules()
    graph = {name: {t for t in imports(path) if t != name and t in known} for name, path in known.items()}
    for name, path in known.items():
        lazy = path.with_suffix(".pyi")  # names that a package imports on first use; `moon` itself is not imported
        graph[name] |= set(imports(lazy)) & known.keys() - {name} if lazy.exists() and name != "moon" else set()
    list(TopologicalSorter(graph).static_order())  # raises CycleError


def test_every_package_is_in_the_documentation():
    packages = {package_of(path) for path in SOURCE.rglob("*.py")}
    assert packages == MAY_IMPORT.keys()
    architecture = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    for package in packages - {"__main__", "__init__"}:
        is_listed = f"`{package}/`" in architecture or f"`{package}.py`" in architecture
        assert is_listed, f"docs/architecture.md lacks {package}"


def test_no_package_contains_a_fifth_of_the_code():
    lines: dict[str, int] = {}
    for path in SOURCE.rglob("*.py"):
        lines[package_of(path)] = lines.get(package_of(path), 0) + len(path.read_text().splitlines())
    assert max(lines.values()) < sum(lines.values()) / 5


TABLES = {"OBJECTIVES", "TOPOLOGIES", "NETS", "ALLOCATIONS", "DETECTORS", "RATES", "PRESETS"}


def test_names_become_objects_in_one_place():
    for name, path in modules().items():
        if name == "moon.recipe.registry" or path.name == "__init__.py":
            continue
        tree = ast.parse(path.read_text())
        defined = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not (TABLES & used) - defined, f"{name}: only moon.recipe.registry looks methods up"


@pytest.mark.parametrize("package", sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()))
def test_tests_mirror_the_packages(package):
    assert any((Path(__file__).parent / package).glob("test_*.py")), f"tests/{package} is missing"
