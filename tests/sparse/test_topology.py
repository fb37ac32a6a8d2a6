import copy

import pytest
import torch
from torch import nn

from moon import SET, Dense, DropSchedule, RigL, Static, uniform
from moon.seeds import derive
from moon.sparse import SparseTopology, sparse_weights

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9),
}


def backward(model):
    model.zero_grad()
    x = torch.randn(16, 1, 8, 8)
    nn.functional.cross_entropy(model(x), torch.randint(4, (16,))).backward()


def one_layer(weight, grad, density=0.5):
    """A linear layer with this weight and gradient, and a RigL that rewires it in the next step."""
    layer = nn.Linear(len(weight), 1, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0, momentum=0.9)
    topology = RigL(layer, optimizer, sparsity=1 - density, schedule=DropSchedule(100, 1, 1.0), allocation=uniform)
    mask = torch.tensor([[w != 0 for w in weight]])
    topology.load_state_dict({"steps": 50, "grown": torch.tensor(0), "masks": {"weight": mask}})
    layer.weight.data = torch.tensor([weight])
    layer.weight.grad = torch.tensor([grad])
    optimizer.state[layer.weight]["momentum_buffer"] = torch.where(mask, 7.0, 0.0)
    return layer, optimizer, topology


def test_rewiring_by_hand():
    # Weights 0 to 3 are non-zero. At step 50 of 100 half of them are dropped: 0.1 and -0.2. Weights 5 and 1 grow.
    layer, optimizer, topology = one_layer(
        [0.1, -0.2, 3.0, -4.0, 0.0, 0.0, 0.0, 0.0], [0.0, 8.0, 9.0, 9.0, 0.5, -9.0, 1.0, 0.0]
    )
    topology.step()
    # Weight 1 is dropped and grown in the same step: it keeps its value and momentum. Weight 5 starts from zero.
    assert layer.weight.tolist() == [[0.0, pytest.approx(-0.2), 3.0, -4.0, 0.0, 0.0, 0.0, 0.0]]
    assert topology.masks["weight"].tolist() == [[False, True, True, True, False, True, False, False]]
    momentum = optimizer.state[layer.weight]["momentum_buffer"]
    assert momentum.tolist() == [[0.0, 7.0, 7.0, 7.0, 0.0, 0.0, 0.0, 0.0]]
    assert topology.turnover() == 0.25


def test_the_step_that_rewires_does_not_update_weights(small_net):
    model = small_net()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    topology = RigL(model, optimizer, sparsity=0.8, schedule=DropSchedule(10, 2))
    bias = model[4].bias.detach().clone()
    moved = []
    for _ in range(4):
        backward(model)
        topology.step()
        moved.append(not torch.equal(bias, model[4].bias))
        bias = model[4].bias.detach().clone()
    assert moved == [True, True, False, True]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", [Static, SET, RigL])
def test_the_invariant_holds_after_every_step(kind, optimizer, small_net):
    model = small_net()
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    schedule = None if kind is Static else DropSchedule(8, 2, 0.5)
    topology = kind(model, optimizer, 0.9, schedule)
    counts = {name: int(mask.sum()) for name, mask in topology.masks.items()}
    for _ in range(12):
        backward(model)
        topology.step()
        for name, weight in sparse_weights(model).items():
            mask = topology.masks[name]
            assert int(mask.sum()) == counts[name]
            pruned = weight.detach()[~mask]
            assert not pruned.any()
            assert not torch.signbit(pruned).any()  # +0.0, not -0.0
            for value in optimizer.state[weight].values():
                if isinstance(value, torch.Tensor) and value.shape == weight.shape:
                    assert not value[~mask].any()


def test_a_nan_gradient_cannot_enter_a_pruned_weight():
    layer, _, topology = one_layer([0.0, 2.0], [float("nan"), 0.0])
    topology.schedule = DropSchedule(0)
    topology.step()
    assert layer.weight[0, 0] == 0


def test_counts_are_exact_and_densities_measured(small_net):
    model = small_net()
    topology = Static(model, OPTIMIZERS["sgd"](model.parameters()), 0.9, allocation=uniform)
    assert {n: int(m.sum()) for n, m in topology.masks.items()} == {"0.weight": 7, "4.weight": 819, "6.weight": 6}
    assert topology.density() == pytest.approx(832 / (72 + 8192 + 64))


