"""How large the repository is: python tests/size.py (make size). Only files that git tracks count."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]


def tracked(*patterns: str) -> list[Path]:
    names = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for name in names.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def code_lines(path: Path) -> int:
    """The lines of a module without docstrings, imports, comments and blank lines."""
    text = path.read_text(encoding="utf-8")
    left = {number for number, line in enumerate(text.splitlines(), 1) if line.split("#")[0].strip()}
    for node in ast.walk(ast.parse(text)):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            left -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return len(left)


def main() -> None:
    source, docs = tracked("src/*.py"), tracked("docs/*.md")
    sizes = {
        "src/moon, lines": lines(source),
        "src/moon, lines of code": sum(map(code_lines, source)),
        "tests, lines": lines(tracked("tests/*.py")),
        "runtime, lines of tests": lines(tracked("runtime/tests/*.py")),
        "runtime, lines of C": lines(tracked("runtime/src/*")),
        "runtime, lines of Python": lines(tracked("runtime/moon_runtime/*.py")),
        "docs, words": sum(len(path.read_text(encoding="utf-8").split()) for path in docs),
        "results, MB": round(sum(path.stat().st_size for path in tracked("results")) / 1e6),
    }
    for name, size in sizes.items():
        print(f"{name:26}{size:>9,}")


if __name__ == "__main__":
    main()
