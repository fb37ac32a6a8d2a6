import pytest
import torch
from torch import nn
from torch.nn.functional import log_softmax, relu

from moon import lenet, resnet18
from moon.evidence.tracing import output_layers


class Returning(nn.Module):
    """A network that returns a function of its classifier's output, its hidden layer and its input."""

    def __init__(self, output):
        super().__init__()
        self.hidden, self.fc, self.aux = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 3)
        self.output, self.factor = output, nn.Parameter(torch.ones(()))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, labels=None):
        self.calls += 1
        h = relu(self.hidden(x))
        return self.output(self, self.fc(h), h, x)


@pytest.mark.parametrize(
    ("output", "layers"),
    [
        (lambda net, z, h, x: z, ["fc"]),
        (lambda net, z, h, x: log_softmax(z, dim=1), ["fc"]),
        (lambda net, z, h, x: z.float().view(x.shape[0], -1) / x.size(1) ** 0.5, ["fc"]),
        (lambda net, z, h, x: net.factor.exp() * z, ["fc"]),
        (lambda net, z, h, x: (z, h), ["fc"]),
        (lambda net, z, h, x: [x, z], ["fc"]),
        (lambda net, z, h, x: {"logits": z, "auxiliary": net.aux(h)}, ["fc"]),
        (lambda net, z, h, x: {"out": {"logits": z}}["out"], ["fc"]),
        (lambda net, z, h, x: {"a": z, "b": net.aux(h)}["b"], ["aux"]),
        (lambda net, z, h, x: (z, net.aux(h)), ["aux", "fc"]),
        (lambda net, z, h, x: z + net.aux(h), ["aux", "fc"]),
        (lambda net, z, h, x: z * net.aux(h).sigmoid(), []),
        (lambda net, z, h, x: z + x.sum(), []),
        (lambda net, z, h, x: nn.functional.linear(h, net.fc.weight), []),
        (lambda net, z, h, x: relu(z), []),
        (lambda net, z, h, x: x, []),
        (lambda net, z, h, x: z if x.sum() > 0 else h, None),
    ],
)
def test_layers_that_compute_the_output_are_found_by_tracing(output, layers):
    model, random_state = Returning(output), torch.get_rng_state()
    assert output_layers(model) == layers
    assert model.calls == 0
    assert torch.equal(torch.get_rng_state(), random_state)


class Scale(nn.Module):
    def forward(self, x):
        return 2 * x


class Dynamic(nn.Module):
    """It cannot be traced."""

    def __init__(self):
        super().__init__()
        self.fc, self.late = nn.Linear(4, 6), nn.Linear(4, 6)

    def forward(self, x):
        return self.fc(x) if x.sum() > 0 else self.late(x)


def test_tracing_enters_the_module_that_computes_the_output_but_not_the_body():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.late, self.fc = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x, mask=None):
            return self.fc(relu(self.late(x)))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Sequential(nn.Dropout(), Head(), Scale(), nn.Identity())
            self.body = Dynamic()

        def forward(self, x):
            return self.head(self.body(x))

    assert output_layers(Model()) == ["head.1.fc"]
    assert output_layers(resnet18()) == ["fc"]
    assert output_layers(lenet()) == ["fc"]