def test_dense_layers_biases_and_norms_are_not_changed(small_net):
    model = small_net()
    before = copy.deepcopy(model.state_dict())
    topology = Static(model, OPTIMIZERS["sgd"](model.parameters()), 0.5, dense=["6.weight"])
    assert topology.masks["6.weight"].all()
    assert topology.density() > 0.5
    assert topology.masks["0.weight"].all()  # ERK makes the first convolution dense
    for name, value in model.state_dict().items():
        if name not in ("4.weight",):
            assert torch.equal(value, before[name]), name


def test_masks_depend_on_the_seed_only(small_net):
    def masks(seed):
        model = small_net()
        return Static(model, OPTIMIZERS["sgd"](model.parameters()), 0.9, seed=seed).masks["4.weight"]

    assert torch.equal(masks(1), masks(1))
    assert not torch.equal(masks(1), masks(2))


def test_channels_last_gives_the_same_masks(small_net):
    def train(layout):
        torch.manual_seed(3)
        model = small_net().to(memory_format=layout)
        topology = RigL(model, OPTIMIZERS["sgd"](model.parameters()), 0.9, DropSchedule(6, 2))
        for step in range(6):
            torch.manual_seed(step)
            backward(model)
            topology.step()
        return topology.masks["0.weight"]

    assert torch.equal(train(torch.contiguous_format), train(torch.channels_last))


def test_attention_can_be_sparse_and_embeddings_cannot():
    model = nn.ModuleDict({"e": nn.Embedding(5, 8), "a": nn.MultiheadAttention(8, 2), "n": nn.LayerNorm(8)})
    assert list(sparse_weights(model)) == ["a.in_proj_weight", "a.out_proj.weight"]


def test_tied_weights_are_masked_once():
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    model.b.weight = model.a.weight
    assert list(sparse_weights(model)) == ["a.weight"]


def test_dense_is_the_plain_optimizer(small_net):
    model = small_net()
    twin = copy.deepcopy(model)
    optimizer, twin_optimizer = (OPTIMIZERS["sgd"](m.parameters()) for m in (model, twin))
    topology = Dense(optimizer)
    for step in range(3):
        for m, act in ((model, topology.step), (twin, twin_optimizer.step)):
            torch.manual_seed(step)
            backward(m)
            act()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    assert (topology.density(), topology.is_frozen, topology.masks) == (1.0, True, {})


def test_the_topology_of_a_model_is_found_while_it_is_referenced(small_net):
    model = small_net()
    assert SparseTopology.of(model) == []
    topology = Static(model, OPTIMIZERS["sgd"](model.parameters()), 0.5)
    assert SparseTopology.of(model) == [topology]
    assert SparseTopology.of(nn.Sequential(model)) == [topology]  # wrapped
    assert SparseTopology.of(small_net()) == []
    del topology
    assert SparseTopology.of(model) == []


def test_only_the_newest_topology_of_a_weight_counts(small_net):
    model, other = small_net(), small_net()
    optimizer = OPTIMIZERS["sgd"]([*model.parameters(), *other.parameters()])
    old = RigL(model, optimizer, 0.5, DropSchedule(10, 1))
    new = Static(model, optimizer, 0.9)
    of_other = Static(other, optimizer, 0.5)
    assert SparseTopology.of(model) == [new]
    assert SparseTopology.of(nn.ModuleList([model, other])) == [new, of_other]
    del new
    assert SparseTopology.of(model) == [old]


def test_two_topologies_may_share_a_model(small_net):
    model = small_net()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    body = Static(model, optimizer, 0.5, dense=["6.weight"])
    head = Static(model, optimizer, 0.5, dense=["0.weight", "4.weight"])
    assert SparseTopology.of(model) == [body, head]


def test_a_saved_state_of_another_model_is_rejected(small_net):
    model, layer = small_net(), nn.Linear(4, 4)
    topology = Static(model, OPTIMIZERS["sgd"](model.parameters()), 0.5)
    other = Static(layer, OPTIMIZERS["sgd"](layer.parameters()), 0.5)
    with pytest.raises(ValueError, match=r"no '0.weight' of shape \(8, 1, 3, 3\); was the state"):
        topology.load_state_dict(other.state_dict())


def test_masks_are_independent_of_the_initial_weights(small_net):
    for seed in range(5):
        torch.manual_seed(derive("weights", seed))
        model = small_net()
        before = [w.detach().clone() for w in sparse_weights(model).values()]
        topology = Static(model, OPTIMIZERS["sgd"](model.parameters()), 0.8, allocation=uniform, seed=seed)
        for weight, mask in zip(before, topology.masks.values(), strict=True):
            pair = torch.stack([weight.flatten(), mask.flatten().float()])
            assert torch.corrcoef(pair)[0, 1].abs() < 4 / weight.numel() ** 0.5


