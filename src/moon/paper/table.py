"""Our numbers beside the paper's: read from run folders, with intervals and tests; as text, Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from math import nan
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Group
from rich.text import Text

from moon.data import BENCHMARKS, Benchmark, benchmark
from moon.metrics import holm, interval, paired_test, verdict
from moon.paper.spec import EPOCHS, FILL_METRICS, PAPER_NAMES, Item, Line, Scale, called, published
from moon.paper.values import Runs
from moon.results.tables import fitted, which_images

LOWER_IS_BETTER = ("fpr95", "ece", "ece_scaled", "time_ratio")
_FOUR_DIGITS = ("ece", "ece_scaled", *FILL_METRICS)
_MARKS = {"better": "▲", "worse": "▼", "no evidence": ""}


@dataclass(frozen=True)
class Number:
    """One number of a table: our values by seed, and the paper's mean and deviation, in the units shown."""

    line: Line
    set: str  # "" for metrics of known inputs
    ours: Mapping[int, float]
    paper: tuple[float, float | None] | None

    @property
    def digits(self) -> int:
        return 4 if self.line.metric in _FOUR_DIGITS else 3 if self.line.metric == "time_ratio" else 2

    def text(self) -> str:
        """'88.17 ± 0.20', or '-' where nothing was run."""
        if not self.ours:
            return "-"
        values = list(self.ours.values())
        spread = f" ± {stdev(values):.{self.digits}f}" if len(values) > 1 else ""
        return f"{mean(values):.{self.digits}f}{spread}"

    def paper_text(self) -> str:
        """'paper 87.43, +0.74', or nothing where the paper has no number for these data."""
        if self.paper is None:
            return ""
        there = f"paper {self.paper[0]:.{self.digits}f}"
        return f"{there}, {mean(self.ours.values()) - self.paper[0]:+.{self.digits}f}" if self.ours else there


@dataclass(frozen=True)
class Claim:
    """A comparison of two trainings, all else alike, over seeds that both have: at one sparsity, or over several."""

    both: tuple[tuple[Number, Number], ...]  # at each sparsity
    p: float  # Holm's, among the claims of one sparsity in the table, or among those over several; NaN of one pair

    @property
    def number(self) -> Number:
        return self.both[0][0]

    @property
    def against(self) -> Number:
        return self.both[0][1]

    @property
    def word(self) -> str:
        """better, no evidence or worse; with one seed no claim is made."""
        a, b = self.pairs()
        if len(a) < 2:
            return "one seed"
        return verdict(a, b, self.p, higher_is_better=self.number.line.metric not in LOWER_IS_BETTER)

    def pairs(self) -> tuple[list[float], list[float]]:
        shared = [(a.ours[seed], b.ours[seed]) for a, b in self.both for seed in a.ours if seed in b.ours]
        return [a for a, _ in shared], [b for _, b in shared]

    def text(self) -> str:
        """A line that a person reads."""
        a, b = self.pairs()
        line, other = self.number.line, self.against.line
        places = ", ".join(dict.fromkeys(_words(number.line, ["sparsity"])[0] for number, _ in self.both))
        network = dict.fromkeys([*_words(line, ("data", "topology")), places])  # dense is both topology and sparsity
        where = " ".join([*network, *_words(line, ("detector", "metric")), self.number.set]).strip()
        difference = mean(x - y for x, y in zip(a, b, strict=True))
        digits = self.number.digits
        head = f"{called(line.training)} against {called(other.training)}, {where}: {difference:+.{digits}f}"
        if len(a) < 2:
            return f"{head} (one seed: no claim)"
        low, high = interval([x - y for x, y in zip(a, b, strict=True)])
        chance = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"
        return f"{head} [{low:+.{digits}f}, {high:+.{digits}f}], n = {len(a)}, {chance}: {self.word}"


