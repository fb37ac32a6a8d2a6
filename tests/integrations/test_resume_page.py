"""The code of docs/resume.md resumes a run bit for bit, whenever the weights are loaded."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from moon import AutoWeight, DropSchedule, Moon, RigL, WeightVote, open_head

PAGE = Path(__file__).parents[2] / "docs" / "resume.md"
EPOCHS, STEPS = 4, 6


def built(before=None):
    """What the page calls model, optimizer, topology, objective and vote, and its functions."""
    torch.manual_seed(0)
    model = open_head(nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    if before is not None:
        model.load_state_dict(torch.load(before, weights_only=True)["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95))
    topology = RigL(model, optimizer, 0.8, DropSchedule(t_end=2 * STEPS, delta_t=2))
    names = {"torch": torch, "model": model, "optimizer": optimizer, "topology": topology}
    names |= {"objective": Moon(AutoWeight(epochs=EPOCHS, quiet_epochs=1)), "vote": WeightVote(model, topology)}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(code, names)
    return names


def train(names, epochs, path=None):
    for epoch in epochs:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(STEPS * epoch + step)
            x = torch.randn(8, 1, 4, 4, generator=generator)
            names["optimizer"].zero_grad()
            names["objective"](names["model"], x, torch.arange(8) % 4, epoch=epoch).backward()
            names["topology"].step()
        if epoch >= 2:
            names["vote"].cast(names["model"])
        if path is not None:
            names["save"](path / f"{epoch}.pt", epoch + 1)


@pytest.mark.parametrize("loads_before", [False, True])
@pytest.mark.parametrize("epoch", [0, 2])
def test_a_resumed_run_is_the_whole_run(epoch, loads_before, tmp_path):
    whole = built()
    train(whole, range(EPOCHS), tmp_path)
    again = built(tmp_path / f"{epoch}.pt" if loads_before else None)
    train(again, range(again["resume"](tmp_path / f"{epoch}.pt"), EPOCHS))
    states = [names["vote"].elect([]).state_dict() for names in (whole, again)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert again["topology"].turnover() == whole["topology"].turnover() > 0
