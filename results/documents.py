"""Write every table and number of the documentation that comes from kept runs, or check that they are up to date.

python results/documents.py             rewrites them (make results)
python results/documents.py --check     names each stale place and exits with 1 (make results-check)

Nothing is trained or scored, and no images are needed. Three kinds of places are written:

- blocks of a page, between `<!-- table NAME -->` and `<!-- end -->`: the function NAME of a file `tables_*.py`;
- a number of a page that is followed by a comment, `91.6<!-- SOURCE -->`, or a number with its 95% interval,
  `91.6 [91.2, 92.1]<!-- SOURCE -->`: `sources.py` describes the sources. The number of decimal places, and a plus sign,
  are kept as they are. On the pages of results every number with a decimal point needs a source, except in headings,
  code and links;
- the tables and figures in results/*/paper (`paper_files.py`), and docs/results/*.csv (`csv_files.py`).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import intact
from csv_files import write_csv_files
from kept import Kept
from paper_files import stale_lines, write_paper_files
from sources import read_source
from tables_auto import BLOCKS as AUTO
from tables_cifar10 import BLOCKS as CIFAR10
from tables_evaluation import BLOCKS as EVALUATION
from tables_frontier import BLOCKS as FRONTIER
from tables_other import BLOCKS as OTHER
from tables_small import BLOCKS as SMALL
from tables_unknown import BLOCKS as UNKNOWN

from moon.files import write_text
from moon.suggest import did_you_mean

BLOCKS = CIFAR10 | EVALUATION | OTHER | UNKNOWN | AUTO | FRONTIER | SMALL
REPOSITORY = Path(__file__).parents[1]
_BLOCK = re.compile(r"(<!-- table ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_DIGITS = r"[+-]?\d+(?:\.\d+)?(?:e\d+)?"
_NUMBER = re.compile(rf"(?<![\w.])({_DIGITS}(?: \[{_DIGITS},\s{_DIGITS}\])?)<!-- (fixed|[\w-]+/.*?) -->")
_COMMENT = re.compile(r"<!-- (.*?) -->", re.DOTALL)
_DECIMAL = re.compile(r"(?<![\w.])[+-]?\d+\.\d+(?!\.?\w)")
_NO_PROSE = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)|^#.*?$", re.DOTALL | re.MULTILINE)


def main(arguments: list[str] | None = None, repository: Path = REPOSITORY) -> int:
    """Rewrite or check everything; the exit status is 1 if something is wrong or, with --check, stale."""
    parser = argparse.ArgumentParser(description="Write the documentation's tables and numbers from kept runs.")
    parser.add_argument("--check", action="store_true", help="write nothing; name each stale place and exit with 1")
    check = parser.parse_args(arguments).check
    kept = Kept(repository / "results")
    if problems := [*intact.problems(kept)]:
        return _report([*problems, "nothing was written or checked: tables need all kept runs"])
    for path in [repository / "README.md", *sorted((repository / "docs").rglob("*.md"))]:
        name = path.relative_to(repository)
        before = path.read_text(encoding="utf-8")
        after, wrong = updated(before, kept)
        if name.parent.name == "results" or path.name == "results.md":
            wrong += [f"{line}: the number {text} has no source" for line, text in unsourced(after)]
        if check:
            wrong += stale(before, after)
        elif after != before:
            write_text(path, after)
            print(f"written: {name}")
        problems += [f"{name}:{text}" for text in wrong]
    problems += write_paper_files(kept, check) + write_csv_files(kept, check)
    return _report(problems)


def _report(problems: list[str]) -> int:
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def updated(page: str, kept: Kept) -> tuple[str, list[str]]:
    """Write every table and sourced number of a page anew; also returns where and why one cannot be written."""
    problems: list[str] = []

    def block(match: re.Match[str]) -> str:
        name = match[2]
        try:
            if name not in BLOCKS:
                raise ValueError(f"there is no such table{did_you_mean(name, BLOCKS)}")
            return f"{match[1]}{BLOCKS[name](kept)}\n{match[4]}"
        except ValueError as error:
            problems.append(f"{_line(match)}: table {name}: {error}")
            return match[0]

    def number(match: re.Match[str]) -> str:
        if match[2] == "fixed":
            return match[0]
        try:
            values = iter([read_source(kept, source) for source in _sources(match)])
            return f"{re.sub(_DIGITS, lambda shown: formatted(next(values), shown[0]), match[1])}<!-- {match[2]} -->"
        except ValueError as error:
            problems.append(f"{_line(match)}: {error}")
            return match[0]

    placed = {match.start(): match for match in _BLOCK.finditer(page)}
    sources = {match.end(1) for match in _NUMBER.finditer(page)}
    ends = {match.start(4) for match in placed.values()}
    problems += [
        f"{_line(match)}: '{match[0]}' is neither right after a number, nor a table with <!-- end -->"
        for match in _COMMENT.finditer(page)
        if match.start() not in sources | placed.keys() | ends
    ]
    return _BLOCK.sub(block, _NUMBER.sub(number, page)), problems


def _sources(match: re.Match[str]) -> list[str]:
    """The sources of a number, or of a number and the ends of its interval."""
    return [match[2], f"{match[2]} low", f"{match[2]} high"] if "[" in match[1] else [match[2]]


def _line(match: re.Match[str]) -> int:
    return match.string[: match.start()].count("\n") + 1


def formatted(value: float, shown: str) -> str:
    """Format a value with the decimal places, the plus sign and the power of ten of a number that is shown."""
    mantissa, _, exponent = shown.partition("e")
    value = value / 10 ** int(exponent) if exponent else value
    text = f"{value:{'+' if shown[0] == '+' else ''}.{len(mantissa.partition('.')[2])}f}"
    text = text if float(text) else text.replace("-", "")  # no minus zero
    return f"{text}e{exponent}" if exponent else text


def stale(before: str, after: str) -> Iterator[str]:
    """For each number and line of a page that changes: where it is, what it says and what it should say."""
    found = zip(_NUMBER.finditer(before), _NUMBER.finditer(after), strict=True)
    for old, new in found:
        if old[1] != new[1]:
            yield f"{_line(old)}: says {old[1]}, should say {new[1]} ({old[2]}); run make results"
    for old, new in zip(_BLOCK.finditer(before), _BLOCK.finditer(after), strict=True):
        yield from (f"{_line(old) + line}: table {old[2]}: {text}" for line, text in stale_lines(old[3], new[3]))


def unsourced(page: str) -> list[tuple[int, str]]:
    """Find numbers with a decimal point in the prose of a page that have no source, with their lines."""
    for pattern in (_BLOCK, _NUMBER, _COMMENT, _NO_PROSE):
        page = pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), page)
    return [(_line(match), match[0]) for match in _DECIMAL.finditer(page)]


if __name__ == "__main__":
    sys.exit(main())
