import pytest
import torch
from torch import nn

from moon import SET, DropSchedule, RigL, Static, uniform
from moon.sparse import Mest, NOfM, Snfs
from moon.sparse.pattern import UNSTRUCTURED

T, F = True, False


def net():
    """A convolution with one input, which no pattern fits, one with eight, and a Linear layer with 32."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.Flatten(), nn.Linear(32, 6)
    )


def per_group(mask, m=4):
    """The number of non-zero weights in each group of m neighbouring inputs."""
    return torch.stack([mask[:, i : i + m].sum(1) for i in range(0, mask.shape[1], m)])


def test_unstructured_adds_the_highest_scores_to_what_is_kept():
    kept, score = torch.tensor([[T, F], [F, F]]), torch.tensor([[9.0, -1.0], [3.0, 2.0]])
    assert UNSTRUCTURED.fill([kept], [score], [2])[0].tolist() == [[T, F], [T, T]]
    assert UNSTRUCTURED.fill([kept], [score], [0])[0].tolist() == [[T, F], [F, F]]


def test_equal_scores_give_exact_counts():
    kept = torch.arange(100) < 5
    mask = UNSTRUCTURED.fill([kept], [torch.zeros(100)], [20])[0]
    assert mask.sum() == 25
    assert mask[:5].all()


def test_each_group_is_filled_with_its_highest_scores():
    kept = torch.tensor([[T, F, F, F, F, F, F, F]])
    score = torch.tensor([[0.0, 1.0, 5.0, 3.0, 10.0, 20.0, 40.0, 30.0]])
    assert NOfM(2, 4).fill([kept], [score], [3])[0].tolist() == [[T, F, T, F, F, F, T, T]]
    assert NOfM(1, 4).fill([kept], [score], [1])[0].tolist() == [[T, F, F, F, F, F, T, F]]
    assert NOfM(1, 2).fill([kept], [score], [3])[0].tolist() == [[T, F, T, F, F, T, T, F]]


def test_neighbours_in_a_convolution_are_input_channels_at_one_position_of_the_kernel():
    score = torch.tensor([[4.0, 1.0], [3.0, 2.0], [2.0, 3.0], [1.0, 4.0]]).view(1, 4, 1, 2)
    mask = NOfM(2, 4).fill([torch.zeros(1, 4, 1, 2, dtype=torch.bool)], [score], [4])[0]
    assert mask.view(4, 2).tolist() == [[T, F], [T, F], [F, T], [F, T]]


@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 4), (3, 4), (1, 2), (3, 8)])
def test_the_first_masks_have_n_of_m_and_the_other_layers_are_dense(n, m):
    model = net()
    topology = Static(model, torch.optim.SGD(model.parameters(), lr=0.1), 1 - n / m, pattern=NOfM(n, m))
    assert topology.masks["0.weight"].all()
    for name in ("2.weight", "4.weight"):
        assert (per_group(topology.masks[name], m) == n).all()
        assert topology.counts[name] == topology.masks[name].numel() * n // m
    assert len({tuple(row) for row in topology.masks["4.weight"].tolist()}) > 1  # random, not always the first


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kind", [RigL, SET, Mest, Snfs])
def test_every_rewiring_keeps_the_pattern(kind, layout):
    model = net().to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    topology = kind(model, optimizer, 0.5, DropSchedule(30, 2, 0.5), pattern=NOfM(2, 4))
    for _ in range(30):
        model.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(16, 1, 2, 2)), torch.randint(6, (16,))).backward()
        topology.step()
        for name in ("2.weight", "4.weight"):
            mask, weight = topology.masks[name], model.get_parameter(name)
            assert (per_group(mask) == 2).all()
            assert not weight.detach()[~mask].any()
            assert mask.stride() == weight.stride()
    assert topology.masks["0.weight"].all()
    assert topology.turnover() > 0.5


def test_only_groups_that_lost_a_weight_grow_one():
    layer = nn.Linear(8, 1, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    topology = RigL(layer, optimizer, 0.5, DropSchedule(100, 1, 1.0), uniform, pattern=NOfM(2, 4))
    mask = torch.tensor([[T, F, T, F, T, F, T, F]])
    topology.load_state_dict({"steps": 50, "grown": torch.tensor(0), "masks": {"weight": mask}})
    layer.weight.data = torch.tensor([[3.0, 0.0, -4.0, 0.0, 0.1, 0.0, 0.2, 0.0]])
    layer.weight.grad = torch.tensor([[0.0, 50.0, 0.0, 60.0, 1.0, 2.0, 0.0, 3.0]])
    topology.step()  # drops half: both of the second group, where 2 and 3 are the largest gradients
    assert topology.masks["weight"].tolist() == [[T, F, T, F, F, T, F, T]]
    assert layer.weight.tolist() == [[3.0, 0.0, -4.0, 0.0, 0.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize(("n", "m"), [(0, 4), (4, 4), (5, 4), (-1, 2)])
def test_patterns_that_keep_no_or_all_weights_are_rejected(n, m):
    with pytest.raises(ValueError, match=f"1 <= n < m, not {n} of {m}"):
        NOfM(n, m)


def test_a_sparsity_or_model_that_does_not_fit_is_rejected():
    model = net()
    with pytest.raises(ValueError, match=r"sparsity 0.95 is not possible with 2 of 4; set sparsity=0.5"):
        Static(model, torch.optim.SGD(model.parameters(), lr=0.1), 0.95, pattern=NOfM(2, 4))
    odd = nn.Linear(6, 4)
    with pytest.raises(ValueError, match="a pattern of 2 of 4 needs a layer whose number of inputs is divisible by 4"):
        Static(odd, torch.optim.SGD(odd.parameters(), lr=0.1), 0.5, pattern=NOfM(2, 4))
