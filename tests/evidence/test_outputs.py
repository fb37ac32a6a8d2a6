import logging
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, relu

from moon import Odin, look, open_head, read
from moon.evidence import classifier_name, logits_of

AuxiliaryOutputs = namedtuple("AuxiliaryOutputs", ["logits", "aux"])


@dataclass
class ModelOutput(OrderedDict):
    """Like Hugging Face's: its fields are attributes and keys."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple | None = None

    def __post_init__(self):
        self.update({key: value for key, value in vars(self).items() if value is not None})


class Net(nn.Module):
    """A network that returns a function of logits, auxiliary logits and features."""

    def __init__(self, output):
        super().__init__()
        self.fc, self.aux, self.body, self.norm = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(4, 6), nn.BatchNorm1d(6)
        self.output = output

    def forward(self, pixel_values=None, mask=None, labels=None):
        h = relu(self.norm(self.body(pixel_values)))
        if mask is not None:
            h = h * mask
        return self.output(self.fc(h), self.aux(h), h)


X, Y = torch.randn(5, 4), torch.arange(5) % 3
OUTPUTS = {
    "tensor": lambda z, aux, h: z,
    "reshaped": lambda z, aux, h: z.view(len(z), -1),
    "model output": lambda z, aux, h: ModelOutput(None, z, (h,)),
    "object": lambda z, aux, h: SimpleNamespace(aux=aux, logits=z),
    "named tuple": lambda z, aux, h: AuxiliaryOutputs(z, aux),
    "dict": lambda z, aux, h: {"aux": aux, "logits": z},
    "tuple": lambda z, aux, h: (z, h),
    "tuple with logits last": lambda z, aux, h: (None, aux, z),
    "list": lambda z, aux, h: [h, z.squeeze(0)],
    "unnamed in a dict": lambda z, aux, h: {"aux": aux, "out": z},
}
TWO_HEADS = {"tuple with logits last", "unnamed in a dict"}


@pytest.fixture(params=OUTPUTS)
def net(request):
    model = Net(OUTPUTS[request.param]).eval()
    if request.param in TWO_HEADS:
        with pytest.raises(ValueError, match=r"'fc' \(6 -> 3\), 'aux' \(6 -> 3\)"):
            look(model, X)
        classifier_name(model, "fc")
    return model


def logits(model):
    return model.fc(relu(model.norm(model.body(X))))


def test_look_and_read_find_the_logits_in_what_a_model_returns(net):
    evidence = look(net, X, Y)
    torch.testing.assert_close(evidence.logits, logits(net))
    torch.testing.assert_close(net.fc(evidence.features), evidence.logits)
    evidence = read(net, [(X, Y), (X, Y)])
    torch.testing.assert_close(evidence.logits, torch.cat([logits(net)] * 2))
    assert torch.isfinite(Odin().score(read(net, [(X, Y)], Odin().perturb))).all()
    opened = open_head(net)
    assert look(opened, X).logits.shape == (5, 4)
    assert not any(module._forward_hooks for module in net.modules())


def test_logits_of_finds_them_in_training_and_evaluation(net):
    torch.testing.assert_close(logits_of(net, X), logits(net))
    torch.testing.assert_close(logits_of(net, X), logits(net))  # a model with several outputs is known by now
    torch.testing.assert_close(logits_of(net, {"pixel_values": X}), logits(net))
    net.train()
    assert logits_of(net, X).shape == (5, 3)


def test_a_model_with_several_outputs_runs_twice_in_the_first_batch_only():
    model, calls = Net(OUTPUTS["tuple"]), []
    model.body.register_forward_hook(lambda *_: calls.append(1))
    for expected in (2, 3, 4):
        logits_of(model, X)
        assert len(calls) == expected


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda z, aux, h: None, "Net returns a NoneType; forward must return the logits, an object"),
        (lambda z, aux, h: {}, "Net returns a dict; forward must return the logits"),
        (
            lambda z, aux, h: {"out": z.exp(), "h": h},
            r"a dict \(out: \(5, 3\), h: \(5, 6\)\) without the output of its",
        ),
        (lambda z, aux, h: (z.exp(), "x"), r"a tuple \(0: \(5, 3\), 1: str\) without .* classifier 'fc'; forward must"),
    ],
)
def test_what_forward_must_return(output, message):
    model = Net(output)
    classifier_name(model, "fc")
    for run in (look, logits_of):
        with pytest.raises(ValueError, match=message):
            run(model, X)


def test_batches_may_be_mappings():
    model, mask = Net(OUTPUTS["model output"]), torch.tensor([1.0, 0, 0, 1, 1, 1])
    for key in ("labels", "label", "y"):
        evidence = read(model, [{"pixel_values": X, key: Y}] * 2)
        assert evidence.labels.tolist() == [0, 1, 2, 0, 1] * 2
    assert read(model, [{"pixel_values": X}]).labels is None
    masked = read(model, [{"pixel_values": X, "mask": mask, "labels": Y}])
    assert not masked.features[:, 1:3].any()
    assert torch.equal(read(model, [({"pixel_values": X, "mask": mask}, Y)]).logits, masked.logits)
    torch.testing.assert_close(look(model.eval(), {"pixel_values": X, "mask": mask}, Y).logits, masked.logits)


def test_batches_that_are_not_tensors_are_an_error():
    model = Net(OUTPUTS["tensor"])
    with pytest.raises(
        ValueError, match=r"a batch contains a list; it must be \(inputs, labels\), inputs, or a mapping"
    ):
        read(model, [{"pixel_values": X, "path": ["a.png"] * 5}])
    with pytest.raises(ValueError, match="a batch contains a str"):
        read(model, ["a.png"])


def test_perturb_needs_one_floating_point_tensor():
    model, mask = Net(OUTPUTS["tensor"]), torch.ones(6)
    alone = read(model, [(X, Y)], Odin(epsilon=0.1).perturb)
    assert torch.equal(read(model, [{"pixel_values": X, "labels": Y}], Odin(epsilon=0.1).perturb).logits, alone.logits)
    assert not torch.equal(read(model, [(X, Y)]).logits, alone.logits)
    for batch in ({"pixel_values": X, "mask": mask}, {"mask": mask}, {"pixel_values": X.long()}):
        with pytest.raises(ValueError, match=r"perturb changes one floating-point tensor, .* use a detector that"):
            read(model, [batch], Odin().perturb)


def test_read_warns_if_the_output_is_not_that_of_the_classifier(caplog):
    caplog.set_level(logging.INFO, "moon")
    for output in (lambda z, aux, h: z, lambda z, aux, h: z.clone(), lambda z, aux, h: z.double()):
        read(Net(output), [X])
    assert not caplog.records
    read(Net(lambda z, aux, h: log_softmax(z, 1)), [X, X])
    (record,) = caplog.records
    assert "the output of Net differs from that of its classifier 'fc', for example by a softmax" in record.message
    assert record.levelname == "WARNING"


def test_the_classifier_may_be_called_with_a_keyword():
    class Keyword(Net):
        def forward(self, x):
            return self.fc(input=self.body(x))

    assert look(Keyword(None), X).features.shape == (5, 6)


def test_outputs_of_other_layers_are_not_kept():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.fc, self.alive = nn.Linear(4, 6), nn.Linear(6, 3), []

        def forward(self, x):
            h = self.body(x)
            memory = torch.multiprocessing.reductions.StorageWeakRef(h.untyped_storage())
            h = relu(h)
            self.alive.append(not memory.expired())
            return self.fc(h)

    model = Deep()
    read(model, [X], classifier="fc")
    assert model.alive == [False]