def test_invalid_arguments_are_rejected(small_net):
    model = small_net()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    with pytest.raises(ValueError, match="sparsity must be in"):
        Static(model, optimizer, 95)
    with pytest.raises(ValueError, match="RigL needs a schedule"):
        RigL(model, optimizer, 0.5)
    with pytest.raises(ValueError, match="no weight is called"):
        Static(model, optimizer, 0.5, dense=["fc.weight"])
    with pytest.raises(ValueError, match="does not update"):
        Static(small_net(), optimizer, 0.5)
    topology = RigL(model, optimizer, 0.5, DropSchedule(10, 1))
    backward(model)
    topology.step()
    model.zero_grad()
    with pytest.raises(ValueError, match="has no gradient"):
        topology.step()


def test_weights_that_were_loaded_before_the_topology_was_built_are_kept(small_net):
    model = small_net()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    topology = RigL(model, optimizer, sparsity=0.9, schedule=DropSchedule(8, 2))
    for _ in range(6):
        backward(model)
        topology.step()
    saved = copy.deepcopy((model.state_dict(), topology.state_dict()))

    again = small_net()
    again.load_state_dict(saved[0])
    other = RigL(again, OPTIMIZERS["sgd"](again.parameters()), sparsity=0.9, schedule=DropSchedule(8, 2), seed=7)
    other.load_state_dict(saved[1])
    assert all(torch.equal(value, saved[0][name]) for name, value in again.state_dict().items())
    assert all(torch.equal(mask, saved[1]["masks"][name]) for name, mask in other.masks.items())


def test_masks_without_their_weights_are_noticed(small_net, caplog):
    topologies = []
    for seed in (0, 1):
        model = small_net()
        topologies.append(Static(model, OPTIMIZERS["sgd"](model.parameters()), 0.9, seed=seed))
    topologies[0].load_state_dict(topologies[0].state_dict())
    assert not caplog.records
    topologies[1].load_state_dict(topologies[0].state_dict())
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("key", "build"),
    [
        ("topology", lambda model, optimizer: SET(model, optimizer, 0.9, DropSchedule(8, 2))),
        ("sparsity", lambda model, optimizer: RigL(model, optimizer, 0.8, DropSchedule(8, 2))),
        ("schedule", lambda model, optimizer: RigL(model, optimizer, 0.9, DropSchedule(12, 2))),
        ("allocation", lambda model, optimizer: RigL(model, optimizer, 0.9, DropSchedule(8, 2))),
        (
            "6.weight",
            lambda model, optimizer: RigL(
                model, optimizer, 0.9, DropSchedule(8, 2), allocation=uniform, dense=["6.weight"]
            ),
        ),
    ],
)
def test_the_state_of_another_topology_is_refused(key, build, small_net):
    models = small_net(), small_net()
    optimizers = [OPTIMIZERS["sgd"](model.parameters()) for model in models]
    state = RigL(models[0], optimizers[0], 0.9, DropSchedule(8, 2), allocation=uniform).state_dict()
    with pytest.raises(ValueError, match=key):
        build(models[1], optimizers[1]).load_state_dict(state)


@pytest.mark.parametrize("kind", [torch.optim.Adafactor, torch.optim.Muon])
@pytest.mark.parametrize("is_attached", [False, True])
def test_gradients_of_pruned_weights_do_not_move_others(kind, is_attached):
    def trained(noise):
        torch.manual_seed(0)
        model = nn.Linear(12, 8, bias=False)
        optimizer = kind(model.parameters(), lr=0.01)
        topology = Static(model, optimizer, 0.5)
        if is_attached:
            topology.attach()
        for _ in range(3):
            model.weight.grad = torch.randn(8, 12) + noise * ~topology.masks["weight"]
            topology.step()
        return model.weight.detach()

    assert torch.equal(trained(0.0), trained(100.0))


def test_rprop_is_refused():
    model = nn.Linear(8, 8)
    with pytest.raises(ValueError, match="Rprop"):
        Static(model, torch.optim.Rprop(model.parameters()), 0.5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler
def test_a_compiled_step_is_the_step():
    def trained(is_compiled):
        torch.manual_seed(0)
        model = nn.Linear(20, 50)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        topology = RigL(model, optimizer, 0.9, DropSchedule(20, 2))
        step = torch.compile(topology.step) if is_compiled else topology.step
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(4, 20)).square().sum().backward()
            step()
        return topology.masks["weight"], model.weight.detach()

    (masks, weight), (wanted, reference) = trained(True), trained(False)
    assert torch.equal(masks, wanted)
    torch.testing.assert_close(weight, reference)
