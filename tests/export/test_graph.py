"""The graph of a network: computed operator by operator, it equals the network."""

import moon_runtime
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from moon import lenet, open_head, resnet18, resnet50
from moon.export.content import run_network
from moon.export.file import network_bytes
from moon.export.tracing import trace


def settled(model: nn.Module) -> nn.Module:
    """A model in evaluation mode whose BatchNorm statistics are not those of a new one."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0, 0.3)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.3)
    return model.eval()


class Odd(nn.Module):
    """Depthwise convolution, squeeze and excitation, concatenation, BatchNorm before a convolution."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish())
        self.norm = nn.BatchNorm2d(8)
        self.depth = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8)
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1), nn.SiLU(), nn.Conv2d(4, 8, 1))
        self.fc = nn.Linear(16, 5)

    def forward(self, x):
        x = self.stem(x)
        y = F.relu6(self.depth(self.norm(x)))
        y = F.hardsigmoid(self.squeeze(y)) * y
        y = torch.cat([F.avg_pool2d(F.gelu(x), 2), F.max_pool2d(y, 3, 2, 1)], dim=1)
        return self.fc(F.dropout(y.mean((2, 3)), 0.5, self.training))


def inverted_residual(inputs: int, width: int, outputs: int, stride: int) -> nn.Sequential:
    """The block of MobileNetV2, without its shortcut."""
    return nn.Sequential(
        nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU6(inplace=True),
        nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False), nn.BatchNorm2d(width), nn.ReLU6(inplace=True),
        nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
    )  # fmt: skip


class Mobile(nn.Module):
    """Inverted residuals as in MobileNetV2, h-swish and squeeze and excitation as in V3."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish(inplace=True))
        self.first, self.second = inverted_residual(8, 24, 8, 1), inverted_residual(8, 24, 12, 2)
        self.gate = nn.Sequential(nn.Conv2d(12, 4, 1), nn.ReLU(), nn.Conv2d(4, 12, 1), nn.Hardsigmoid())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.SiLU(), nn.Dropout(), nn.Linear(16, 5))

    def forward(self, x):
        x = self.stem(x)
        x = self.second(x + self.first(x))
        return self.head(F.adaptive_avg_pool2d(x * self.gate(F.adaptive_avg_pool2d(x, 1)), 1))


class DenseBlocks(nn.Module):
    """DenseNet's order: BatchNorm and ReLU before each convolution, outputs are concatenated."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8 + 4 * i) for i in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(8 + 4 * i, 4, 3, padding=1, bias=False) for i in range(3))
        self.last, self.fc = nn.BatchNorm2d(20), nn.Linear(20, 5)

    def forward(self, x):
        x = F.max_pool2d(self.stem(x), 3, 2, 1)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, conv(F.relu(norm(x)))], 1)
        return self.fc(F.adaptive_avg_pool2d(F.relu(self.last(x)), (1, 1)).flatten(1))


