"""The tables about how runs are evaluated: near sets, repeated runs, and the choice of the test images."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import sqrt
from statistics import mean

from cells import FOUR, Blocks, markdown, near_and_far
from images import contributions, ends, over_images
from kept import Kept, is_same

from moon.metrics import interval
from moon.results.collect import Run
from moon.results.format import interval_text

BLOCKS = Blocks()


@BLOCKS.add
def near_sets(kept: Kept) -> str:
    """How much higher AUROC with MSP is without the classes of CIFAR-10."""
    found = [_near_sets(run) for runs in kept.collection("cifar10-open").values() for run in runs.values()]
    every = [values for values in found if values]
    gains = [sorted(run[b] - run[a] for run in every) for a, b in ((1, 2), (3, 4))]
    by_set, by_mean = (f"{found[0]:.1f} to {found[-1]:.1f} points" for found in gains)
    return f"With MSP `tin-open` is {by_set} above `tin` in each of {len(every)} runs, the near mean {by_mean} higher."


def _near_sets(run: Run) -> list[float]:
    """AUROC on each near set, and near with `tin` and with `tin-open`; nothing if `tin` was not scored."""
    by_set = run.summary["detectors"]["msp"]["sets"]
    if "tin" not in by_set:
        return []
    part, tin, tin_open = (100 * by_set[key]["auroc"] for key in ("cifar100-part", "tin", "tin-open"))
    return [part, tin, tin_open, (part + tin) / 2, (part + tin_open) / 2]


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
        rows.append([name, *numbers])
    return markdown(["", *near_and_far("MSP", "EBO", "KNN"), "accuracy"], rows)


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
