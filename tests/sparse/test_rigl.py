import pytest
import torch
from torch import nn

from moon import SET, DropSchedule, RigL, Static, uniform


def recovery_loss(kind, seed: int) -> float:
    """The final loss of a student that learns from a linear teacher with the same number of non-zero weights."""
    random = torch.Generator().manual_seed(seed)
    teacher = torch.zeros(20, 50)
    teacher.view(-1)[torch.randperm(1000, generator=random)[:50]] = 1.0
    torch.manual_seed(seed)
    student = nn.Linear(50, 20, bias=False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.5, momentum=0.9)
    schedule = {} if kind is Static else {"schedule": DropSchedule(t_end=420, delta_t=10)}
    topology = kind(student, optimizer, 0.95, allocation=uniform, seed=seed, **schedule)
    loss = torch.tensor(0.0)
    for _ in range(600):
        x = torch.randn(64, 50, generator=random)
        loss = (student(x) - x @ teacher.T).square().mean()
        optimizer.zero_grad()
        loss.backward()
        topology.step()
    return loss.item()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_rigl_finds_the_weights_that_static_sparsity_lacks(seed):
    # A RigL that only matches static sparsity is broken.
    static, rigl, grown_at_random = (recovery_loss(kind, seed) for kind in (Static, RigL, SET))
    assert rigl < 0.1 * static
    assert grown_at_random < static