def vgg() -> nn.Module:
    """Convolutions with biases, an activation after pooling, several Linear layers, pooling to 2x2."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(8, 12, 5, 3, 2), nn.GELU(),
        nn.AvgPool2d(2, 1, 1), nn.Sigmoid(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 20),
        nn.ReLU(), nn.Linear(20, 5),
    )  # fmt: skip


class Tricky(nn.Module):
    """What must not be folded: results that are read twice, also behind dropout, and weights that are used twice."""

    def __init__(self):
        super().__init__()
        self.conv, self.again = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.Conv2d(6, 6, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(6) for _ in range(3))
        self.drop, self.fc = nn.Dropout(), nn.Linear(6, 5)

    def forward(self, x):
        y = self.conv(x)
        y = F.relu(self.drop(y)) + y
        y = self.norms[0](self.drop(y.contiguous())) + y
        y = self.norms[1](self.again(y))
        y = F.silu(self.norms[2](self.again(y))) + self.again(y)
        y = F.max_pool2d(y, 3, 2, 1, ceil_mode=True) + F.avg_pool2d(y, 3, 2, 1, True, count_include_pad=False)
        y = F.max_pool2d(y, 2, 1, dilation=2)
        z = F.relu(y.mean((2, 3)))
        return self.fc(z + z.view(z.shape).sigmoid())


NETWORKS = [
    pytest.param(lambda: lenet(10), (1, 28, 28), id="lenet"),
    pytest.param(lambda: open_head(lenet(10, norm=True)), (1, 28, 28), id="lenet-norm"),
    pytest.param(lambda: open_head(resnet18(10)), (3, 32, 32), id="resnet18"),
    pytest.param(lambda: resnet50(7), (3, 64, 64), id="resnet50"),
    pytest.param(Odd, (3, 20, 20), id="odd"),
    pytest.param(Mobile, (3, 33, 29), id="mobile"),
    pytest.param(DenseBlocks, (3, 31, 40), id="dense"),
    pytest.param(vgg, (3, 26, 26), id="vgg"),
    pytest.param(Tricky, (3, 18, 22), id="tricky"),
]


@pytest.mark.parametrize(("make", "shape"), NETWORKS)
def test_the_graph_computes_what_the_network_computes(make, shape):
    model = settled(make())
    graph = trace(model, shape)
    x = torch.randn(3, *shape)
    outputs = {"logits": graph.logits, "features": graph.features}
    weights = {name: weight.numpy() for name, weight in graph.weights.items()}
    logits, features = run_network({"graph": graph.ops, "outputs": outputs}, weights, x)
    head = next(module for module in reversed(list(model.modules())) if isinstance(module, nn.Linear))
    with torch.no_grad():
        torch.testing.assert_close(logits, model(x), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(head(features), logits)


@pytest.mark.parametrize("density", [1.0, 0.2])
@pytest.mark.parametrize(("make", "shape"), NETWORKS)
def test_the_runtime_computes_what_the_network_computes(make, shape, density):
    model = settled(make())
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                module.weight *= (torch.rand_like(module.weight) < density) / density**0.5
    x = torch.randn(19, *shape)  # more than a vector has lanes, and some more
    network = moon_runtime.Network(network_bytes(trace(model, shape)))
    with torch.no_grad():
        expected = model(x)
    for batch in (x, x[:1]):
        found = torch.from_numpy(network(batch.numpy())["logits"])
        torch.testing.assert_close(found, expected[: len(batch)], rtol=1e-4, atol=1e-4)


def test_batchnorm_and_activations_are_folded():
    graph = trace(settled(resnet18(10)), (3, 32, 32))
    assert [op["op"] for op in graph.ops].count("affine") == 0
    assert [op["op"] for op in graph.ops].count("act") == 0
    assert {op["act"] for op in graph.ops if op["op"] == "add"} == {"relu"}
    pruned = resnet18(10)
    with torch.no_grad():
        pruned.layer1[0].conv1.weight[:, ::2] = 0
    graph = trace(settled(pruned), (3, 32, 32))
    assert (graph.weights["layer1.0.conv1.weight"][:, ::2] == 0).all()  # folding keeps zeros


class Unsupported(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change, self.fc = change, nn.Linear(4, 2)

    def forward(self, x):
        return self.change(self.fc(x.mean((2, 3))), x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y, x: y.cumsum(1), r"the network: the operator 'aten.cumsum.default' is not supported"),
        (lambda y, x: y.relu(), "output of the network must be that of a Linear layer"),
        (lambda y, x: y + y[:1], "not supported|same shape"),
        (lambda y, x: y if x.sum() > 0 else -y, "Unsupported cannot be traced"),
        (lambda y, x: F.dropout(y), "dropout is active although the network is in evaluation mode"),
    ],
)
def test_what_is_not_supported_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        trace(Unsupported(change).eval(), (4, 5, 5))


def test_training_mode_is_rejected():
    with pytest.raises(ValueError, match="ResNet is in training mode"):
        trace(resnet18(10).train(), (3, 32, 32))
