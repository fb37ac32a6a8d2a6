"""A table or figure of the paper with its numbers, claims and notes, read from run folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from moon.data import Benchmark, find_benchmark
from moon.paper.claims import Claim, find_claims, pool_claims
from moon.paper.names import describe, display_name
from moon.paper.number import Number, read_numbers
from moon.paper.spec import EPOCHS, P_UNKNOWN_METRICS, Item, Measurement, Scale
from moon.paper.values import RunValues
from moon.results.compare import MIN_SEEDS, TOO_FEW
from moon.results.tables import describe_images
from moon.results.temperatures import describe_temperatures
from moon.score.temperatures import P_UNKNOWN
from moon.suggest import counted

_MARKS = {"better": "▲", "worse": "▼"}


@dataclass(frozen=True)
class PaperTable:
    """A table or figure of the paper with its numbers. `moon.paper.render` shows it, `moon.paper.figures` draws it.

    Attributes:
        item: What it consists of.
        numbers: Its numbers.
        claims: The comparisons that it makes at each sparsity.
        pooled_claims: The same comparisons over all sparsities.
        images: Which images the runs were scored on.
        run_names: The names of its runs, ordered by seed.
        runs_done: How many of its runs are finished and scored.
        runs_needed: How many runs it needs.
        departures: How the runs differ from the paper's.
        temperatures: By what the logits were divided, where a number depends on it.
    """

    item: Item
    numbers: tuple[Number, ...]
    claims: tuple[Claim, ...]
    pooled_claims: tuple[Claim, ...]
    images: str
    run_names: tuple[str, ...]
    runs_done: int
    runs_needed: int
    departures: str = ""
    temperatures: str = ""

    @classmethod
    def read(cls, item: Item, scale: Scale, root: Path, folder: Path) -> PaperTable:
        """Read the numbers of a table or figure."""
        names = dict.fromkeys(measurement.data for measurement in item.measurements)
        by_data = {data: find_benchmark(root, scale.benchmarks[data]) for data in names}
        # Where a benchmark of other data is used, measurements carry its name, and the paper has no numbers for them.
        replaced = {data: benchmark.name for data, benchmark in by_data.items() if benchmark.known_set != data}
        benchmarks: dict[Measurement, Benchmark] = {}
        for measurement in map(scale.with_nearest_sparsity, item.measurements):
            data = measurement.data
            benchmarks.setdefault(replace(measurement, data=replaced.get(data, data)), by_data[data])
        runs = RunValues(folder, scale, benchmarks, root)
        numbers = read_numbers(item, benchmarks, runs)
        claims = find_claims(item, numbers)
        return cls(
            item=item,
            numbers=tuple(numbers),
            claims=claims,
            pooled_claims=pool_claims(claims),
            images=describe_images(runs.summaries.values()) if runs.summaries else "",
            temperatures=describe_temperatures(runs.summaries.values(), _scale_dependent(item)),
            run_names=runs.names(),
            runs_done=runs.done,
            runs_needed=runs.needed,
            departures="; ".join([*_departures(scale, replaced), *runs.notes()]),
        )

    @property
    def title(self) -> str:
        """Key and title of the item."""
        return f"{self.item.key}: {self.item.title}"

    @property
    def missing_runs(self) -> str:
        """How many of its runs are missing, in words; "" if none is."""
        missing = self.runs_needed - self.runs_done
        verb = "is" if missing == 1 else "are"
        return f"{missing} of {counted(self.runs_needed, 'run')} {verb} missing" if missing else ""

    def grid(self) -> tuple[list[str], list[tuple[str, list[Number | None]]]]:
        """Arrange the numbers in rows and columns: headings, and for each row a label and numbers or None."""
        in_columns = self.item.columns
        row_fields = [f.name for f in fields(Measurement) if f.name not in in_columns]
        varying = [name for name in row_fields if len({getattr(n.measurement, name) for n in self.numbers}) > 1]
        has_one_metric = len({n.measurement.metric for n in self.numbers}) == 1
        column_fields = [name for name in in_columns if name != "set" and not (name == "metric" and has_one_metric)]
        table: dict[str, dict[str, Number]] = {}
        columns: dict[str, None] = {}
        for number in self.numbers:
            label = " ".join(describe(number.measurement, varying)) or display_name(number.measurement.training)
            words = [*describe(number.measurement, column_fields), number.set if "set" in in_columns else ""]
            column = " ".join(words).strip() or "value"
            columns[column] = None
            table.setdefault(label, {})[column] = number
        return list(columns), [(label, [row.get(column) for column in columns]) for label, row in table.items()]

    def mark(self, number: Number | None) -> str:
        """Return ▲ or ▼ if a number is significantly better or worse than the first one it is compared with."""
        return next((_MARKS.get(c.comparison.verdict, "") for c in self.claims if c.number is number), "")

    def notes(self) -> list[str]:
        """The remarks below the table."""
        lines = [self.item.note] * bool(self.item.note)
        lines += [f"Differences from the paper: {self.departures}."] * bool(self.departures)
        lines += [f"{self.missing_runs}."] * bool(self.missing_runs)
        if any(not number.ours for number in self.numbers):
            lines.append("'-' marks numbers that were not measured.")
        if any(claim.comparison.verdict == TOO_FEW for claim in self.claims):
            lines.append(f"No claim is made where there are fewer than {MIN_SEEDS} seeds.")
        if any(self.mark(number) for number in self.numbers):
            rivals = dict.fromkeys(display_name(c.against.measurement.training) for c in self._marking_claims())
            lines.append(
                f"▲ significantly better, ▼ significantly worse than {', '.join(rivals)} (paired t-test over seeds, "
                "Holm's correction within the table, 5% level)."
            )
        if any(number.paper is not None for number in self.numbers):
            lines.append("Each cell shows our number, then the paper's mean and the difference.")
        return lines + [text for text in (self.temperatures and f"{self.temperatures}.", self.images) if text]

    def _marking_claims(self) -> list[Claim]:
        """For each number that is compared, the claim that decides its mark: its first."""
        return list({id(claim.number): claim for claim in reversed(self.claims)}.values())

    def claim_lines(self) -> list[str]:
        """The comparisons that summarise the table, as text: near and far means, and metrics of known inputs."""
        every = self.pooled_claims + self.claims
        return [claim.text() for claim in every if claim.number.set in ("near", "far", "")]


def _scale_dependent(item: Item) -> set[str]:
    """What of an item may depend on the scale of the logits: its detectors, and p_unknown."""
    names = {measurement.detector for measurement in item.measurements}
    return names | {P_UNKNOWN} if any(m.metric in P_UNKNOWN_METRICS for m in item.measurements) else names


def _departures(scale: Scale, replaced: Mapping[str, str]) -> list[str]:
    """How runs at this scale, with these benchmarks for the paper's data sets, differ from the paper's."""
    lines = [f"{name} replaces the paper's {display_name(data)}" for data, name in replaced.items()]
    if replaced and scale.sparsities:
        lines.append(f"each sparsity is replaced by the nearest of {', '.join(f'{s:.0%}' for s in scale.sparsities)}")
    if scale.epochs != EPOCHS:
        lines.append(f"{scale.epochs} epochs instead of {EPOCHS}")
    return lines + [f"{key} {value}" for key, value in scale.settings.items()]
