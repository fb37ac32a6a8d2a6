"""The tables about longer training, 100 classes, MNIST and digits, and the figures of the README."""

from __future__ import annotations

from statistics import mean

from cells import (
    FIVE,
    LONG,
    MEASURED,
    P_UNKNOWN,
    Blocks,
    at_sparsities,
    at_trainings,
    cell,
    difference,
    differences_table,
    goals_table,
    label,
    line_about_tests,
    markdown,
    metric_name,
    networks_table,
    subtracted,
)
from kept import Kept
from sources import (
    FIRST_TRIAL_FAR,
    FIRST_TRIAL_PAIRS,
    LENET_PAIRS,
    LENGTH_PAIRS,
    MNIST_PAIRS,
    TIN100_PAIRS,
    Pair,
    test_family,
    tested,
)

from moon.metrics import interval
from moon.results.format import MISSING, interval_text

BLOCKS = Blocks()
BEST = "cifar10/rigl95/moon-logitnorm@300"
BEST_GOALS = {"fisher near": 91.5, "fisher far": 97.0, "accuracy": 94.0, "ece-scaled": 0.015}
SEARCHED = (
    "moon-logitnorm",
    "moon-logitnorm@300",
    *(f"moon-logitnorm,{change}" for change in ("w_f=4", "temperature=0.02", "temperature=0.08")),
    *(f"moon-logitnorm,{change}" for change in ("weight_decay=0.001", "t_end_share=0.8")),
    "logitnorm+vote",
    "w_f=4",
)
FIRST_TRIAL_NEAR = (68, 70)  # of every method
LENET_COLUMNS = ["MSP", "EBO", "KNN", "Fisher", "accuracy %", "ECE", "ECE, scaled"]


def detector_name(detector: str | None) -> str:
    """'GEN, scaled' for `gen:scaled`."""
    return MISSING if detector is None else metric_name(detector).replace(":SCALED", ", scaled")


@BLOCKS.add
def search(kept: Kept) -> str:
    rows = at_trainings("cifar10-search/rigl95", SEARCHED)
    return networks_table(kept, ["training"], rows, ["accuracy %", "ECE, scaled", "MSP", "FDBD", "KNN"])


@BLOCKS.add
def best(kept: Kept) -> str:
    seeds = [([f"`best-1`, seed {seed}"], f"{BEST}/s{seed}") for seed in kept.runs(BEST)]
    rows = at_trainings("cifar10/rigl95", ("plain", "control", "logitnorm+vote", "moon-logitnorm", *LONG[:-1]))
    rows += [*seeds, (["**`best-1`**"], BEST), (["`best-1`, mirrored"], f"{BEST}+mirrored")]
    rows += at_trainings("cifar10/rigl95", ["logitnorm+vote@300+mirrored"])
    return networks_table(kept, ["training"], rows, ["accuracy %", "ECE, scaled", "MSP", "FDBD", "KNN", "Fisher"])


@BLOCKS.add
def goals(kept: Kept) -> str:
    return goals_table(BEST_GOALS, kept.by_seed(BEST))


@BLOCKS.add
def fair(kept: Kept) -> str:
    """Networks that were trained for as many epochs, each with the detector that is best on validation images."""
    rows = [
        ([label(training), detector_name(kept.chosen(network))], network)
        for training in LONG
        for network in [f"cifar10-open/rigl95/{training}"]
    ]
    columns = ["chosen detector", "MSP", "accuracy %", "ECE, scaled"]
    return networks_table(kept, ["training", "detector"], rows, columns)


@BLOCKS.add
def length_differences(kept: Kept) -> str:
    columns = ["MSP", "EBO", "KNN", "chosen detector", "accuracy %", "ECE, scaled"]
    return differences_table(kept, "length", LENGTH_PAIRS, columns)


@BLOCKS.add
def tin100(kept: Kept) -> str:
    rows = at_trainings("tin100/rigl95", (*FIVE, "quick"))
    return networks_table(kept, ["training"], rows, ["MSP", "EBO", "KNN", "Fisher", "accuracy %", "ECE, scaled"])


@BLOCKS.add
def tin100_all(kept: Kept) -> str:
    columns = ["MSP", "EBO", "EBO, T = 1", "KNN", "Fisher", "unknown", "accuracy %", "ECE", "ECE, scaled"]
    return networks_table(kept, ["sparsity", "training"], at_sparsities("tin100", FIVE), columns)


@BLOCKS.add
def tin100_weights(kept: Kept) -> str:
    names = {"control": "control", "w_f=0.1": "w_f = 0.1", "w_f=1": "w_f = 1", "moon": "w_f = 2", "w_f=4": "w_f = 4"}
    rows = [([name], f"tin100/rigl95/{training}/s0") for training, name in names.items()]
    columns = ["MSP", "EBO", "KNN", "Fisher", "unknown", "accuracy %", "ECE", "ECE, scaled"]
    return networks_table(kept, ["seed 0"], rows, [*columns, P_UNKNOWN])


@BLOCKS.add
def tin100_64(kept: Kept) -> str:
    rows = [(["ResNet-50, 64x64"], "tin100-64/rigl80/moon"), (["ResNet-18, 32x32"], "tin100/rigl80/moon")]
    columns = ["MSP", "EBO", "KNN", "Fisher", "unknown", "accuracy %", "ECE", "ECE, scaled"]
    return networks_table(kept, [""], rows, [*columns, P_UNKNOWN])


@BLOCKS.add
def tin100_differences(kept: Kept) -> str:
    columns = ["MSP", "EBO", "KNN", "Fisher", "accuracy %", "ECE, scaled"]
    return differences_table(kept, "tin100", TIN100_PAIRS, columns)


