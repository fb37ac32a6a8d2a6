"""What the README shows is run: its Python as it stands, its commands as far as they parse, its links."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from torch import nn

from moon.cli.main import parser

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_python_runs():
    assert len(BLOCKS) == 2
    loader = [(torch.randn(64, 3, 8, 8), torch.arange(64) % 10)]
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10)
    )
    names = {"torch": torch, "model": model, "loader": loader}
    names |= dict.fromkeys(("train_loader", "test_loader", "other_loader"), loader)
    for block in BLOCKS:
        exec(block, names)
    elected = names["model"]
    assert elected[5].out_features == 11
    weights = torch.cat([elected[0].weight.detach().flatten(), elected[5].weight.detach().flatten()])
    assert (weights == 0).float().mean() > 0.9
    assert names["vote"].voters == 20


def test_the_commands_parse():
    commands = re.findall(r"^    (moon .*?)(?:\s{2,}#.*)?$", README, re.MULTILINE)
    assert len(commands) >= 6
    for command in commands:
        assert parser().parse_args(shlex.split(command)[1:]).act


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]
)
def test_links_lead_somewhere(page):
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


def test_short_pages_stay_short():
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) < 50
