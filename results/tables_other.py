"""The tables about 100 classes, MNIST and digits, and the figures of the README."""

from __future__ import annotations

from statistics import mean

from cells import FIVE, Blocks, at_trainings, cell, label, markdown, near_and_far, networks_table
from kept import Kept

from moon.results.format import MISSING

BLOCKS = Blocks()
COLUMNS = [*near_and_far("MSP", "EBO", "KNN"), "accuracy %"]


@BLOCKS.add
def tin100(kept: Kept) -> str:
    rows = at_trainings("tin100/rigl95", (*FIVE, "quick"))
    return networks_table(kept, ["training"], rows, [*near_and_far("MSP", "EBO", "KNN", "Fisher"), "accuracy %"])


@BLOCKS.add
def mnist(kept: Kept) -> str:
    rows = [
        ([name, label(training)], f"mnist/{topology}/{training}")
        for topology, name in (("dense", "dense"), ("rigl95", "RigL 95%"))
        for training in ("plain", "control", "moon")
    ]
    return networks_table(kept, ["", "training"], rows, COLUMNS)


@BLOCKS.add
def mnist_lenet(kept: Kept) -> str:
    rows = at_trainings("mnist-lenet/dense", ("plain", "control", "moon"))
    return networks_table(kept, ["training"], rows, COLUMNS)


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
    rows = [([name], f"demo/rigl95/{training}") for training, name in names.items()]
    sets = near_and_far("MSP", "EBO", "KNN", parts=("letters", "textures"))
    return networks_table(kept, [""], rows, ["accuracy %", "ECE", *sets])


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
