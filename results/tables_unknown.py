"""The tables about the unknown output, and about detectors that depend on the scale of the logits."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean

from cells import P_UNKNOWN, Blocks, at_sparsities, label, markdown, networks_table
from kept import Kept, value

from moon.paper.spec import SPARSITIES
from moon.results.collect import Run
from moon.results.format import MISSING
from moon.run.log import read_log

BLOCKS = Blocks()
# Those at 99% were not scored at T = 1.
NORMALISED_TIN100 = [f"tin100/rigl{percent}/moon-logitnorm" for percent in (80, 90, 95)]


@BLOCKS.add
def p_unknown(kept: Kept) -> str:
    rows = list(at_sparsities("cifar10", ["moon"]))
    others = ("without-lm", "w_f=2", "w_f=4", "eow-softmax", "eow-softmax+vote")
    rows += [(["95%", label(name)], f"cifar10/rigl95/{name}") for name in others]
    return networks_table(kept, ["sparsity", "training"], rows, ["unknown", P_UNKNOWN])


def _again(kept: Kept, row: tuple[list[str], str]) -> list[tuple[list[str], str]]:
    """A row of CIFAR-10, and one with the runs that were trained again and scored on `tin-open`, if there are any."""
    labels, network = row
    opened = network.replace("cifar10/", "cifar10-open/")
    if not network.endswith("/moon-logitnorm") or opened == network or not kept.runs(opened):
        return [row]
    named = [f"{text}, repeated, `tin-open`" if text.endswith("%") else text for text in labels]
    return [row, (named, opened)]


@BLOCKS.add
def p_unknown_normalised(kept: Kept) -> str:
    rows = [each for row in at_sparsities("cifar10", ["moon-logitnorm"]) for each in _again(kept, row)]
    columns = ["unknown", P_UNKNOWN, "unknown, T = 1", f"T = 1, {P_UNKNOWN}"]
    return networks_table(kept, ["sparsity", "training"], rows, columns)


@BLOCKS.add
def energy(kept: Kept) -> str:
    rows = [
        ([data, percent, label(training)], f"{collection}/rigl{percent[:-1]}/{training}")
        for collection, data in (("cifar10", "CIFAR-10"), ("tin100", "100 classes"))
        for percent in ("80%", "90%", "95%", "99%")
        for training in ("logitnorm", "logitnorm+vote", "moon-logitnorm")
        if kept.runs(f"{collection}/rigl{percent[:-1]}/{training}")
    ]
    rows = [each for row in rows for each in _again(kept, row)]
    return networks_table(kept, ["known", "sparsity", "training"], rows, ["temperature", "EBO, T = 1", "EBO", "MSP"])


# --- Where the unknown logit is a constant, `unknown` ranks images as the energy does


def _gap(run: Run, suffix: str) -> float | None:
    """The largest difference between the AUROC of `unknown` and of `ebo` on any near or far set, in points."""
    detectors, sets = run.summary["detectors"], [*run.summary["near"], *run.summary["far"]]
    if (a := detectors.get(f"unknown{suffix}")) is None or (b := detectors.get(f"ebo{suffix}")) is None:
        return None
    return max(100 * abs(a["sets"][name]["auroc"] - b["sets"][name]["auroc"]) for name in sets)


def _by_seed(numbers: Iterable[float | None], digits: int) -> str:
    texts = [MISSING if number is None else f"{number:.{digits}f}" for number in numbers]
    return MISSING if {*texts} == {MISSING} else ", ".join(texts)


def _early(run: Run) -> str:
    """p(unknown) of correctly predicted validation images after two epochs, at T = 1."""
    if not (records := read_log(run.folder)):
        return MISSING
    found = records[1]["p_unknown_correct"]
    return f"{found:.0e}" if found else "0"


@BLOCKS.add
def unknown_constant(kept: Kept) -> str:
    """Which networks with normalised logits, on CIFAR-10, rank by `unknown` as by the energy."""
    places = {f"{sparsity:.0%}": f"rigl{100 * sparsity:g}/moon-logitnorm" for sparsity in SPARSITIES}
    places["95%, 300 epochs"] = "rigl95/moon-logitnorm@300"
    networks = {}
    for name, place in places.items():
        networks |= {name: f"cifar10/{place}", f"{name}, repeated": f"cifar10-open/{place}"}
    rows = []
    for name, network in networks.items():
        if not (runs := kept.runs(network)):
            continue
        gaps = [_by_seed((_gap(run, suffix) for run in runs.values()), 2) for suffix in (":unscaled", "")]
        fitted = _by_seed((value(run, "temperature") for run in runs.values()), 2)
        early = ", ".join(map(_early, runs.values()))
        late = _by_seed((value(run, "p-unknown:unscaled correct") for run in runs.values()), 3)
        rows.append([name, ", ".join(map(str, runs)), *gaps, early, late, fitted])
    headings = ["seeds", "`unknown` - EBO, T = 1", "the same at the fitted T", "p(unknown) after two epochs"]
    return markdown(["", *headings, "at the end", "fitted temperature"], rows)


@BLOCKS.add
def unknown_constant_tin100(kept: Kept) -> str:
    """Which networks with 100 classes rank by `unknown` as by the energy, at the temperature of the run."""
    rows = []
    for training in ("moon", "w_f=0.1", "w_f=1", "w_f=4", "moon-logitnorm"):
        for sparsity in SPARSITIES:
            network = f"tin100/rigl{100 * sparsity:g}/{training}"
            if runs := kept.runs(network):
                name = "MOON, w_f = 2" if training == "moon" else label(training)
                gaps = _by_seed((_gap(run, "") for run in runs.values()), 2)
                density = f"{value(next(iter(runs.values())), 'classifier-density'):.2f}"
                rows.append([f"{sparsity:.0%}", name, ", ".join(map(str, runs)), density, gaps])
    headings = ["sparsity", "training", "seeds", "density of the classifier"]
    return markdown([*headings, "`unknown` - EBO, the largest of all sets"], rows)


# --- The cards of `unknown` and of temperature scaling


@BLOCKS.add
def unknown_temperature(kept: Kept) -> str:
    """Detectors of MOON on normalised logits with 100 classes: the mean over all runs, and the lowest."""
    names = {
        "unknown:unscaled": "`unknown:unscaled` (T = 1)",
        "unknown": "`unknown` (fitted T)",
        "ebo": "`ebo` (fitted T)",
        "msp": "MSP",
    }
    rows = []
    for detector, name in names.items():
        cells = []
        for part in ("near", "far", "svhn", "dtd"):
            every = [kept.values(network, f"{detector} {part}") for network in NORMALISED_TIN100]
            values = [found for seeds in every for found in seeds.values()]
            cells.append(f"{mean(values):.1f} ({min(values):.1f})")
        rows.append([name, *cells])
    return markdown(["", "near", "far", "SVHN", "DTD"], rows)


@BLOCKS.add
def temperatures(kept: Kept) -> str:
    """Detectors at T = 1 and at the fitted temperature: means over the runs that were scored with both."""
    sparse = [f"tin100/rigl{100 * sparsity:g}" for sparsity in SPARSITIES]
    groups = {
        "CIFAR-10, LogitNorm": [f"cifar10/rigl95/{training}" for training in ("logitnorm", "logitnorm+vote")],
        "100 classes, LogitNorm": [f"{place}/logitnorm+vote" for place in sparse],
        "100 classes, cross-entropy": [f"{place}/{training}" for place in sparse for training in ("plain", "control")],
    }
    rows, counts = [], dict.fromkeys(groups, 0)
    for detector in ("ebo", "gen", "react", "nnguide", "vim", "msp"):
        cells = []
        for name, networks in groups.items():
            is_normalised = "LogitNorm" in name
            both = [
                values
                for network in networks
                for run in kept.runs(network).values()
                if _both(run, _at_two_temperatures("ebo", is_normalised))
                and (values := _both(run, _at_two_temperatures(detector, is_normalised)))
            ]
            counts[name] = counts[name] or len(both)  # that of the energy, the first detector
            note = "" if len(both) == counts[name] else f" (n = {len(both)})"
            cells += [" / ".join(f"{mean(run[i + j] for run in both):.1f}" for j in range(2)) + note for i in (0, 2)]
        rows.append(["MSP, `tempscale`" if detector == "msp" else f"`{detector}`", *cells])
    titles = [text for name, count in counts.items() for text in (f"{name} (n = {count})", "")]
    return markdown(["", *titles], [["", *("T = 1", "fitted T") * 3], *rows])


def _at_two_temperatures(detector: str, is_normalised: bool) -> tuple[str, str]:
    """The names of a detector at T = 1 and at the fitted temperature."""
    if detector == "msp":
        return "msp", "tempscale"
    return (f"{detector}:unscaled", detector) if is_normalised else (detector, f"{detector}:scaled")


def _both(run: Run, detectors: tuple[str, str]) -> list[float]:
    """AUROC near and far of two detectors; empty if one of them was not scored."""
    found = [value(run, f"{name} {group}") for name in detectors for group in ("near", "far")]
    values = [number for number in found if number is not None]
    return values if len(values) == len(found) else []
