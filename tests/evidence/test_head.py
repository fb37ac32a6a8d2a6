import copy
import logging
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import relu

from moon import OpenHead, WeightVote, lenet, look, open_head, read
from moon.evidence import classifier_name
from moon.evidence.tracing import output_layers


class Net(nn.Module):
    """A small network with a hidden layer, a classifier and an auxiliary layer, in any order."""

    def __init__(self, *order, outputs=3):
        super().__init__()
        sizes = {"hidden": (4, 6), "fc": (6, outputs), "aux": (6, outputs), "top": (6, outputs), "scale": (6, 1)}
        for name in order or ("hidden", "fc", "aux"):
            setattr(self, name, nn.Linear(*sizes[name]))

    def forward(self, x):
        return self.fc(relu(self.hidden(x)))


class Auxiliary(Net):
    """Its auxiliary layer, declared last, has a loss of its own."""

    def forward(self, x):
        h = relu(self.hidden(x))
        self.auxiliary = self.aux(h)
        return self.fc(h)


class TwoHeads(Net):
    """Like a distilled transformer: the mean of two heads in evaluation, both in training."""

    def forward(self, x):
        h = relu(self.hidden(x))
        return (self.fc(h), self.aux(h)) if self.training else (self.fc(h) + self.aux(h)) / 2


class Distilled(TwoHeads):
    def get_classifier(self):
        return self.fc, self.aux


class Dynamic(Net):
    """A forward pass that depends on values, which cannot be traced."""

    def forward(self, x):
        h = relu(self.hidden(x))
        return self.fc(h) if h.sum() >= 0 else self.fc(-h)


class DynamicTop(Dynamic):
    """It has a layer with a usual name, which is not its classifier."""

    def forward(self, x):
        h = relu(self.hidden(x))
        return self.top(h) if h.sum() >= 0 else self.top(-h)


class Wrapper(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, *args, **kwargs):
        return self.net(*args, **kwargs)


X = torch.ones(2, 4)


@pytest.mark.parametrize(
    "order", [("fc", "hidden"), ("hidden", "fc"), ("fc", "aux", "hidden"), ("hidden", "fc", "aux")]
)
def test_the_classifier_is_the_layer_that_computes_the_output_wherever_it_is_declared(order):
    model = open_head(Net(*order))
    assert isinstance(model.fc, OpenHead)
    assert model(X).shape == (2, 4)
    assert sum(isinstance(layer, OpenHead) for layer in model.modules()) == 1


def test_a_layer_that_is_called_last_but_not_returned_is_not_the_classifier():
    model = Auxiliary()
    assert classifier_name(model) == "fc"
    assert not hasattr(model, "auxiliary")  # tracing leaves no symbols behind
    assert look(open_head(model), X).logits.shape == (2, 4)


def test_two_heads_are_refused_with_a_list():
    for model in (TwoHeads(), TwoHeads().eval(), Distilled()):
        with pytest.raises(ValueError, match=r"not clear: .*'fc' \(6 -> 3\), 'aux' \(6 -> 3\)"):
            open_head(model)
        assert not any(isinstance(layer, OpenHead) for layer in model.modules())
    with pytest.raises(ValueError, match=r"get_classifier\(\) returns several layers.*open_head\(model, 'fc'\)"):
        look(Distilled(), X)
    assert isinstance(open_head(Distilled(), "aux").aux, OpenHead)


def test_get_classifier_may_return_a_module_that_contains_the_classifier():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.body = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)), nn.Linear(4, 4)

        def forward(self, x):
            return self.head(self.body(x))

        def get_classifier(self):
            return self.head

    assert classifier_name(Deep()) == "head.1"


def test_a_model_that_cannot_be_traced_has_the_layer_with_a_usual_name(caplog):
    caplog.set_level(logging.INFO, "moon")
    model = Dynamic("fc", "hidden")
    assert classifier_name(model) == "fc"
    assert classifier_name(model) == "fc"
    assert [record.message for record in caplog.records] == [
        "Dynamic cannot be traced; by its name, 'fc' is its classifier"
    ]
    nested = nn.ModuleDict(
        {"trunk": nn.Linear(4, 4), "head": nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 5))}
    )
    assert classifier_name(nested) == "head.2"
    nested["classifier"] = nn.Linear(4, 5)
    with pytest.raises(ValueError, match=r"2 layers have a usual name .*'classifier' \(4 -> 5\), 'head.2' \(7 -> 5\)"):
        classifier_name(nested)
    with pytest.raises(ValueError, match=r"no layers have a usual name .*'trunk' \(4 -> 4\), 'late' \(4 -> 4\)"):
        classifier_name(nn.ModuleDict({"trunk": nn.Linear(4, 4), "late": nn.Linear(4, 4)}))


def test_look_notices_that_another_layer_computes_the_output():
    model = DynamicTop("fc", "hidden", "top")
    with pytest.raises(ValueError, match=r"the output of DynamicTop is that of 'top', not of 'fc'.*classifier='top'"):
        look(model, X)
    torch.testing.assert_close(look(model, X, classifier="top").logits, model(X))
    opened = open_head(DynamicTop("fc", "hidden", "top"))
    with pytest.raises(ValueError, match="is that of 'top', not of 'fc'"):
        look(opened, X)


