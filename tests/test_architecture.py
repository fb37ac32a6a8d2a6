"""The arrows between the rooms, as docs/architecture.md draws them. Any other import between rooms fails here."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "moon"

LIGHT = {"chance", "words"}  # whole numbers to seeds, mistyped words; every room may use them
ARROWS = {
    "chance": set(),
    "words": set(),
    "evidence": set(),
    "metrics": set(),
    "fast": set(),
    "data": LIGHT,
    "sparse": LIGHT | {"fast"},
    "nets": {"evidence", "fast"},
    "objectives": {"evidence", "fast"},
    "detect": {"evidence"},
    "training": LIGHT | {"objectives", "sparse", "fast"},
    "experiments": LIGHT
    | {"evidence", "metrics", "fast", "data", "sparse", "nets", "objectives", "detect", "training"},
    "cli": LIGHT | {"experiments", "data", "training"},
    "__main__": {"cli"},
}


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The rooms of `moon` that a file imports, at its top or inside its functions."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            assert "moon" not in names, f"{path}: import from a room, not the whole house"
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("moon.")}
    return rooms - {"__version__"}


def test_there_is_no_other_arrow():
    for path in SOURCE.rglob("*.py"):
        room = room_of(path)
        if room == "__init__":
            continue
        assert room in ARROWS, f"{path}: a room that docs/architecture.md does not have"
        foreign = imports(path) - {room} - ARROWS[room]
        assert not foreign, f"{path.relative_to(SOURCE)} imports {sorted(foreign)}; {room} may use {ARROWS[room]}"


def test_names_become_objects_in_one_place():
    tables = {"OBJECTIVES", "TOPOLOGIES", "NETS", "ALLOCATIONS"}
    for path in SOURCE.rglob("*.py"):
        if path.name in ("build.py", "__init__.py"):
            continue
        used = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        assert not tables & used, f"{path}: only experiments/build.py looks names up"


def test_tests_mirror_the_rooms():
    tests = Path(__file__).parent
    for path in SOURCE.iterdir():
        if path.is_dir() and path.name != "__pycache__":
            assert any((tests / path.name).glob("test_*.py")), f"tests/{path.name} is missing"
