"""The tables about how runs are evaluated: near sets, repeated runs, the choice of the test images, and versions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from math import sqrt
from statistics import mean

from cells import FOUR, Blocks, goals_table, label, markdown, networks_table
from images import contributions, ends, over_images
from kept import Kept, is_same, read_all
from networks import FOLDERS
from sources import ABLATIONS, PARAMETERS
from tables_cifar10 import FIRST, ORDER
from tables_other import BEST, BEST_GOALS

from moon.metrics import interval
from moon.paper.names import display_name
from moon.results.collect import Run
from moon.results.format import interval_text
from moon.score.files import MIRRORED

BLOCKS = Blocks()
EVERY = (*ORDER, *ABLATIONS, *PARAMETERS)  # trainings in the order of the tables


# --- Tiny ImageNet without the classes of CIFAR-10, and repeated runs


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
    order = [label(training) for training in EVERY]
    return sorted(found, key=lambda row: (row[0][0] != "95%", row[0][0], [*order, row[0][1]].index(row[0][1])))


@BLOCKS.add
def near_sets(kept: Kept) -> str:
    rows, every = [], []
    for labels, name in _open(kept):
        runs = {seed: _near_sets(run) for seed, run in kept.runs(f"cifar10-open/{name}").items()}
        runs = {seed: values for seed, values in runs.items() if values}
        if not (found := [*runs.values()]):
            continue
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


def _near_sets(run: Run, detector: str = "msp") -> list[float]:
    """AUROC on each near set, and near with `tin` and with `tin-open`; nothing if `tin` was not scored."""
    by_set = run.summary["detectors"][detector]["sets"]
    if "tin" not in by_set:
        return []
    part, tin, tin_open = (100 * by_set[key]["auroc"] for key in ("cifar100-part", "tin", "tin-open"))
    return [part, tin, tin_open, (part + tin) / 2, (part + tin_open) / 2]


@BLOCKS.add
def goals_repeated(kept: Kept) -> str:
    """The goals of `best-1`, and the same seeds trained again."""
    network = BEST.replace("cifar10", "cifar10-open")

    def measured(metric: str) -> list[float]:
        if metric != "fisher near":
            return kept.by_seed(network)(metric)
        return [_near_sets(run, "fisher")[3] for run in kept.runs(network).values()]

    return goals_table(BEST_GOALS, measured)


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
        if seed in kept.runs(f"cifar10/{name}") and not is_same(run, kept.runs(f"cifar10/{name}")[seed])
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
def image_errors(kept: Kept) -> str:
    """The error of AUROC that comes from the choice of the test images, and that over seeds."""
    quick, best, reference = (f"cifar10-open/rigl95/{name}" for name in ("quick", "quick@300", "control@300"))
    rows = []
    for name, network, other, part in (
        ("`quick`, near", quick, None, "near"),
        ("`quick`, `cifar100-part` alone", quick, None, "cifar100-part"),
        ("`quick`, `tin-open` alone", quick, None, "tin-open"),
        ("`quick`, far", quick, None, "far"),
        ("`best-2` - control, 300 epochs, near", best, reference, "near"),
        ("`best-2` - control, 300 epochs, far", best, reference, "far"),
    ):
        metric = f"fisher {part}"
        _, error = over_images(kept, network, metric, other)
        values = kept.values(network, metric)
        if other:
            values = {seed: value - kept.values(other, metric)[seed] for seed, value in values.items()}
        middle, seeds = mean(values.values()), interval(list(values.values()))
        count = str(sum(map(len, contributions(kept, network, metric)[1:])))
        images = interval_text(*ends(middle, error), 2)
        rows.append([name, count, f"{middle:.2f}", interval_text(*seeds, 2), f"{error:.2f}", images])
    headings = ["unknown images", "mean", "seeds: 95% t interval", "images: standard error", "images: 95% interval"]
    return markdown(["", *headings], rows)


# --- Versions


@BLOCKS.add
def versions_by_seed(kept: Kept) -> str:
    """Which version trained which seed of the networks of results/cifar10, and of 300 epochs."""
    groups: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for name, runs in kept.collection(FIRST).items():
        if name.endswith("+mirrored"):
            continue
        topology, training = name.split("/")
        found = tuple(runs[seed].result["software"]["moon"] if seed in runs else "" for seed in range(3))
        groups.setdefault(found, {}).setdefault(_topology_name(topology), []).append(training)
    rows = []
    for found in sorted(groups):
        texts = [f"{place}: {', '.join(_names(trainings))}" for place, trainings in sorted(groups[found].items())]
        rows.append([*found, "; ".join(texts)])
    return markdown(["seed 0", "seed 1", "seed 2", "networks"], rows)


def _names(trainings: Sequence[str]) -> list[str]:
    """The names of trainings in the order of the tables, without commas."""
    ordered = sorted(trainings, key=lambda training: ([*EVERY, training].index(training), training))
    return [re.sub(r", (\d+ epochs)$", r" (\1)", label(training)) for training in ordered]


@BLOCKS.add
def versions(kept: Kept) -> str:
    runs = {folder: [r for r in read_all(kept.results / folder) if r.folder.name != MIRRORED] for folder in FOLDERS}
    counts = {folder: Counter(run.result["software"]["moon"] for run in found) for folder, found in runs.items()}
    names = sorted({version for count in counts.values() for version in count})
    rows = [
        [f"[{folder}](../../results/{folder}/)", *(str(count[name] or "") for name in names)]
        for folder, count in counts.items()
    ]
    return markdown(["runs in", *names], rows)
