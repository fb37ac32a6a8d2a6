import pytest
import torch
from torch import nn
from torch.nn.functional import relu

from moon.evidence import autocast, classifier_name, float32_classifier

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
