import torch
from torch import nn

from moon import SET, DropSchedule, RigL, Static, uniform


def test_the_grow_score_is_the_magnitude_of_the_gradient():
    score = RigL.grow_score(None, torch.zeros(3), torch.tensor([1.0, -3.0, 0.0]))
    assert score.tolist() == [1.0, 3.0, 0.0]


def recovery_loss(kind, seed: int) -> float:
    """The loss left when a student with as many connections as a sparse linear teacher learns from it."""
    chance = torch.Generator().manual_seed(seed)
    teacher = torch.zeros(20, 50)
    teacher.view(-1)[torch.randperm(1000, generator=chance)[:50]] = 1.0
    torch.manual_seed(seed)
    student = nn.Linear(50, 20, bias=False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.5, momentum=0.9)
    schedule = {} if kind is Static else {"schedule": DropSchedule(t_end=420, delta_t=10)}
    topology = kind(student, optimizer, 0.95, allocation=uniform, seed=seed, **schedule)
    loss = torch.tensor(0.0)
    for _ in range(600):
        x = torch.randn(64, 50, generator=chance)
        loss = (student(x) - x @ teacher.T).square().mean()
        optimizer.zero_grad()
        loss.backward()
        topology.step()
    return loss.item()


def test_rigl_finds_the_connections_that_static_sparsity_lacks():
    # A RigL that only matches static sparsity is broken.
    for seed in range(3):
        static, rigl, random = (recovery_loss(kind, seed) for kind in (Static, RigL, SET))
        assert rigl < 0.1 * static
        assert random < static
