"""The tables about CIFAR-10, about repeated runs and about versions, one function each.

`<!-- table sparsities -->` on a page is followed by what the function `sparsities` returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from math import sqrt
from statistics import mean

import numpy as np
from cells import (
    FIVE,
    FOUR,
    LONG,
    MEASURED,
    Blocks,
    at_sparsities,
    at_trainings,
    difference,
    differences_table,
    label,
    line_about_tests,
    markdown,
    metric_name,
    networks_table,
)
from kept import COLLECTIONS, OTHER_FOLDERS, Kept
from sources import (
    ABLATION_PAIRS,
    ABLATIONS,
    ADDED_PAIRS,
    LOGITNORM_PAIRS,
    MOON_PAIRS,
    NINE,
    NORMALISED_PAIRS,
    PARAMETERS,
    RIVAL_PAIRS,
    RIVALS,
    SUMMARY_PAIRS,
    VOTE_PAIRS,
    Pair,
    test_family,
)

from moon.files import open_regular
from moon.metrics import auroc
from moon.paper.names import display_name
from moon.paper.spec import SPARSITIES
from moon.results.collect import Run, collect

BLOCKS = Blocks()
MAIN = "cifar10"  # the collection of the first table of docs/results.md; `cifar10-open` has other near sets
SIX = (*FIVE[:3], "logitnorm", *FIVE[3:])
ORDER = [*FOUR, *(f"{name}{vote}" for name in RIVALS for vote in ("", "+vote")), "cigl-alone", "cigl"]


@BLOCKS.add
def cifar10(kept: Kept) -> str:
    columns = ["MSP", "EBO", "KNN", "Fisher", "accuracy %", "ECE, scaled"]
    rows = []
    for training in (*FIVE, "quick", *LONG):
        name, _, epochs = training.partition("@")
        rows.append(([epochs or "100", label(name)], f"{MAIN}/rigl95/{training}"))
    return networks_table(kept, ["epochs", "training"], rows, columns)


@BLOCKS.add
def sparsities(kept: Kept) -> str:
    columns = ["MSP", "the paper's MSP", *MEASURED[1:]]
    return networks_table(kept, ["sparsity", "training"], at_sparsities("cifar10", SIX), columns)


@BLOCKS.add
def summary_differences(kept: Kept) -> str:
    tested = test_family(kept, "summary")
    names = [" - ".join(label(network.split("/")[2]) for network in pair) for pair in SUMMARY_PAIRS]
    rows = []
    for metric in NINE:
        digits = 3 if metric.startswith("ece") else 2
        rows.append(
            [metric_name(metric), *(difference(tested.get(Pair(*pair, metric)), digits) for pair in SUMMARY_PAIRS)]
        )
    return f"{markdown(['', *names], rows)}\n\n{line_about_tests(tested)}"


@BLOCKS.add
def topologies(kept: Kept) -> str:
    networks = {"dense": "dense", "static95": "static 95%"}
    networks |= {f"set{100 * sparsity:g}": f"SET {sparsity:.0%}" for sparsity in SPARSITIES}
    rows = [
        ([name, label(training)], f"cifar10/{topology}/{training}")
        for topology, name in networks.items()
        for training in ("plain", "moon")
    ]
    return networks_table(kept, ["", "training"], rows, ["MSP", "the paper's MSP", *MEASURED[1:]])


@BLOCKS.add
def ablations(kept: Kept) -> str:
    rows = at_trainings("cifar10/rigl95", ("moon", *ABLATIONS, *PARAMETERS))
    return networks_table(kept, [""], rows, ["MSP", "the paper's MSP", *MEASURED[1:]])


@BLOCKS.add
def ablation_differences(kept: Kept) -> str:
    return differences_table(kept, "ablations", ABLATION_PAIRS, MEASURED)


@BLOCKS.add
def rivals(kept: Kept) -> str:
    rows = at_trainings("cifar10/rigl95", ORDER)
    return networks_table(kept, [""], rows, ["MSP", "the paper's MSP", *MEASURED[1:]])


@BLOCKS.add
def rival_differences(kept: Kept) -> str:
    return differences_table(kept, "rivals", RIVAL_PAIRS, MEASURED)


@BLOCKS.add
def moon_differences(kept: Kept) -> str:
    return differences_table(kept, "moon", MOON_PAIRS, MEASURED)


@BLOCKS.add
def normalised_differences(kept: Kept) -> str:
    return differences_table(kept, "normalised", NORMALISED_PAIRS, MEASURED)


@BLOCKS.add
def added_to_logitnorm(kept: Kept) -> str:
    return _by_sparsity(kept, "added", ADDED_PAIRS)


@BLOCKS.add
def vote_on_logitnorm(kept: Kept) -> str:
    return _by_sparsity(kept, "vote", VOTE_PAIRS)


@BLOCKS.add
def logitnorm_differences(kept: Kept) -> str:
    return _by_sparsity(kept, "logitnorm", LOGITNORM_PAIRS)


def _by_sparsity(kept: Kept, family: str, pairs: Sequence[tuple[str, str]]) -> str:
    columns = ["MSP", "KNN", "FDBD", "accuracy %", "ECE, scaled"]
    return differences_table(kept, family, pairs, columns, heading="sparsity", name=_sparsity)


def _sparsity(pair: tuple[str, str]) -> str:
    """The sparsity of a pair of networks, such as 90%."""
    percent = pair[0].split("/")[1].removeprefix("rigl")
    return f"{percent}%" if percent else "mean of the four"


# --- Tiny ImageNet without the classes of CIFAR-10, and repeated runs


def _is_same(a: Run, b: Run) -> bool:
    """Whether two folders contain the same run, not a repeated one."""
    return a.result == b.result


def _topology_name(topology: str) -> str:
    """'95%' for `rigl95`, 'SET 95%' for `set95`, 'dense'."""
    kind = topology.rstrip("0123456789.")
    sparsity = f"{topology.removeprefix(kind)}%" if kind != topology else ""
    return " ".join(part for part in (display_name(kind) if kind != "rigl" else "", sparsity) if part)


def _open(kept: Kept) -> list[tuple[list[str], str]]:
    """Sparsity, training and TOPOLOGY/TRAINING of the networks of cifar10-open, those at 95% first."""
    found = []
    for name in kept.collection("cifar10-open"):
        topology, training = name.split("/")
        found.append(([_topology_name(topology), label(training)], name))
    order = [label(training) for training in ORDER]
    return sorted(found, key=lambda row: (row[0][0] != "95%", row[0][0], [*order, row[0][1]].index(row[0][1])))


@BLOCKS.add
def near_sets(kept: Kept) -> str:
    rows, every = [], []
    for labels, name in _open(kept):
        runs = kept.runs(f"cifar10-open/{name}")
        found = [_near_sets(kept, name, seed, run) for seed, run in runs.items()]
        every += found
        means = [f"{mean(values):.1f}" for values in zip(*found, strict=True)]
        rows.append([*labels, ", ".join(map(str, runs)), *means])
    sets = ["`cifar100-part`", "`tin`", "`tin-open`", "near, with `tin`", "near, with `tin-open`"]
    gains = [sorted(run[b] - run[a] for run in every) for a, b in ((1, 2), (3, 4))]
    by_set, by_mean = (f"{found[0]:.1f} to {found[-1]:.1f} points" for found in gains)
    sentence = (
        f"In each of these {len(every)} runs `tin-open` is {by_set} above `tin`, and the near mean {by_mean} higher."
    )
    return f"{markdown(['sparsity', 'training', 'seeds', *sets], rows)}\n\n{sentence}"


def _near_sets(kept: Kept, name: str, seed: int, run: Run) -> list[float]:
    """AUROC with MSP on each near set. That on `tin` of a repeated run comes from the kept levels of its scores."""
    by_set = run.summary["detectors"]["msp"]["sets"]
    part, tin_open = (100 * by_set[key]["auroc"] for key in ("cifar100-part", "tin-open"))
    other = kept.runs(f"cifar10/{name}").get(seed)
    if other is not None and _is_same(run, other):
        tin = 100 * other.summary["detectors"]["msp"]["sets"]["tin"]["auroc"]
    else:
        path = kept.results / "cifar10-open" / "scores" / f"{run.folder.name}.npz"
        with open_regular(path) as file, np.load(file, allow_pickle=False) as levels:
            tin = 100 * auroc(levels["msp/known"], levels["msp/tin"])
    return [part, tin, tin_open, (part + tin) / 2, (part + tin_open) / 2]


@BLOCKS.add
def open_networks(kept: Kept) -> str:
    rows = [(labels, f"cifar10-open/{name}") for labels, name in _open(kept)]
    columns = ["MSP", "EBO", "KNN", "Fisher", "accuracy %", "ECE, scaled"]
    return networks_table(kept, ["sparsity", "training"], rows, columns)


@BLOCKS.add
def repeated(kept: Kept) -> str:
    detectors = ("msp", "ebo", "knn")
    metrics = [f"{name} {part}" for name in detectors for part in ("cifar100-part", "far")] + ["accuracy"]
    again = [
        (name, seed)
        for name, runs in kept.collection("cifar10-open").items()
        for seed, run in runs.items()
        if seed in kept.runs(f"cifar10/{name}") and not _is_same(run, kept.runs(f"cifar10/{name}")[seed])
    ]
    changes: dict[str, list[float]] = {}
    between_seeds: dict[str, list[float]] = {}
    for metric in metrics:
        both = [
            (kept.values(f"cifar10-open/{name}/s{seed}", metric), kept.values(f"cifar10/{name}/s{seed}", metric))
            for name, seed in again
        ]
        changes[metric] = [new[seed] - old[seed] for new, old in both for seed in new if seed in old]
        values = [kept.values(f"cifar10/rigl95/{training}", metric).values() for training in FOUR]
        between_seeds[metric] = [a - b for seeds in values for a, b in combinations(seeds, 2)]
    statistics = {
        f"mean of the {len(again)} differences": (changes, mean),
        "their root mean square": (changes, _root_mean_square),
        "the largest": (changes, lambda found: max(map(abs, found))),
        "root mean square, two seeds": (between_seeds, _root_mean_square),
    }
    rows = []
    for name, (differences, statistic) in statistics.items():
        numbers = [f"{statistic(differences[metric]):.2f}" for metric in metrics]
        rows.append([name, *(" / ".join(numbers[i : i + 2]) for i in range(0, 7, 2))])
    return markdown(["", "MSP", "EBO", "KNN", "accuracy"], rows)


def _root_mean_square(values: Sequence[float]) -> float:
    return sqrt(mean(value * value for value in values))


@BLOCKS.add
def versions(kept: Kept) -> str:
    folders = [folder for collection in COLLECTIONS.values() for folder in collection.folders]
    folders += [folder for folder in OTHER_FOLDERS if any((kept.results / folder).glob("*/recipe.json"))]
    counts = {}
    for folder in folders:
        runs, _ = collect([kept.results / folder])
        counts[folder] = Counter(run.result["software"]["moon"] for run in runs)
    names = sorted({version for count in counts.values() for version in count})
    rows = [
        [f"[{folder}](../../results/{folder}/)", *(str(count[name] or "") for name in names)]
        for folder, count in counts.items()
    ]
    return markdown(["runs in", *names], rows)
