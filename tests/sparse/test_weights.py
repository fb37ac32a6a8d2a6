"""Which weights become sparse, in networks of other packages too, and what is said about those that do not."""

import logging

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2ForSequenceClassification, MixtralConfig, MixtralForSequenceClassification

from moon import DropSchedule, NOfM, RigL, Static
from moon.sparse import sparse_weights

SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}


def gpt2():
    return GPT2ForSequenceClassification(GPT2Config(vocab_size=20, n_positions=8, n_embd=16, n_layer=1, n_head=2))


def mixtral():
    config = MixtralConfig(vocab_size=20, num_hidden_layers=1, num_local_experts=4, **SMALL)
    return MixtralForSequenceClassification(config)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class Custom(nn.Module):
    """A raw parameter, a recurrent layer, and an embedding whose weight is that of a Linear layer too."""

    def __init__(self):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(10, 16), nn.LSTM(16, 8)
        self.own, self.head = nn.Parameter(torch.randn(64, 64)), nn.Linear(16, 10, bias=False)
        self.head.weight = self.embedding.weight


def test_transposed_expert_and_recurrent_weights_can_be_sparse():
    names = sparse_weights(gpt2())
    assert {name.removeprefix("transformer.h.0.") for name in names} == {
        *(f"{part}.weight" for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", "score"))
    }
    assert {"model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"} <= {
        *sparse_weights(mixtral())
    }
    assert [*sparse_weights(Custom())] == ["lstm.weight_ih_l0", "lstm.weight_hh_l0"]


def test_an_expert_is_as_dense_as_a_linear_layer_of_its_shape():
    stack = nn.Module()
    stack.num_experts, stack.weight = 6, nn.Parameter(torch.randn(6, 20, 30))
    model = nn.ModuleDict({"experts": stack, "linear": nn.Linear(30, 20, bias=False)})
    topology = Static(model, sgd(model), sparsity=0.8)
    densities = {name: float(mask.float().mean()) for name, mask in topology.masks.items()}
    assert densities["experts.weight"] == pytest.approx(densities["linear.weight"], abs=0.002)


def test_a_pattern_refuses_weights_of_another_order():
    model = gpt2()
    with pytest.raises(ValueError, match="c_attn"):
        Static(model, sgd(model), sparsity=0.5, pattern=NOfM(2, 4))


def test_zeros_are_those_of_all_matrices(caplog):
    model = Custom()
    topology = Static(model, sgd(model), sparsity=0.75)
    assert topology.density() == 0.25
    total = 10 * 16 + 32 * 16 + 32 * 8 + 64 * 64
    assert topology.zeros() == pytest.approx(0.75 * (32 * 16 + 32 * 8) / total)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "'own'" in caplog.text
    lines = topology.summary().splitlines()
    assert len(lines) == 6
    assert [line.split()[0] for line in lines[1:] if "dense" in line] == ["own", "embedding.weight"]


def test_no_warning_where_half_of_the_zeros_are_there(caplog):
    model = nn.Sequential(nn.Embedding(10, 16), nn.Linear(16, 20))
    Static(model, sgd(model), sparsity=0.9)
    assert not caplog.records


@pytest.mark.parametrize("make", [gpt2, mixtral])
def test_transformers_train_sparse(make):
    model = make()
    optimizer = sgd(model)
    topology = RigL(model, optimizer, sparsity=0.9, schedule=DropSchedule(t_end=10, delta_t=2))
    for _ in range(5):
        optimizer.zero_grad()
        model(input_ids=torch.randint(20, (1, 8)), labels=torch.tensor([1])).loss.backward()
        for weight in topology.weights.values():  # an expert that no token was sent to has no gradient
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        topology.step()
    assert topology.density() == pytest.approx(0.1, abs=0.002)
    assert topology.turnover() > 0
