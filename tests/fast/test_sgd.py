import subprocess
import sys

import pytest
import torch
from torch import nn

from moon.fast import SGD, optimizer_obstacle

# All that captured training and checkpoints need of an optimizer.
TRAINING = """
import sys
import torch
from torch import nn
from moon import CosineRate, CrossEntropy, DropSchedule, RigL, Training
from moon.fast import SGD

class Noise:
    def __len__(self):
        return 2
    def epoch(self, epoch):
        for step in range(2):
            yield torch.randn(8, 3, 8, 8), torch.arange(8) % 4

model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 4))
optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
topology = RigL(model, optimizer, sparsity=0.5, schedule=DropSchedule(t_end=4, delta_t=1))
setup = model, optimizer, CrossEntropy(), topology, CosineRate(0.1, 0.001), Noise()
training = Training(*setup, epochs=3, captured=True)
training.run()
training.load_state_dict(training.state_dict())
optimizer.zero_grad()
assert training.capture_obstacle is None
print("torch._dynamo" in sys.modules)
"""


def test_captured_training_does_not_import_the_compiler():
    done = subprocess.run([sys.executable, "-c", TRAINING], capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr


def trained(kind: type[torch.optim.SGD]) -> torch.optim.SGD:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    optimizer = kind([layer.weight], lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    optimizer.add_param_group({"params": layer.bias, "lr": 0.2})
    for _ in range(2):
        layer(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def test_it_is_torchs_sgd():
    ours, theirs = trained(SGD), trained(torch.optim.SGD)
    for a, b in zip(ours.param_groups, theirs.param_groups, strict=True):
        assert a["lr"] == b["lr"]
        assert a["params"][0].grad is None
        torch.testing.assert_close(a["params"], b["params"], rtol=0, atol=0)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    again = trained(SGD)
    again.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(again.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    with pytest.raises(ValueError, match="more than one parameter group"):
        ours.add_param_group({"params": ours.param_groups[0]["params"]})


def test_its_parameters_can_be_in_flat_buffers_and_those_of_a_subclass_cannot():
    class Other(SGD):
        pass

    parameters = list(nn.Linear(3, 2).parameters())
    assert optimizer_obstacle(SGD(parameters)) is None
    assert optimizer_obstacle(Other(parameters)) is not None
