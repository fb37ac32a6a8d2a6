"""What every kind of training step needs: model, optimizer, objective, topology, precision and ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from moon.evidence import autocast
from moon.objectives import Objective
from moon.objectives.epoch import Epoch
from moon.sparse import Topology
from moon.training.ranks import Ranks


@dataclass(eq=False)
class TrainingSetup:
    """The objects that a training step works on.

    The optimizer updates the parameters of the model, and must update those of the objective if it has any (otherwise a
    ValueError). The objective is moved to the device of the model. Below float32, `precision` autocasts everything but
    the classifier.
    """

    model: nn.Module
    optimizer: Optimizer
    objective: Objective
    topology: Topology
    precision: torch.dtype = torch.float32
    ranks: Ranks = field(default_factory=Ranks)
    device: torch.device = field(init=False)

    def __post_init__(self) -> None:
        self.device = next(self.model.parameters()).device
        self.objective.to(self.device)
        updated = {id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]}
        parameters = self.objective.named_parameters()
        missing = [name for name, value in parameters if value.requires_grad and id(value) not in updated]
        if missing:
            raise ValueError(
                f"the optimizer does not update the parameters {missing} of {type(self.objective).__name__}; build it "
                "from both: SGD([*model.parameters(), *objective.parameters()], ...)"
            )

    def loss(self, x: Tensor, y: Tensor, epoch: Epoch) -> Tensor:
        """The loss of a batch, a scalar. The forward pass has the precision of the run, the classifier float32."""
        with autocast(self.model, self.device, self.precision):
            return self.objective(self.model, x, y, epoch=epoch)

    def state_dict(self) -> dict[str, Any]:
        """The state of model, optimizer, objective and topology: tensors and plain values in dicts and lists."""
        return {
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "objective": dict(self.objective.state_dict()),
            "topology": self.topology.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for parameter, values in self.optimizer.state.items():
            for name, value in values.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:  # give it the strides of the weight
                    values[name] = torch.empty_like(parameter).copy_(value)
        self.objective.load_state_dict(state["objective"])
        self.topology.load_state_dict(state["topology"])

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of every parameter group: `lr`, times the group's `lr_factor` if it has one."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_factor", 1.0)


class Steps(Protocol):
    """A way to take training steps: `PlainSteps` or `CapturedSteps`."""

    def step(self, x: Tensor, y: Tensor, epoch: int, lr: float, batch_size: int | None = None) -> Tensor:
        """Take one training step, see `Training.step`."""
        ...

    def refresh(self) -> None:
        """Prepare for the next step after other code may have changed weights, gradients or masks."""
        ...

    def release(self) -> None:
        """Release graphs and buffers; the weights are ordinary parameters again."""
        ...
