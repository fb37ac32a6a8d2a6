from collections import OrderedDict
from math import prod

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.flop_counter import FlopCounterMode

from moon import RigL, erk, lenet, resnet18, resnet50, uniform
from moon.sparse import DropSchedule, LayerCost, NetCost, layer_costs, net_cost, sparse_weights


def on_meta(make, *arguments):
    with torch.device("meta"):
        return make(*arguments)


def shapes(model):
    return {name: tuple(weight.shape) for name, weight in sparse_weights(model).items()}


def total(model, shape, densities=None):
    return net_cost(layer_costs(model, shape, densities or {}))


# Multiply-adds by hand: weights per output * outputs.
@pytest.mark.parametrize(
    ("layer", "shape", "multiply_adds"),
    [
        (nn.Conv2d(3, 4, 3), (3, 8, 8), 3 * 9 * 4 * 6 * 6),
        (nn.Conv2d(3, 4, 3, padding=1), (3, 8, 8), 3 * 9 * 4 * 8 * 8),
        (nn.Conv2d(3, 4, 3, stride=2, padding=1), (3, 8, 8), 3 * 9 * 4 * 4 * 4),
        (nn.Conv2d(4, 8, 3, groups=2, padding=1), (4, 5, 5), 2 * 9 * 8 * 5 * 5),
        (nn.Conv2d(4, 4, 3, groups=4, padding=1), (4, 5, 5), 1 * 9 * 4 * 5 * 5),
        (nn.Conv2d(2, 3, (1, 3), dilation=2), (2, 6, 7), 2 * 3 * 3 * 6 * 3),
        (nn.Conv1d(2, 3, 5), (2, 9), 2 * 5 * 3 * 5),
        (nn.Conv3d(1, 2, 2), (1, 3, 4, 5), 8 * 2 * 2 * 3 * 4),
        (nn.ConvTranspose2d(2, 3, 2, stride=2), (2, 4, 5), 2 * 3 * 4 * 4 * 5),
        (nn.ConvTranspose1d(4, 6, 3, groups=2), (4, 7), 4 * 3 * 3 * 7),
        (nn.Linear(7, 5), (7,), 7 * 5),
        (nn.Linear(7, 5), (11, 7), 7 * 5 * 11),
    ],
)
def test_one_layer_by_hand(layer, shape, multiply_adds):
    assert layer_costs(layer, shape, {"weight": 0.25}) == {"weight": LayerCost(2 * multiply_adds, 0.25)}
    assert total(layer, shape, {"weight": 0.25}) == NetCost(2 * multiply_adds, multiply_adds / 2)


def test_a_layer_that_is_used_twice_counts_twice():
    shared = nn.Conv2d(2, 2, 3, padding=1, bias=False)
    model = nn.Sequential(shared, nn.ReLU(), nn.MaxPool2d(2), shared)
    assert layer_costs(model, (2, 4, 4), {}) == {"0.weight": LayerCost(2 * 36 * (16 + 4), 1.0)}


def test_a_weight_that_two_layers_share_has_one_name():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    assert layer_costs(model, (3,), {"0.weight": 0.5}) == {"0.weight": LayerCost(36, 0.5)}


def test_a_parametrised_weight_is_counted():
    model = nn.Sequential(nn.Flatten(), weight_norm(nn.Linear(3, 2)))
    assert layer_costs(model, (3,), {"1.weight": 0.5}) == {"1.weight": LayerCost(12, 0.5)}
    assert layer_costs(model[1], (3,), {"weight": 0.5}) == {"weight": LayerCost(12, 0.5)}


