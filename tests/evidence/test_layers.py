"""`read(..., layers=True)` summarises the outputs of convolutions."""

import pytest
import torch
from torch import nn

from moon import Evidence, lenet, open_head, read, resnet18
from moon.evidence.layers import LAYERS, chosen
from moon.nets import resnet8


def test_the_first_the_last_and_those_between():
    assert chosen(3) == [0, 1, 2]
    assert chosen(0) == []
    for count in range(LAYERS, 60):
        places = chosen(count)
        assert (places[0], places[-1], len({*places})) == (0, count - 1, LAYERS)


@pytest.mark.parametrize(
    ("make", "shape", "channels"),
    [
        (lenet, (1, 28, 28), [6, 16, 120]),
        (lambda: open_head(resnet8(10)), (3, 32, 32), [16, 16, 16, 32, 32, 64, 64, 64]),
        (resnet18, (3, 32, 32), [64, 64, 128, 128, 256, 256, 512, 512]),
    ],
)
def test_mean_and_deviation_of_each_channel(make, shape, channels):
    model, x, outputs = make(), torch.randn(5, *shape), []
    expected = read(model, x)
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    found = read(model, [x[:2], x[2:]], layers=True)
    assert not any(module._forward_hooks for module in model.modules())
    for module in convolutions:
        module.register_forward_hook(lambda *arguments: outputs.append(arguments[-1].detach()))
    with torch.no_grad():
        model.eval()(x)
    assert found.layer_sizes == tuple(2 * count for count in channels)
    parts = found.layers.split(found.layer_sizes, 1)
    for part, place in zip(parts, chosen(len(outputs)), strict=True):
        y = outputs[place].flatten(2)
        torch.testing.assert_close(part, torch.cat([y.mean(2), y.std(2, correction=0)], 1), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found.logits, expected.logits)
    assert expected.layers is None


def test_layers_are_kept_by_what_is_made_of_evidence(evidence):
    whole = evidence(6)
    one, two = whole.take(torch.tensor([0, 1])), whole.take(torch.tensor([2, 3, 4, 5]))
    joined = Evidence.concatenate([one, two])
    assert torch.equal(joined.layers, whole.layers)
    mean = Evidence.mean([whole, evidence(6, seed=1)])
    torch.testing.assert_close(mean.layers, (whole.layers + evidence(6, seed=1).layers) / 2)
    double = whole.to(torch.float64)
    assert double.layers.dtype == torch.float64
    assert {e.layer_sizes for e in (one, joined, mean, double)} == {(4, 6)}