@BLOCKS.add
def first_trial(kept: Kept) -> str:
    rows = []
    for training, far in FIRST_TRIAL_FAR.items():
        cells = []
        for group, claimed in (("near", FIRST_TRIAL_NEAR), ("far", (far, far))):
            values = list(kept.values(f"tin100/rigl95/{training}", f"msp {group}").values())
            low, high = interval(values)
            agrees = low <= claimed[1] and claimed[0] <= high
            claim = " to ".join(dict.fromkeys(map(str, claimed)))
            cells += [claim, f"{mean(values):.1f} {interval_text(low, high, 1)}", "yes" if agrees else "no"]
        rows.append([label(training), str(len(kept.runs(f"tin100/rigl95/{training}"))), *cells])
    headings = [f"{group}: {name}" for group in ("near", "far") for name in ("first trial", "ours", "agrees")]
    return markdown(["training", "n", *headings], rows)


@BLOCKS.add
def first_trial_differences(kept: Kept) -> str:
    rows = []
    for a, b in FIRST_TRIAL_PAIRS:
        first, second = a.split("/")[2], b.split("/")[2]
        near, far = (tested(kept, "first-trial", Pair(a, b, f"msp {group}")) for group in ("near", "far"))
        texts = [text for found in (near, far) for text in (difference(found, 1), f"{found.p:.3f}")]
        claimed = FIRST_TRIAL_FAR[first] - FIRST_TRIAL_FAR[second]
        agrees = "yes" if far.interval[0] <= claimed <= far.interval[1] else "no"
        rows.append([f"{label(first)} - {label(second)}", *texts, f"{claimed:+d}" if claimed else "0", agrees])
    headings = ["MSP near", "p", "MSP far", "p", "far, first trial", "agrees"]
    return f"{markdown(['', *headings], rows)}\n\n{line_about_tests(test_family(kept, 'first-trial'))}"


@BLOCKS.add
def mnist(kept: Kept) -> str:
    rows = [
        ([name, label(training)], f"mnist/{topology}/{training}")
        for topology, name in (("dense", "dense"), ("rigl95", "RigL 95%"))
        for training in ("plain", "control", "moon")
    ]
    return networks_table(kept, ["", "training"], rows)


@BLOCKS.add
def mnist_differences(kept: Kept) -> str:
    def name(pair: tuple[str, str]) -> str:
        return f"{'RigL 95%' if '/rigl95/' in pair[0] else 'dense'}: {subtracted(pair)}"

    return differences_table(kept, "mnist", MNIST_PAIRS, MEASURED, name=name)


@BLOCKS.add
def mnist_lenet(kept: Kept) -> str:
    rows = at_trainings("mnist-lenet/dense", ("plain", "control", "moon"))
    return networks_table(kept, ["training"], rows, LENET_COLUMNS)


@BLOCKS.add
def mnist_lenet_differences(kept: Kept) -> str:
    return differences_table(kept, "mnist-lenet", LENET_PAIRS, LENET_COLUMNS)


@BLOCKS.add
def mnist_sets(kept: Kept) -> str:
    """AUROC of MSP on each unknown set: the paper's, and ours with two networks."""
    sets = {"notMNIST": "notmnist", "FashionMNIST": "fashionmnist", "DTD": "dtd", "Places": "places"}
    sets |= {"CIFAR-10": "cifar10", "Tiny ImageNet": "tin", "SVHN": "svhn"}
    of_paper = {"dtd": "texture", "places": "places365"}
    rows = []
    for training in ("plain", "moon"):
        paper = [kept.values(f"paper-mnist/dense/{training}", f"msp {of_paper.get(s, s)}") for s in sets.values()]
        texts = [f"{mean(found.values()):.1f}" if found else MISSING for found in paper]
        rows.append([label(training), "the paper's", "", *texts])
        for collection, name in (("mnist-lenet", "our LeNet"), ("mnist", "our ResNet-18")):
            network = f"{collection}/dense/{training}"
            cells = [cell(kept, network, (f"msp {each}",), 1) for each in sets.values()]
            rows.append([label(training), name, str(len(kept.runs(network))), *cells])
    return markdown(["training", "network", "n", *sets], rows)


@BLOCKS.add
def demo(kept: Kept) -> str:
    names = {"plain": "plain RigL", "outlier-exposure": "RigL + outliers", "moon": "MOON + RigL"}
    metrics = {"accuracy %": ("accuracy", 1), "ECE": ("ece", 3)}
    metrics |= {
        f"{d.upper()} {kind}": (f"{d} {kind}", 1) for d in ("msp", "ebo", "knn") for kind in ("letters", "textures")
    }
    rows = []
    for training, name in names.items():
        network = f"demo/rigl95/{training}"
        cells = [cell(kept, network, (metric,), digits) for metric, digits in metrics.values()]
        rows.append([name, str(len(kept.runs(network))), *cells])
    return markdown(["", "n", *metrics], rows)


README = {
    "cifar10-open/dense/plain": "cross-entropy, dense",
    "cifar10-open/rigl95/plain": "cross-entropy",
    "cifar10-open/rigl95/moon": "MOON",
    "cifar10-open/rigl95/logitnorm+vote": "normalised logits, with MOON's learning rates and vote",
    "cifar10-open/rigl95/quick@300": "`best-2`, 300 epochs",
    "cifar10-open/dense/quick@300": "`best-2`, 300 epochs, dense",
}


@BLOCKS.add
def readme(kept: Kept) -> str:
    columns = {
        "accuracy %": "accuracy", "AUROC near": "msp near", "AUROC far": "msp far",
        "FPR-95 near": "msp near fpr95", "FPR-95 far": "msp far fpr95",
    }  # fmt: skip
    rows = [[title, *(cell(kept, name, [key], 1) for key in columns.values())] for name, title in README.items()]
    return markdown(["training", *columns], rows)
