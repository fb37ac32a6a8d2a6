"""The tables of the cards of `unknown` and of temperature scaling."""

from __future__ import annotations

from statistics import mean

from cells import Blocks, markdown
from kept import Kept, value

from moon.paper.spec import SPARSITIES
from moon.results.collect import Run

BLOCKS = Blocks()
# Those at 99% were not scored at T = 1.
NORMALISED_TIN100 = [f"tin100/rigl{percent}/moon-logitnorm" for percent in (80, 90, 95)]


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