def test_a_layer_that_is_not_used_costs_nothing():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x):
            return self.used(x)

    assert layer_costs(Net(), (3,), {}) == {"used.weight": LayerCost(12, 1.0), "idle.weight": LayerCost(0, 1.0)}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_attention_by_hand(device):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.own = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.cross = nn.MultiheadAttention(8, 2, kdim=6, vdim=4, batch_first=True)

        def forward(self, x):
            return self.cross(self.own(x), x.new_zeros(1, 7, 6), x.new_zeros(1, 7, 4))

    costs = layer_costs(Net().to(device), (5, 8), {"own.self_attn.in_proj_weight": 0.25, "cross.k_proj_weight": 0.5})
    assert {name: (cost.dense, cost.density) for name, cost in costs.items()} == {
        "own.self_attn.in_proj_weight": (2 * 5 * 8 * 24, 0.25),
        "own.self_attn.out_proj.weight": (2 * 5 * 8 * 8, 1),
        "own.linear1.weight": (2 * 5 * 8 * 16, 1),
        "own.linear2.weight": (2 * 5 * 16 * 8, 1),
        "cross.q_proj_weight": (2 * 5 * 8 * 8, 1),
        "cross.k_proj_weight": (2 * 7 * 6 * 8, 0.5),
        "cross.v_proj_weight": (2 * 7 * 4 * 8, 1),
        "cross.out_proj.weight": (2 * 5 * 8 * 8, 1),
        "other products": (2 * 2 * 5 * 5 * 8 + 2 * 2 * 5 * 7 * 8, 1),  # Q K^T and A V of both
    }
    assert torch.backends.mha.get_fastpath_enabled()


def test_weights_that_are_used_without_their_layer_and_scaled_dot_product_attention_are_counted():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.raw = nn.Linear(8, 24), nn.Parameter(torch.ones(8, 3))

        def forward(self, x):
            q, k, v = nn.functional.linear(x, self.qkv.weight).chunk(3, -1)
            return nn.functional.scaled_dot_product_attention(q, k, v) @ self.raw

    products = 2 * 2 * 5 * 5 * 8 + 2 * 5 * 8 * 3
    assert layer_costs(Net(), (5, 8), {"qkv.weight": 0.5}) == {
        "qkv.weight": LayerCost(2 * 5 * 8 * 24, 0.5), "other products": LayerCost(products, 1.0),
    }  # fmt: skip


def test_a_forward_pass_that_needs_values_is_counted():
    class Net(nn.Linear):
        def forward(self, x):
            assert x.sum().item() == 0
            assert not x[x > 0].numpy().size
            return super().forward(x)

    assert layer_costs(Net(4, 3), (4,), {}) == {"weight": LayerCost(24, 1.0)}


def test_the_model_is_not_changed():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2)).double().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert total(model, (1, 3, 3)).dense == 2 * (18 + 4)  # in training mode BatchNorm would refuse a single value
    assert all(module.training and not module._forward_hooks for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_resnet18_on_32x32_has_0_555_billion_multiply_adds():
    wide = 64 * 9 * 64 * 32 * 32  # any 3x3 convolution that keeps the width: channels double, pixels quarter
    stage = wide // 2 + 3 * wide + 64 * 128 * 16 * 16  # the first halves the image, and so does the shortcut
    by_hand = 27 * 64 * 32 * 32 + 4 * wide + 3 * stage + 512 * 10
    assert total(on_meta(resnet18), (3, 32, 32)).dense == 2 * by_hand == 1_110_845_440


def test_resnet50_on_224x224_has_4_09_billion_multiply_adds():
    middle, outer = 64 * 9 * 64 * 56 * 56, 64 * 256 * 56 * 56  # the 3x3 and each 1x1 of a block that keeps the shape
    block = middle + 2 * outer
    first = 64 * 64 * 56 * 56 + middle + outer + outer  # with its shortcut
    halving = 2 * outer + middle + outer + 2 * outer
    by_hand = 147 * 64 * 112 * 112 + first + 2 * block + 3 * halving + (3 + 5 + 2) * block + 2048 * 1000
    dense = total(on_meta(resnet50), (3, 224, 224)).dense
    assert dense == 2 * by_hand == 8_178_368_512
    assert f"{dense:.1e}" == "8.2e+09"  # Evci et al. 2020


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (resnet18, (3, 32, 32)),
        (resnet50, (3, 224, 224)),
        (lenet, (1, 28, 28)),
        (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2), (5, 8)),
    ],
)
def test_torch_counts_the_same_number(make, shape):
    model = on_meta(make).eval()
    with FlopCounterMode(display=False) as counter:
        model(torch.empty(1, *shape, device="meta"))
    assert counter.get_total_flops() == total(model, shape).dense


