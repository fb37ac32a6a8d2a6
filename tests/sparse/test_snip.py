import pytest
import torch
from torch import nn

from moon.sparse import NOfM, Snip

A, A_GRAD = [[1.0, 2.0], [3.0, 4.0]], [[-4.0, 1.0], [1.0, 0.1]]  # saliency 4, 2, 3, 0.4
B, B_GRAD = [[10.0, -0.1, 0.5, 1.0]], [[1.0, -1.0, 2.0, 0.3]]  # saliency 10, 0.1, 1, 0.3


def two_layers(scale=1.0, lr=0.0):
    """Layers a and b of four weights; the weights of b times `scale`."""
    model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(4, 1, bias=False)})
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    topology = Snip(model, optimizer, 0.5)
    for layer, weight, grad in ((model.a, torch.tensor(A), A_GRAD), (model.b, scale * torch.tensor(B), B_GRAD)):
        layer.weight.data, layer.weight.grad = weight, torch.tensor(grad)
    return model, topology


def test_the_saliency_is_compared_over_all_layers():
    _, topology = two_layers()
    topology.step()
    assert topology.masks["a.weight"].tolist() == [[True, True], [True, False]]
    assert topology.masks["b.weight"].tolist() == [[True, False, False, False]]
    assert topology.counts == topology.planned == {"a.weight": 3, "b.weight": 1}
    assert topology.turnover() == 0


def test_every_layer_keeps_at_least_its_best_weight():
    _, topology = two_layers(scale=1e-6)
    topology.step()
    assert topology.masks["a.weight"].tolist() == [[True, True], [True, False]]
    assert topology.masks["b.weight"].tolist() == [[True, False, False, False]]


def test_it_is_dense_before_the_first_step_and_frozen_after_it():
    model, topology = two_layers()
    assert (topology.density(), topology.is_frozen) == (1.0, False)
    topology.step()
    assert (topology.density(), topology.is_frozen) == (0.5, True)
    masks = {name: mask.clone() for name, mask in topology.masks.items()}
    model.zero_grad()
    topology.step()  # the masks are chosen only once, so no gradient is needed
    assert all(torch.equal(mask, masks[name]) for name, mask in topology.masks.items())


def test_the_first_step_updates_the_kept_weights_and_clears_the_others():
    model, topology = two_layers(lr=1.0)
    topology.step()
    assert model.a.weight.tolist() == [[5.0, 1.0], [2.0, 0.0]]
    momentum = topology.optimizer.state[model.a.weight]["momentum_buffer"]
    assert momentum.tolist() == [[-4.0, 1.0], [1.0, 0.0]]


def test_with_a_pattern_each_group_keeps_its_best():
    layer = nn.Linear(8, 2, bias=False)
    topology = Snip(layer, torch.optim.SGD(layer.parameters(), lr=0.0), 0.5, pattern=NOfM(2, 4))
    assert topology.masks["weight"].all()
    best = torch.tensor([4.0, -3.0, 2.0, 1.0, 1.0, 1.5, 9.0, -8.0])
    layer.weight.data, layer.weight.grad = torch.stack([best, 1e-3 * best.flip(0)]), 2 * torch.ones(2, 8)
    topology.step()
    assert topology.masks["weight"].int().tolist() == [[1, 1, 0, 0, 0, 0, 1, 1], [1, 1, 0, 0, 0, 0, 1, 1]]
    assert topology.counts == {"weight": 8}


def test_resuming_keeps_what_the_first_step_chose():
    model, topology = two_layers()
    topology.step()
    other_model, other = two_layers()
    other.load_state_dict(topology.state_dict())
    other_model.b.weight.grad = 100 * torch.ones(1, 4)
    other.step()
    assert other.counts == other.planned == {"a.weight": 3, "b.weight": 1}
    assert all(torch.equal(mask, topology.masks[name]) for name, mask in other.masks.items())
    assert other_model.b.weight.tolist() == model.b.weight.tolist() == [[10.0, 0.0, 0.0, 0.0]]


def test_channels_last_gives_the_same_masks():
    weight, grad = torch.randn(4, 3, 3, 3), torch.randn(4, 3, 3, 3)

    def chosen(layout):
        layer = nn.Conv2d(3, 4, 3, bias=False).to(memory_format=layout)
        topology = Snip(layer, torch.optim.SGD(layer.parameters(), lr=0.0), 0.8)
        layer.weight.data.copy_(weight)
        layer.weight.grad = grad.to(memory_format=layout)
        topology.step()
        assert topology.masks["weight"].stride() == layer.weight.stride()
        return topology.masks["weight"]

    expected = (weight * grad).abs() >= (weight * grad).abs().flatten().topk(22).values.min()
    for layout in (torch.contiguous_format, torch.channels_last):
        assert torch.equal(chosen(layout), expected)


def test_a_first_step_without_a_gradient_is_rejected():
    model, topology = two_layers()
    model.b.weight.grad = None
    with pytest.raises(ValueError, match=r"'b.weight' has no gradient"):
        topology.step()
