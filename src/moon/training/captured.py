"""Training steps replayed from CUDA graphs: the plain loop's, without the host's part in them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from moon.fast import Flat
from moon.objectives import Objective
from moon.sparse import SparseTopology, Topology

if TYPE_CHECKING:
    from moon.training.loop import Training

_OURS = ("moon", "torch")


def obstacle(training: Training) -> str | None:
    """Why the steps of this training cannot be captured, or None.

    What a step does on the host happens once, when it is captured. Code that nobody has looked at with that in mind may
    do something there, so classes from elsewhere are captured only if they themselves say `capturable = True`.
    """
    topology = type(training.topology)
    if training.ranks.count > 1:
        return "several processes train as one"
    if training.device.type == "cuda" and find_spec("triton") is None:
        return "triton is not installed"
    if topology.step is not Topology.step or topology.update not in (Topology.update, SparseTopology.update):
        return f"{topology.__name__} has a step or update of its own"
    for part in (*training.objective.modules(), *training.model.modules()):
        kind = type(part)
        if isinstance(part, Objective) and not part.capturable:
            return f"{kind.__name__} is not capturable"
        if kind.__module__.partition(".")[0] not in _OURS and not vars(kind).get("capturable", False):
            return f"{kind.__module__}.{kind.__name__} does not say that it is (capturable = True)"
    return Flat.obstacle(training.optimizer)


@dataclass
class _Captured:
    """A step for batches of one shape, and where it finds its batch and leaves its loss."""

    replay: Callable[[], object]
    x: Tensor
    y: Tensor
    loss: Tensor
    idle: list[nn.Parameter]  # without a gradient in it


class CapturedSteps:
    """The steps of a training. Forward and backward pass are captured, once for each shape of batch and each phase of
    the objective; the update of all
    weights is one kernel, and what the topology changes happens in between, on the host.

    Learning rate and epoch do not change what was captured: the rate is the update's argument, the epoch a tensor.
    On a CPU nothing is captured, but all else is the same.
    """

    def __init__(self, training: Training) -> None:
        self.training = training
        topology = training.topology
        masks = {topology.weights[name]: mask for name, mask in topology.masks.items()}
        low = None if training.precision == torch.float32 else training.precision
        self.flat = Flat(training.optimizer, masks, low)
        topology.keep_masks_in(self.flat.masks)
        self.epoch = torch.zeros((), dtype=torch.int64, device=training.device)
        self._captured: dict[Hashable, _Captured] = {}
        self._pool = None

    def step(self, x: Tensor, y: Tensor, epoch: int, lr: float) -> Tensor:
        """One training step; the loss, which the next step overwrites, stays on the device."""
        self.epoch.fill_(epoch)
        for group in self.training.optimizer.param_groups:
            group["lr"] = lr
        self.epoch.host = epoch  # type: ignore[attr-defined]
        if x.is_cuda:
            key = x.shape, self.training.objective.phase(epoch)
            captured = self._captured.get(key)
            if captured is None:
                self.training.objective.prepare(self.training.model, x, epoch)
                captured = self._captured[key] = self._capture(x, y)
            captured.x.copy_(x)
            captured.y.copy_(y)
            captured.replay()
            loss, idle = captured.loss, captured.idle
        else:
            loss = self._both_ways(x, y)
            idle = self.flat.idle
        topology = self.training.topology
        if topology.change():
            self.flat.refresh()
        else:
            self.flat.update(lr, idle)
        topology.steps += 1
        return loss

    def release(self) -> None:
        """Forget the graphs, and let the weights have memory of their own."""
        self._captured.clear()
        self.flat.release()

    def _both_ways(self, x: Tensor, y: Tensor) -> Tensor:
        """Forward and backward pass."""
        with self.flat.step(self.training.model):
            loss = self.training.loss(x, y, self.epoch)
            self.flat.join()  # gradients are zero now
            loss.backward()
        return loss.detach()

    def _capture(self, x: Tensor, y: Tensor) -> _Captured:
        x, y = x.clone(), y.clone()
        parts: Iterable[nn.Module] = (self.training.model, self.training.objective)
        buffers = [buffer for part in parts for buffer in part.buffers()]
        graph = torch.cuda.CUDAGraph()
        with _unchanged(buffers, x.device):
            side = torch.cuda.Stream(x.device)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # what is made or chosen at first use must not be part of the graph
                for _ in range(3):
                    self._both_ways(x, y)
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(graph, pool=self._pool):
                loss = self._both_ways(x, y)
        self._pool = graph.pool()
        return _Captured(graph.replay, x, y, loss, self.flat.idle)


@contextmanager
def _unchanged(buffers: list[Tensor], device: torch.device) -> Iterator[None]:
    """Steps taken inside leave no trace: neither in these buffers nor in the device's chance."""
    before = [buffer.clone() for buffer in buffers]
    chance = torch.cuda.get_rng_state(device)
    yield
    for buffer, old in zip(buffers, before, strict=True):
        buffer.copy_(old)
    torch.cuda.set_rng_state(chance, device)
