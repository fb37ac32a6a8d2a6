import pytest
import torch
from torch import nn

from moon import Evidence, OpenHead, lenet, look, open_head, read, resnet18

LN2 = 0.6931471805599453


def test_open_evidence_in_literals():
    # exp(logits) = 2 1 1 | 4: one softmax over all four outputs.
    e = Evidence(torch.tensor([[LN2, 0.0, 0.0, 2 * LN2]]), torch.zeros(1, 5), 3)
    assert e.is_open
    torch.testing.assert_close(e.known, torch.tensor([[0.25, 0.125, 0.125]]))
    torch.testing.assert_close(e.unknown, torch.tensor([0.5]))
    torch.testing.assert_close(e.known_logits, torch.tensor([[LN2, 0.0, 0.0]]))
    assert e.prediction.tolist() == [0]  # over the known classes, though the unknown output is larger
    torch.testing.assert_close(e.confidence, torch.tensor([0.25]))


def test_a_k_way_model_has_no_unknown():
    e = Evidence(torch.tensor([[LN2, 0.0, 0.0]]), torch.zeros(1, 5), 3)
    assert not e.is_open
    assert e.unknown.tolist() == [0.0]
    torch.testing.assert_close(e.known, torch.tensor([[0.5, 0.25, 0.25]]))


@pytest.mark.parametrize("outputs", [2, 5])
def test_a_wrong_number_of_outputs_is_an_error(outputs):
    with pytest.raises(ValueError, match="num_known=3"):
        Evidence(torch.zeros(2, outputs), torch.zeros(2, 5), 3)


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="2 features for 3 logits"):
        Evidence(torch.zeros(3, 3), torch.zeros(2, 5), 3)
    with pytest.raises(ValueError, match="1 labels for 3 logits"):
        Evidence(torch.zeros(3, 3), torch.zeros(3, 5), 3, torch.zeros(1))


def test_open_head_adds_one_output_and_keeps_the_known_rows():
    model = resnet18(10)
    old = model.fc.weight.clone(), model.fc.bias.clone()
    opened = open_head(model)
    assert opened is model
    assert isinstance(model.fc, OpenHead)
    assert model.fc.out_features == 11
    assert model.fc.num_known == 10
    torch.testing.assert_close(model.fc.weight[:10], old[0])
    torch.testing.assert_close(model.fc.bias[:10], old[1])
    assert model.fc.weight[10].abs().sum() > 0


def test_open_head_of_nested_and_bare_classifiers():
    nested = nn.ModuleDict({"trunk": nn.Linear(4, 4), "head": nn.Sequential(nn.ReLU(), nn.Linear(4, 7, bias=False))})
    open_head(nested)
    assert nested.head[1].out_features == 8
    assert nested.head[1].bias is None
    assert open_head(nn.Linear(3, 2)).out_features == 3


def test_open_head_uses_the_classifier_that_a_timm_model_names():
    class Timm(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.late = nn.Linear(4, 5), nn.Linear(4, 4)

        def get_classifier(self):
            return self.head

    model = open_head(Timm())
    assert model.head.out_features == 6
    assert not isinstance(model.late, OpenHead)


def test_open_head_without_a_linear_classifier_or_a_second_time_is_an_error():
    with pytest.raises(ValueError, match="no Linear classifier"):
        open_head(nn.Sequential(nn.Conv2d(1, 1, 1)))
    with pytest.raises(ValueError, match="already has an open head"):
        open_head(open_head(lenet()))


def test_look_returns_the_input_of_the_classifier_and_is_differentiable(small_net):
    model = open_head(small_net())
    x = torch.randn(6, 1, 8, 8, requires_grad=True)
    e = look(model, x, torch.arange(6) % 4)
    assert (e.num_known, e.logits.shape, e.features.shape) == (4, (6, 5), (6, 16))
    torch.testing.assert_close(model[6](e.features), e.logits)
    e.confidence.sum().backward()
    assert x.grad is not None
    assert not model[6]._forward_pre_hooks


class Decoder(nn.Module):
    def __init__(self, choose, bias=False):
        super().__init__()
        self.choose, self.score = choose, nn.Linear(4, 3, bias)

    def get_classifier(self):
        return self.score

    def forward(self, x):
        return self.choose(self.score(x))


@pytest.mark.parametrize("bias", [False, True])
def test_the_features_of_the_token_whose_logits_a_decoder_returns_are_found(bias):
    x, last = torch.randn(3, 5, 4), torch.tensor([4, 0, 2])
    model = Decoder(lambda logits: logits[torch.arange(3), last], bias)
    e = look(model, x)
    assert torch.equal(e.features, x[torch.arange(3), last])
    assert torch.equal(e.logits, model(x))
    weight, bias = e.known_head
    torch.testing.assert_close(e.features @ weight.T + bias, e.logits)
    assert len(read(open_head(model), [x, x])) == 6
    mean = look(Decoder(lambda logits: logits.mean(1)), x)
    torch.testing.assert_close(mean.features, x.mean(1))


def test_features_that_are_not_vectors_are_an_error():
    x = torch.randn(2, 3, 4)
    with pytest.raises(ValueError, match="3 dimensions"):
        look(nn.Linear(4, 2), x)
    with pytest.raises(ValueError, match="changes what its classifier 'score' computes for each token"):
        look(Decoder(lambda logits: logits.softmax(-1)[:, -1]), x)


def test_read_runs_in_evaluation_mode_and_restores_the_model(small_net):
    model = small_net()
    model[2].eval()
    modes = [module.training for module in model.modules()]
    statistics = model[1].running_mean.clone()
    batches = [(torch.randn(5, 1, 8, 8), torch.arange(5) % 4), (torch.randn(3, 1, 8, 8), torch.zeros(3).long())]
    e = read(model, batches)
    assert len(e) == 8
    assert not e.logits.requires_grad
    assert e.labels.tolist() == [0, 1, 2, 3, 0, 0, 0, 0]
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(model[1].running_mean, statistics)
    model.eval()
    torch.testing.assert_close(e.logits[:5], model(batches[0][0]))


def test_read_takes_batches_without_labels_but_needs_a_batch(small_net):
    assert read(small_net(), [torch.randn(2, 1, 8, 8)]).labels is None
    assert read(small_net(), [[torch.randn(2, 1, 8, 8)]]).labels is None  # as a DataLoader yields them
    assert len(read(small_net(), torch.randn(300, 1, 8, 8))) == 300  # a tensor of inputs
    with pytest.raises(ValueError, match="no batch"):
        read(small_net(), [])


@pytest.mark.parametrize("index", [torch.tensor([4, 1]), torch.arange(40) % 20 == 7])
def test_take_selects_all_parts_of_inputs(evidence, index):
    whole = evidence()
    part = whole.take(index)
    for name in ("logits", "features", "labels", "rotations"):
        assert torch.equal(getattr(part, name), getattr(whole, name)[index])
    assert (part.num_known, part.head) == (whole.num_known, whole.head)


def test_to_converts_logits_and_features_but_not_the_labels(evidence):
    e = evidence().to(torch.float64)
    assert (e.logits.dtype, e.features.dtype, e.labels.dtype) == (torch.float64, torch.float64, torch.int64)


def test_the_mean_of_views_has_the_logits_of_the_mean_features(small_net):
    model = small_net()
    views = [look(model, torch.randn(5, 1, 8, 8)) for _ in range(2)]
    found = Evidence.mean(views)
    assert torch.equal(found.features, (views[0].features + views[1].features) / 2)
    weight, bias = found.head
    assert torch.allclose(found.logits, found.features @ weight.T + bias, atol=1e-6)