@dataclass(frozen=True)
class Sheet:
    """A table or figure with its numbers."""

    item: Item
    numbers: tuple[Number, ...]
    claims: tuple[Claim, ...]
    pooled: tuple[Claim, ...]  # the same over all sparsities
    images: str  # which ones were used
    names: tuple[str, ...]  # of the runs, the first seed's first
    runs: tuple[int, int]  # done, needed
    differs: str = ""  # how the runs are not the paper's

    @classmethod
    def read(cls, item: Item, scale: Scale, root: Path, folder: Path) -> Sheet:
        """From the run folders in `folder`; what was not run is missing."""
        rows = {data: benchmark(root, scale.benchmarks[data]) for data in dict.fromkeys(n.data for n in item.lines)}
        # Where another benchmark stands for the paper's data, the line is of that one, whatever the paper's was.
        instead = {data: row.name for data, row in rows.items() if row.known_set != data}
        lines: dict[Line, Benchmark] = {}
        for line in map(scale.reduced, item.lines):
            lines.setdefault(replace(line, data=instead.get(line.data, line.data)), rows[line.data])
        runs = Runs(folder, scale, lines)
        numbers = []
        for line, row in lines.items():
            for name in _sets(item, line, row):
                found = {seed: runs.value(line, name, seed) for seed in scale.seeds_of(line)}
                ours = {seed: value for seed, value in found.items() if value is not None}
                numbers.append(Number(line, name, ours, _paper(item, line, name, row)))
        notes = [f"{name} stands for the paper's {called(data)}" for data, name in instead.items()]
        if notes and scale.sparsities:
            notes.append(f"sparsities are the nearest of {', '.join(f'{s:.0%}' for s in scale.sparsities)}")
        if scale.epochs != EPOCHS:
            notes.append(f"{scale.epochs} epochs, the paper's {EPOCHS}")
        notes += [f"{key} {value}" for key, value in scale.settings.items()]
        notes += runs.notes()
        images = which_images(runs.seen.values()) if runs.seen else ""
        claims = _claims(item, numbers)
        return cls(
            item, tuple(numbers), claims, _pooled(claims), images, runs.names(), (runs.done, runs.needed),
            "; ".join(notes),
        )  # fmt: skip

    def grid(self) -> tuple[list[str], list[tuple[str, list[Number | None]]]]:
        """Headings of the columns, and for each row its label and numbers."""
        facts = [f.name for f in fields(Line) if f.name not in self.item.columns]
        varying = [name for name in facts if len({getattr(n.line, name) for n in self.numbers}) > 1]
        table: dict[str, dict[str, Number]] = {}
        columns: dict[str, None] = {}
        for number in self.numbers:
            label = " ".join(_words(number.line, varying)) or called(number.line.training)
            words = _words(number.line, [n for n in self.item.columns if n != "set"])
            if "metric" in self.item.columns and len({n.line.metric for n in self.numbers}) == 1:
                words = [w for w in words if w != called(number.line.metric)]
            column = " ".join([*words, number.set if "set" in self.item.columns else ""]).strip() or "value"
            columns[column] = None
            table.setdefault(label, {})[column] = number
        return list(columns), [(label, [row.get(column) for column in columns]) for label, row in table.items()]

    def mark(self, number: Number | None) -> str:
        """▲ or ▼ where a test found the number better or worse than the first it is compared with."""
        return next((_MARKS.get(claim.word, "") for claim in self.claims if claim.number is number), "")

    def notes(self) -> list[str]:
        """What a reader must know beside the numbers."""
        lines = [self.item.note] * bool(self.item.note)
        lines += [f"Not as in the paper: {self.differs}."] * bool(self.differs)
        done, needed = self.runs
        if done < needed:
            lines.append(f"{needed - done} of {needed} runs are missing.")
        if any(not number.ours for number in self.numbers):
            lines.append("'-' is a number that was not measured.")
        if any(claim.word == "one seed" for claim in self.claims):
            lines.append("One seed: no claim is made.")
        if any(self.mark(number) for number in self.numbers):
            rivals = ", ".join(dict.fromkeys(called(claim.against.line.training) for claim in self._first_claims()))
            lines.append(
                f"▲ better, ▼ worse than {rivals}: paired t-test over seeds, Holm's correction within the table, 5%."
            )
        if any(number.paper is not None for number in self.numbers):
            lines.append("Ours, then the paper's mean, then the difference.")
        if self.images:
            lines.append(self.images)
        return lines

    def _first_claims(self) -> list[Claim]:
        """The claim that a number is marked by, of each that has one."""
        return list({id(claim.number): claim for claim in reversed(self.claims)}.values())

    def claim_lines(self) -> list[str]:
        """The comparisons that sum the table up: means over sets, and known inputs; over all sparsities first."""
        return [claim.text() for claim in self.pooled + self.claims if claim.number.set in ("near", "far", "")]

    def show(self, width: int = 80) -> Group:
        """For a terminal: in several tables, one below the other, where one would break words."""
        columns, rows = self.grid()
        is_wide = sum(max(len(column), 8) + 2 for column in columns) > width - 14
        if is_wide and len(rows) < len(columns):  # in a terminal it lies on its side
            sideways = [(column, [numbers[i] for _, numbers in rows]) for i, column in enumerate(columns)]
            columns, rows = [label for label, _ in rows], sideways
        cells = [["" if n is None else self._stack(n) for n in numbers] for _, numbers in rows]
        notes = map(Text, [*self.notes(), *self.claim_lines()])
        return Group(Text(self.title), *fitted([label for label, _ in rows], columns, cells, width), *notes)

    def _stack(self, number: Number) -> str:
        """Mean, deviation, the paper's mean and the difference, one below the other: many columns fit a terminal."""
        mean_text, _, spread = number.text().partition(" ± ")
        lines = [f"{mean_text}{self.mark(number)}", f"± {spread}" if spread else ""]
        if number.paper is not None:
            lines += [f"[dim]{part}[/]" for part in number.paper_text().removeprefix("paper ").split(", ")]
        return "\n".join(line for line in lines if line)

    @property
    def title(self) -> str:
        return f"{self.item.key}: {self.item.title}"

    def markdown(self) -> str:
        columns, rows = self.grid()
        lines = [f"## {self.title}", "", f"| | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
        for label, numbers in rows:
            cells = ["" if n is None else _stacked(f"{n.text()}{self.mark(n)}", n.paper_text()) for n in numbers]
            lines.append(f"| {label} | {' | '.join(cells)} |")
        lines += ["", *(f"{note}\n" for note in self.notes()), *(f"- {line}" for line in self.claim_lines())]
        return "\n".join(lines).rstrip() + "\n"

    def csv(self) -> str:
        """One line a number, complete."""
        text = io.StringIO()
        facts = [f.name for f in fields(Line)]
        names = ["table", *facts, "set", "n", "mean", "deviation", "low", "high", "paper_mean", "paper_deviation",
                 "difference", "against", "p", "verdict"]  # fmt: skip
        writer = csv.DictWriter(text, fieldnames=names, lineterminator="\n", restval="")
        writer.writeheader()
        for number in self.numbers:
            values, line = list(number.ours.values()), number.line
            entry: dict[str, Any] = {"table": self.item.key, "set": number.set, "n": len(values)}
            entry |= {name: getattr(line, name) for name in facts}
            entry |= {"mean": round(mean(values), 6) if values else ""}
            if len(values) > 1:
                low, high = interval(values)
                entry |= {"deviation": round(stdev(values), 6), "low": round(low, 6), "high": round(high, 6)}
            if number.paper is not None:
                entry |= {"paper_mean": number.paper[0], "paper_deviation": number.paper[1] or ""}
                if values:
                    entry["difference"] = round(mean(values) - number.paper[0], 6)
            own = [claim for claim in self.claims if claim.number is number]
            entry |= {
                "against": "; ".join(claim.against.line.training for claim in own),
                "p": "; ".join("" if claim.p != claim.p else f"{claim.p:.6f}" for claim in own),
                "verdict": "; ".join(claim.word for claim in own),
            }
            writer.writerow(entry)
        return text.getvalue()

    def latex(self) -> str:
        columns, rows = self.grid()
        lines = [r"\begin{table}", rf"\caption{{{_tex(self.item.title)}. {_tex(' '.join(self.notes()))}}}",
                 rf"\begin{{tabular}}{{l{'r' * len(columns)}}}", r"\toprule",
                 " & ".join(["", *map(_tex, columns)]) + r" \\", r"\midrule"]  # fmt: skip
        for label, numbers in rows:
            cells = ["" if n is None else _tex(f"{n.text()}{self.mark(n)}") for n in numbers]
            lines.append(" & ".join([_tex(label), *cells]) + r" \\")
            if any(n is not None and n.paper for n in numbers):
                papers = ["" if n is None else rf"\textit{{{_tex(n.paper_text())}}}" for n in numbers]
                lines.append(" & ".join(["", *papers]) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _paper(item: Item, line: Line, name: str, row: Benchmark) -> tuple[float, float | None] | None:
    """The paper's number for a set, or for a mean over the sets that it has; numbers of others are no neighbours."""
    numbers = published(item.key)
    group = {"near": row.near, "far": row.far}.get(name)
    if group is not None:
        theirs = getattr(BENCHMARKS.get(line.data), name, ())
        if {PAPER_NAMES.get(s, s) for s in group} != {PAPER_NAMES.get(s, s) for s in theirs}:
            return None
    return numbers.get((line, PAPER_NAMES.get(name, name)))


def _sets(item: Item, line: Line, row: Benchmark) -> list[str]:
    """The columns of a line: unknown sets with their means, or one for what is measured on known inputs."""
    if not line.detector:
        return [""]
    if item.means_only:
        return [group for group, sets in (("near", row.near), ("far", row.far)) if sets]
    return [*row.near, *["near"] * bool(row.near), *row.far, *["far"] * bool(row.far)]


def _claims(item: Item, numbers: list[Number]) -> tuple[Claim, ...]:
    """Every comparison of the item for which there are values, with p adjusted over all of them."""
    by_place = {(n.line, n.set): n for n in numbers}
    pairs = [
        (number, other)
        for a, b in item.pairs
        for number in numbers
        if number.line.training == a and (other := by_place.get((replace(number.line, training=b), number.set)))
    ]
    return _tested([claim for pair in pairs if (claim := Claim((pair,), nan)).pairs()[0]])


def _pooled(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """What is compared at several sparsities, over all of them: few seeds each say little, together they say more."""
    alike: dict[Any, list[tuple[Number, Number]]] = {}
    for claim in claims:
        key = replace(claim.number.line, sparsity=0.0), claim.number.set, claim.against.line.training
        alike.setdefault(key, []).extend(claim.both)
    return _tested([Claim(tuple(both), nan) for both in alike.values() if len(both) > 1])


def _tested(claims: list[Claim]) -> tuple[Claim, ...]:
    p = holm([paired_test(*claim.pairs()) if len(claim.pairs()[0]) > 1 else nan for claim in claims])
    return tuple(replace(claim, p=float(value)) for claim, value in zip(claims, p, strict=True))


def _words(line: Line, names: Iterable[str]) -> list[str]:
    show: dict[str, Callable[[Any], str]] = {"sparsity": lambda s: f"{100 * s:g}%" if s else "dense"}
    words = [show.get(name, called)(getattr(line, name)) for name in names]
    return list(dict.fromkeys(word for word in words if word))


def _stacked(*lines: str) -> str:
    return "<br>".join(line for line in lines if line)


_TEX = str.maketrans({
    "\\": r"\textbackslash{}", "%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "^": r"\^{}", "~": r"\~{}", "±": r"$\pm$", "▲": r"$\uparrow$", "▼": r"$\downarrow$",
})  # fmt: skip


def _tex(text: str) -> str:
    return text.translate(_TEX)
