"""How well a model you already have tells known from unknown: any torch model whose classifier is a Linear layer."""

import torch
from torch import nn

from moon import Energy, Klm, Knn, Msp, Odin, auroc, fpr_at_tpr, read
from moon.data import Batches
from moon.data.embedded import embedded


def batches(name: str, split: str) -> Batches:
    return Batches(embedded(name, split), mean=(0.5,), std=(0.5,))


def your_model() -> nn.Module:
    """Stands for a torchvision or timm model with its weights."""
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
    # One pass over each set serves every detector but ODIN, which looks at inputs of its own.
    train, val = read(model, batches("digits", "train")), read(model, batches("digits", "val"))
    known, unknown = read(model, batches("digits", "test")), read(model, batches("letters", "test"))
    for detector in (Msp(), Energy(), Knn(k=50).fit(train), Klm().fit(val), Odin(std=(0.5,))):
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