def test_densities_may_come_from_masks():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 5))
    topology = RigL(model, torch.optim.SGD(model.parameters(), lr=0.1), 0.5, DropSchedule(10, 1), uniform)
    densities = {name: float(mask.float().mean()) for name, mask in topology.masks.items()}
    assert total(model, (1, 4, 4), densities) == NetCost(2 * (36 * 4 + 80), 36 * 4 + 80)


def test_training_by_hand():
    cost = NetCost(dense=100, sparse=10)
    assert cost.dense_training() == 300
    assert cost.static_training() == 30
    assert cost.snfs_training() == 120
    assert cost.snfs_training(rewiring_share=0.5) == 75
    assert cost.rigl_training(delta_t=1) == 75  # (30 + 20 + 100) / 2
    assert cost.rigl_training(delta_t=9) == 39  # (270 + 20 + 100) / 10
    assert cost.rigl_training(delta_t=100) == pytest.approx(3120 / 101)
    assert cost.rigl_training() == cost.rigl_training(100, 1.0)
    assert cost.rigl_training(delta_t=9, rewiring_share=0.5) == 34.5
    assert cost.rigl_training(delta_t=9, rewiring_share=0) == cost.static_training()


# The public code of Evci et al. also counts an activation per output, and the stem on an image padded to 236 pixels.
@pytest.mark.parametrize(("kind", "inference", "five_fold"), [("uniform", "0.23", "1.14"), ("erk", "0.42", "2.09")])
def test_the_ratios_of_evci_et_al_follow_from_what_they_count(kind, inference, five_fold):
    model = on_meta(resnet50)
    sizes = shapes(model)
    densities = erk(sizes, 0.8) if kind == "erk" else uniform(sizes, 0.8) | {"conv1.weight": 1.0}
    layers = layer_costs(model, (3, 224, 224), densities)
    more = 115 * 115 - 112 * 112  # positions of the stem
    outputs = sum(layers[name].dense // (2 * prod(shape[1:])) for name, shape in sizes.items())
    assert outputs == 11_114_984
    activations, stem, ours = outputs + 64 * more, 2 * 147 * 64 * more, net_cost(layers)
    theirs = NetCost(ours.dense + stem + activations, ours.sparse + stem * densities["conv1.weight"] + activations)
    assert f"{theirs.dense:.3e}" == "8.202e+09"
    assert f"{theirs.sparse / theirs.dense:.2f}" == inference
    assert f"{5 * theirs.rigl_training() / theirs.dense_training():.2f}" == five_fold  # five times the steps


def test_invalid_densities_inputs_and_models_are_rejected():
    layer = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=r"no weight is called \['weihgt'\]; the weights are \['weight'\]"):
        layer_costs(layer, (3,), {"weihgt": 0.5})
    for density in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=r"in \[0, 1\], not \{'weight': "):
            layer_costs(layer, (3,), {"weight": density})
    with pytest.raises(ValueError, match=r"did not accept an image of shape \(4,\)"):
        layer_costs(layer, (4,), {})
    with pytest.raises(ValueError, match=r"\['rnn'\] is recurrent, which is not counted"):
        layer_costs(nn.Sequential(OrderedDict(rnn=nn.GRU(4, 4))), (3, 4), {})
    with pytest.raises(ValueError, match="nothing to count"):
        layer_costs(nn.ReLU(), (3,), {})
