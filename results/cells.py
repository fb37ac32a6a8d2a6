"""Tables of networks and of differences between networks, as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import mean

from kept import Kept
from sources import Pair, test_family

from moon.metrics import interval
from moon.paper.names import display_name
from moon.paper.spec import SPARSITIES
from moon.results.compare import Comparison
from moon.results.format import MISSING, interval_text, mean_and_deviation, p_text, signed

_PRESETS = {"quick": "`quick`", "quick@300": "`best-2`"}  # trainings that tables name by their preset
# What the columns of a table of networks show: metrics, separated by " / " in the cell, and decimal places.
COLUMNS: dict[str, tuple[tuple[str, ...], int]] = {
    **{
        f"{name} {group}": ((f"{key} {group}",), 1)
        for key, name in {"msp": "MSP", "ebo": "EBO", "knn": "KNN", "fisher": "Fisher"}.items()
        for group in ("near", "far", "letters", "textures")
    },
    "Fisher": (("fisher near", "fisher far"), 1),
    "accuracy %": (("accuracy",), 1),
    "ECE": (("ece",), 3),
    "ECE, scaled": (("ece-scaled",), 3),
}


def near_and_far(*detectors: str, parts: Sequence[str] = ("near", "far")) -> list[str]:
    """Columns with the AUROC of detectors."""
    return [f"{name} {part}" for name in detectors for part in parts]


FOUR = ("plain", "control", "moon", "moon-logitnorm")
FIVE = ("plain", "control", "moon", "logitnorm+vote", "moon-logitnorm")
LONG = ("plain@300", "control@300", "logitnorm+vote@300", "moon-logitnorm@300")


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["|" + "".join(f" {text} |" if text else " |" for text in row) for row in (headings, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(headings)}", *lines[1:]])


def label(training: str) -> str:
    """The name that readers see for a training: 'LogitNorm + vote, 300 epochs' for `logitnorm+vote@300`."""
    if training in _PRESETS:
        return _PRESETS[training]
    name, mirrored, _ = training.partition("+mirrored")
    name, _, epochs = name.partition("@")
    first, *more = name.split(",")
    parts = [
        display_name(first),
        *more,
        *([f"{epochs} epochs"] if epochs else []),
        *(["mirrored"] if mirrored else []),
    ]
    return ", ".join(part.replace("=", " = ") for part in parts)


def label_without_epochs(training: str) -> str:
    """The label of a training where the number of epochs is shown elsewhere."""
    return label(training if training in _PRESETS else training.partition("@")[0])


def at_sparsities(collection: str, trainings: Sequence[str]) -> Iterator[tuple[list[str], str]]:
    """Rows of a table: the sparsity and the training, and the network."""
    for sparsity in SPARSITIES:
        for training in trainings:
            yield [f"{sparsity:.0%}", label(training)], f"{collection}/rigl{100 * sparsity:g}/{training}"


def at_trainings(place: str, trainings: Iterable[str]) -> list[tuple[list[str], str]]:
    """Rows of a table: the training, and the network at one COLLECTION/TOPOLOGY."""
    return [([label(training)], f"{place}/{training}") for training in trainings]


def cell(kept: Kept, network: str, metrics: Sequence[str], digits: int) -> str:
    """Mean and standard deviation of some metrics; with n where fewer seeds have them than the network has."""
    values = [list(kept.values(network, metric).values()) for metric in metrics]
    if not any(values):
        return MISSING
    text = " / ".join(mean_and_deviation(found, digits, 1.0) for found in values)
    least = min(map(len, values))
    return text if least == len(kept.runs(network)) else f"{text} (n = {least})"


def networks_table(
    kept: Kept, headings: Sequence[str], rows: Iterable[tuple[Sequence[str], str]], columns: Sequence[str]
) -> str:
    """A table with the labels, the number of seeds and the metrics of one network in each row.

    Columns are keys of `COLUMNS`. A network without runs has n = 0 and a dash in each cell.
    """

    found = (
        [*labels, str(len(kept.runs(network))), *(cell(kept, network, *COLUMNS[column]) for column in columns)]
        for labels, network in rows
    )
    return markdown([*headings, "n", *columns], found)


def difference(found: Comparison | None, digits: int) -> str:
    """A difference with its 95% interval if there are three seeds; bold if it is significant after correction."""
    if found is None:
        return MISSING
    text = signed(found.difference, digits)
    if len(found.a) > 2:
        text += f" {interval_text(*found.interval, digits, sign=True)}"
    return f"**{text}**" if found.verdict in ("better", "worse") else text


def subtracted(pair: tuple[str, str]) -> str:
    """What a row of differences is called: the trainings of two networks."""
    a, b = (label(network.split("/")[2]) for network in pair)
    return f"{a} - {b}"


def differences_table(
    kept: Kept,
    family: str,
    pairs: Sequence[tuple[str, str]],
    columns: Sequence[str],
    heading: str = "",
    name: Callable[[tuple[str, str]], str] = subtracted,
) -> str:
    """A table with a difference of two networks in each row, paired by seed, and a line about the tests below it.

    Columns are keys of `COLUMNS`, n is the number of seeds that both networks have, and the comparisons of `family` are
    tested together.
    """
    tested = test_family(kept, family)
    rows = []
    for a, b in pairs:
        cells, counts = [], {0}
        for column in columns:
            metrics, digits = COLUMNS[column]
            found = [tested.get(Pair(a, b, metric)) for metric in metrics]
            counts |= {len(each.a) for each in found if each is not None}
            texts = [difference(each, digits) for each in found]
            cells.append(" / ".join(texts) if any(found) else MISSING)
        rows.append([name((a, b)), str(max(counts)), *cells])
    return f"{markdown([heading, 'n', *columns], rows)}\n\n{line_about_tests(tested, name)}"


def line_about_tests(tested: dict[Pair, Comparison], name: Callable[[tuple[str, str]], str] = subtracted) -> str:
    """What was tested, and the smallest p-values."""
    several = {pair: found for pair, found in tested.items() if found.p == found.p}
    if not several:
        return "No comparison has three seeds, so none is tested."
    lowest = sorted(several.items(), key=lambda item: item[1].p)[:3]
    texts = [f"{name((pair.a, pair.b))}, {metric_name(pair.metric)}, {p_text(found.p)}" for pair, found in lowest]
    noun = "comparison" if len(several) == 1 else "comparisons"
    return (
        f"Bold: p < 0.05 in a paired t-test after Holm's correction over the {len(several)} {noun} with three "
        f"seeds or more. The smallest p-values: {'; '.join(texts)}."
    )


def metric_name(metric: str) -> str:
    """'MSP near' for `msp near`, 'ECE, scaled' for `ece-scaled`."""
    names = {"accuracy": "accuracy", "ece": "ECE", "ece-scaled": "ECE, scaled", "fisher": "Fisher"}
    kind, _, part = metric.partition(" ")
    return f"{names.get(kind, kind.upper())} {part}".strip()


class Blocks(dict[str, Callable[[Kept], str]]):
    """Functions that return a block of a page, by its name."""

    def add(self, function: Callable[[Kept], str]) -> Callable[[Kept], str]:
        """Decorate a function: it is added under its name, with dashes."""
        self[function.__name__.replace("_", "-")] = function
        return function


def goals_table(
    goals: Mapping[str, float],
    measured: Callable[[str], Sequence[float]],
    over_images: Callable[[str], str] | None = None,
) -> str:
    """Whether the mean over the seeds of a network, and its whole interval, reach a goal for each metric.

    `measured` returns the values of a metric by seed, `over_images` its interval over the images, in a column of its
    own. One seed has no interval, and a metric that was not measured has no mean: these cells have a dash.
    """
    rows = []
    for metric, goal in goals.items():
        values = measured(metric)
        digits, sign = (4, -1) if metric == "ece-scaled" else (2, 1)
        middle, ends = (mean(values),) if values else (), interval(values) if len(values) > 1 else ()
        is_reached = [min(sign * x for x in part) >= sign * goal if part else None for part in (middle, ends)]
        row = [
            metric_name(metric),
            f"{goal:g} or {'more' if sign > 0 else 'less'}",
            f"{middle[0]:.{digits}f}" if middle else MISSING,
            interval_text(*ends, digits) if ends else MISSING,
            *([over_images(metric)] if over_images else []),
            *({True: "yes", False: "no", None: MISSING}[is_it] for is_it in is_reached),
            ", ".join(f"{value:.{digits}f}" for value in values),
        ]
        rows.append(row)
    headings = ["", "goal", "mean", "95% t interval over seeds", *(["over images"] if over_images else [])]
    return markdown([*headings, "mean reaches it", "interval over seeds reaches it", "seeds"], rows)
