"""The rooms and the arrows between them, as docs/architecture.md draws them. Any other import fails here."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "moon"

BASE = {"arrays", "seeds", "suggest", "files", "records", "shapes", "errors", "lazy"}  # every room may import them
METHODS = {"evidence", "metrics", "fast", "data", "sparse", "nets", "objectives", "detect", "training"}
ARROWS = {
    "arrays": set(),
    "seeds": set(),
    "suggest": set(),
    "files": {"errors"},
    "records": {"errors", "files"},
    "shapes": set(),
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
    "cli": BASE
    | {"data", "training", "recipe", "run", "score", "deploy", "grid", "results", "paper", "report", "timing", "demo"},
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


def room_of(path: Path) -> str:
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


def test_rooms_import_only_what_the_arrows_allow():
    for name, path in modules().items():
        room = room_of(path)
        for target in imports(path):
            if target == "moon":  # the version only
                text = path.read_text(encoding="utf-8")
                assert "from moon import __version__" in text, f"{name}: import from a room, not from moon"
                continue
            other = target.split(".")[1]
            assert other == room or other in ARROWS[room], f"{name} imports {target}: {room} -> {other} is not allowed"


def test_there_is_no_import_cycle():
    known = modules()
    graph = {name: {t for t in imports(path) if t != name and t in known} for name, path in known.items()}
    for name, path in known.items():
        lazy = path.with_suffix(".pyi")  # names that a package imports on first use; `moon` itself is not imported
        graph[name] |= set(imports(lazy)) & known.keys() - {name} if lazy.exists() and name != "moon" else set()
    list(TopologicalSorter(graph).static_order())  # raises CycleError


def test_every_room_is_in_the_documentation():
    rooms = {room_of(path) for path in SOURCE.rglob("*.py")}
    assert rooms == ARROWS.keys()
    architecture = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    for room in rooms - {"__main__", "__init__"}:
        assert f"`{room}/`" in architecture or f"`{room}.py`" in architecture, f"docs/architecture.md lacks {room}"


def test_no_room_contains_a_fifth_of_the_code():
    lines: dict[str, int] = {}
    for path in SOURCE.rglob("*.py"):
        lines[room_of(path)] = lines.get(room_of(path), 0) + len(path.read_text().splitlines())
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


@pytest.mark.parametrize("room", sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()))
def test_tests_mirror_the_rooms(room):
    assert any((Path(__file__).parent / room).glob("test_*.py")), f"tests/{room} is missing"
