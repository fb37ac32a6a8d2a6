"""The Python of every method's card runs, on a small network that has learned easy images."""

import copy
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from moon import CrossEntropy, Static, open_head

FOLDER = Path(__file__).parents[1] / "docs" / "methods"
BLOCKS = {
    path.stem: block
    for path in sorted(FOLDER.glob("*.md"))
    for block in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
}
OPEN = ("auto_weight", "unknown")  # cards that use a model with an unknown output


def batches(count: int, seed: int, is_known: bool = True) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of 16 noisy images; those of a class have one pattern."""
    patterns = torch.randn(10, 3, 8, 8, generator=torch.Generator().manual_seed(0 if is_known else 1))
    generator = torch.Generator().manual_seed(seed)
    labels = [(torch.arange(16) + 6 * index) % 10 for index in range(count)]
    return [(patterns[y] + 0.5 * torch.randn(16, 3, 8, 8, generator=generator), y) for y in labels]


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    """A network with 512 features that knows the ten classes."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for x, y in batches(60, seed=1):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("card", BLOCKS)
def test_python_of_cards(card, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = copy.deepcopy(trained)
    if card in OPEN:
        model = open_head(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train, test = batches(40, seed=2), batches(8, seed=3)
    x, y = train[0]
    names = {
        "torch": torch, "model": model, "optimizer": optimizer, "objective": CrossEntropy(), "x": x, "y": y,
        "epoch": 0, "epochs": 60, "step": 0, "steps": 100, "loader": train[:4], "train": train, "test": test,
        "val": batches(8, seed=4), "validation": batches(8, seed=4), "unknown_loader": batches(8, 5, is_known=False),
        "outlier_images": torch.randn(64, 3, 8, 8), "outlier_classes": torch.arange(64) % 7,
        "train_one_epoch": lambda model, epoch: None,
    }  # fmt: skip
    if card in ("flops", "weight_vote"):
        names["topology"] = Static(model, optimizer, sparsity=0.5)
    block = BLOCKS[card].replace("seeds=5", "seeds=1")  # of the theory, which takes long
    last, *_ = reversed(block.rstrip().splitlines())
    if last.startswith(("auroc(", "ece(")):
        block = block.rstrip().removesuffix(last) + f"result = {last}\n"
    exec(block, names)
    if "loss" in names:
        names["loss"].backward()
        assert names["loss"].isfinite()
    if last.startswith("auroc("):
        assert 0 <= names["result"] <= 1
        assert names["known"].logits.isfinite().all()


def test_every_method_has_a_card_with_python():
    assert len(BLOCKS) > 50