def test_wrong_names_are_refused_with_a_suggestion_and_the_list():
    with pytest.raises(
        ValueError, match=r"there is no 'fcc' \(did you mean 'fc'\?\)\. .*'hidden' \(4 -> 6\), 'fc' \(6 -> 3\)"
    ):
        open_head(Net("hidden", "fc"), "fcc")
    with pytest.raises(
        ValueError,
        match=r"'body' is a Sequential \(did you mean 'body.10'\?\)\. Its Linear layers: 'fc' .*, 'body.10'",
    ):
        look(lenet(), torch.zeros(2, 1, 28, 28), classifier="body")
    with pytest.raises(ValueError, match="there is no 'head'"):
        read(lenet(), [], classifier="head")


def test_a_name_is_remembered_also_for_copies_and_wrapped_models():
    model = TwoHeads().eval()
    look(model, X, classifier="aux")
    vote = WeightVote(model)
    vote.cast(model)
    for other in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)), vote.elect([])):
        assert classifier_name(other) == "aux"
        assert look(other, X).head[0].data_ptr() == other.aux.weight.data_ptr()
    assert classifier_name(Wrapper(model)) == "net.aux"
    look(model, X, None, "fc")  # another name replaces it
    assert classifier_name(model) == "fc"
    model.fc = nn.Linear(6, 3)  # a new layer has no name
    with pytest.raises(ValueError, match="not clear"):
        classifier_name(model)


def test_read_passes_the_name_on_to_perturb():
    model = TwoHeads().eval()
    evidence = read(model, [X], lambda model, x: x + look(model, x).logits.mean(), "fc")
    assert torch.equal(evidence.head[0], model.fc.weight)


def test_the_classifier_of_a_wrapped_model_is_found():
    assert classifier_name(Wrapper(Net("fc", "hidden"))) == "net.fc"
    assert classifier_name(Wrapper(Wrapper(Net("fc", "hidden")))) == "net.net.fc"
    assert classifier_name(Wrapper(Dynamic("fc", "hidden"))) == "net.fc"
    with pytest.raises(ValueError, match=r"'net.fc' \(6 -> 3\), 'net.aux'"):
        classifier_name(Wrapper(TwoHeads()))


def test_layers_inside_attention_are_no_candidates():
    model = nn.Sequential(nn.ModuleDict({"a": nn.MultiheadAttention(8, 2)}), nn.Linear(8, 3))
    assert classifier_name(model) == "1"


def test_a_model_is_traced_once_until_its_layers_change(monkeypatch):
    traced = []
    monkeypatch.setattr("moon.evidence.head.output_layers", lambda model: traced.append(model) or output_layers(model))
    model, unclear = Net(), TwoHeads()
    for _ in range(3):
        look(model, X)
        with pytest.raises(ValueError, match="not clear"):
            look(unclear, X)
    assert traced == [model, unclear]
    model.fc = nn.Linear(6, 5)
    assert look(model, X).num_known == 5
    assert traced == [model, unclear, model]


def test_looking_leaves_no_hooks_even_after_an_error():
    model = Net()
    with pytest.raises(RuntimeError):
        look(model, torch.ones(2, 5))
    assert not any(module._forward_hooks for module in model.modules())


class Configured(Net):
    """Like a Hugging Face model: its configuration names the outputs."""

    def __init__(self, *labels, outputs=3):
        super().__init__("hidden", "fc", outputs=outputs)
        self.num_labels = len(labels)
        self.config = SimpleNamespace(id2label=dict(enumerate(labels)), label2id={n: i for i, n in enumerate(labels)})


@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: nn.Sequential(model)])
def test_open_head_names_the_unknown_output(wrap):
    model = Configured("cat", "dog", "owl")
    open_head(wrap(model))
    assert model.config.id2label == {0: "cat", 1: "dog", 2: "owl", 3: "unknown"}
    assert model.config.label2id == {"cat": 0, "dog": 1, "owl": 2, "unknown": 3}
    assert (model.num_labels, model.config.num_known) == (4, 3)


def test_a_saved_classifier_with_the_unknown_output_becomes_an_open_head_again():
    model, x = open_head(Configured("cat", "dog", "owl")), torch.randn(5, 4)
    saved = Configured("cat", "dog", "owl", "unknown", outputs=4)
    saved.config = copy.deepcopy(model.config)
    saved.load_state_dict(model.state_dict())
    for _ in range(2):
        evidence = look(saved, x)
        assert (evidence.num_known, evidence.is_open) == (3, True)
        assert torch.equal(evidence.logits, look(model, x).logits)
        if not isinstance(saved.fc, OpenHead):
            open_head(saved)
    assert saved.fc.num_known == 3
    assert saved.config.id2label == model.config.id2label


def test_labels_that_do_not_fit_are_not_changed(caplog):
    model = open_head(Configured("no", "yes", outputs=5))
    assert model.config.id2label == {0: "no", 1: "yes"}
    assert "config.id2label has 2 labels, but the classifier had 5 outputs" in caplog.text


def test_a_known_class_must_not_be_called_unknown():
    model = Configured("cat", "unknown", "owl")
    with pytest.raises(ValueError, match=r"called 'unknown' \(config.id2label\); .* another name"):
        open_head(model)
    assert model.fc.out_features == 3
