"""Measure how well an existing model separates known from unknown inputs.

It works with any model whose classifier is a Linear layer.
"""

import torch
from torch import nn

from moon import Batches, DataSet, Energy, Klm, Knn, Msp, Odin, auroc, fpr_at_tpr, open_set, read


def batches(name: str, split: str) -> Batches:
    data = open_set("data", name, split)  # the extra "demo" installs these sets
    assert isinstance(data, DataSet)  # in memory; large benchmarks are streamed from disk
    return Batches(data, mean=(0.5,), std=(0.5,))


def your_model() -> nn.Module:
    """Train a small network. It stands for a torchvision or timm model with its weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(3):
        for x, y in batches("digits", "train").epoch(epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def main() -> None:
    model = your_model()
    # One forward pass over each set serves every detector except ODIN, which perturbs the inputs.
    train, val = read(model, batches("digits", "train")), read(model, batches("digits", "val"))
    known, unknown = read(model, batches("digits", "test")), read(model, batches("letters", "test"))
    for detector in (Msp(), Energy(), Knn().fit(train), Klm().fit(val), Odin(std=(0.5,))):
        sets = known, unknown
        if detector.perturbs:
            sets = (
                read(model, batches("digits", "test"), detector.perturb),
                read(model, batches("letters", "test"), detector.perturb),
            )
        a, b = (detector.score(evidence) for evidence in sets)
        print(f"{type(detector).__name__:8} AUROC {auroc(a, b):.3f}  FPR-95 {fpr_at_tpr(a, b):.3f}")


if __name__ == "__main__":
    main()
