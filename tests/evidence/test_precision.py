import pytest
import torch
from torch import nn
from torch.nn.functional import relu

from moon.evidence import OpenHead, autocast, classifier_name, float32_classifier

X = torch.ones(2, 4)


class Net(nn.Module):
    """A network whose classifier is declared first."""

    def __init__(self):
        super().__init__()
        self.fc, self.aux, self.hidden = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(4, 6)

    def forward(self, x):
        return self.fc(relu(self.hidden(x)))


class TwoHeads(Net):
    def forward(self, x):
        h = relu(self.hidden(x))
        return self.fc(h) + self.aux(h)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16 warns once
def test_low_precision_spares_the_classifier_wherever_it_is_declared(caplog):
    model = Net()
    with torch.autocast("cpu", torch.bfloat16), float32_classifier(model):
        assert model(X).dtype == torch.float32
    with autocast(model, torch.device("cpu"), torch.bfloat16):
        assert (model.hidden(X).dtype, model(X).dtype) == (torch.bfloat16, torch.float32)
    model = TwoHeads()
    for _ in range(2):
        with autocast(model, torch.device("cpu"), torch.bfloat16):
            assert model(X).dtype == torch.bfloat16
    (record,) = caplog.records  # once
    assert (
        "TwoHeads computes all of its layers in low precision: the classifier of TwoHeads is not clear"
        in record.message
    )
    classifier_name(model, "fc")
    with autocast(model, torch.device("cpu"), torch.bfloat16):
        assert model.fc(torch.ones(2, 6)).dtype == torch.float32


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16 warns once
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_open_head_computes_in_float32_in_any_loop(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), OpenHead(6, 100))
    x = torch.randn(256, 4)
    with torch.autocast("cpu", dtype):
        hidden, logits = model[0](x), model(x)
    assert (hidden.dtype, logits.dtype) == (dtype, torch.float32)
    assert logits.to(dtype).float().ne(logits).any()  # not rounded
    highest = logits.topk(2).values
    assert (highest[:, 0] > highest[:, 1]).all()  # no ties, which the order of classes would decide
    rounded = highest.to(dtype)
    assert dtype == torch.float16 or (rounded[:, 0] == rounded[:, 1]).any()
    logits.sum().backward()
    assert model[2].weight.grad.dtype == torch.float32


def test_an_open_head_of_another_type_computes_in_that_type():
    head = OpenHead(6, 3, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        assert head(torch.ones(2, 6, dtype=torch.bfloat16)).dtype == torch.float64
    assert head.to(torch.bfloat16)(torch.ones(2, 6, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert OpenHead(6, 3, device="meta")(torch.ones(2, 6, device="meta")).shape == (2, 4)
