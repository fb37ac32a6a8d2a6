"""Training steps replayed from CUDA graphs: the plain loop's, without the host's part in them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from math import inf
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from moon.fast import Flat, Left, on_buffers
from moon.objectives import Objective
from moon.sparse import SparseTopology, Topology

if TYPE_CHECKING:
    from moon.training.loop import Training

_OURS = ("moon", "torch")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class CaptureFailed(Exception):
    """A step could not be captured after all; nothing was changed."""


def obstacle(training: Training) -> str | None:
    """Why the steps of this training cannot be captured, or None.

    What a step does on the host happens once, when it is captured. Code that nobody has looked at with that in mind may
    do something there, so what is from elsewhere is captured only if it says `capturable = True` itself.
    """
    if training.ranks.count > 1:
        return "several processes train as one"
    if training.device.type == "cuda" and find_spec("triton") is None:
        return "triton is not installed"
    if not _updates_as_usual(type(training.topology)):
        return f"{type(training.topology).__name__} has a step or update of its own"
    for part in (*training.objective.modules(), *training.model.modules()):
        if isinstance(part, Objective) and not part.capturable:
            return f"{type(part).__name__} is not capturable"
        if any(getattr(part, hooks) for hooks in _HOOKS):
            return f"{type(part).__name__} has hooks"
        # What it calls on the host, such as a supply of outliers, counts as well.
        called = [value for value in vars(part).values() if callable(value) and not isinstance(value, nn.Module)]
        for one in (part, *called):
            if (name := _stranger(one)) is not None:
                return f"{name} does not say that it is (capturable = True)"
    return Flat.obstacle(training.optimizer)


def _updates_as_usual(topology: type[Topology]) -> bool:
    """Whether all that it has of its own is in `change`, which is not captured."""
    if issubclass(topology, SparseTopology) and topology._enforce is not SparseTopology._enforce:
        return False
    return topology.step is Topology.step and topology.update in (Topology.update, SparseTopology.update)


def _stranger(thing: Any) -> str | None:
    """The name of what is neither torch's nor ours and does not say that it may be captured."""
    owner = getattr(thing, "__self__", thing)  # of a method: whose it is
    kind = owner if hasattr(owner, "__qualname__") else type(owner)
    is_known = kind.__module__.partition(".")[0] in _OURS
    return None if is_known or vars(kind).get("capturable", False) else f"{kind.__module__}.{kind.__qualname__}"


@dataclass
class _Captured:
    """A step for batches of one shape, and where it finds its batch and leaves its loss."""

    replay: Callable[[], object]
    x: Tensor
    y: Tensor
    loss: Tensor
    left: Left


class CapturedSteps:
    """The steps of a training, captured once for each shape of batch and each phase of the objective: forward and
    backward pass, and the update of all weights as one kernel. In a step in which the topology may change something,
    the update is left out, and follows if the topology does not take its place.

    Learning rate and epoch do not change what was captured: they are tensors.
    On a CPU nothing is captured, but all else is the same.
    """

    def __init__(self, training: Training) -> None:
        self.training = training
        topology = training.topology
        self._on_device = torch.cuda.device(training.device) if training.device.type == "cuda" else nullcontext()
        masks = {topology.weights[name]: mask for name, mask in topology.masks.items()}
        low = None if training.precision == torch.float32 else training.precision
        self.flat = Flat(training.optimizer, masks, low)
        topology.keep_masks_in(self.flat.masks)
        self.epoch = torch.zeros((), dtype=torch.int64, device=training.device)
        self._captured: dict[Hashable, _Captured] = {}
        self._pool = None

    def step(self, x: Tensor, y: Tensor, epoch: int, lr: float) -> Tensor:
        """One training step; the loss, which the next step overwrites, stays on the device."""
        with self._on_device:
            return self._step(x, y, epoch, lr)

    def _step(self, x: Tensor, y: Tensor, epoch: int, lr: float) -> Tensor:
        if getattr(self.epoch, "host", None) != epoch:
            self.epoch.fill_(epoch)
            self.epoch.host = epoch  # type: ignore[attr-defined]
        topology = self.training.topology
        is_due = topology.is_due
        if x.is_cuda:
            key = x.shape, self.training.objective.phase(epoch), self.flat.fixed
            captured = self._captured.get(key)
            if captured is None:
                self.training.objective.prepare(self.training.model, x, epoch)
                captured = self._captured[key] = self._capture(x, y)
            captured.x.copy_(x)
            captured.y.copy_(y)
            self.flat.rate.fill_(-inf if is_due else lr)
            captured.replay()
            loss, left = captured.loss, captured.left
        else:
            loss, left = self._both_ways(x, y)
        for group in self.training.optimizer.param_groups:
            group["lr"] = lr
        changed = False
        if is_due:
            left = self.flat.gather(left)
            changed = topology.change()
            self.flat.resume()
        if not changed and (is_due or not x.is_cuda):
            self.flat.rate.fill_(lr)
            self.flat.update(left)
        topology.steps += 1
        return loss

    def release(self) -> None:
        """Forget the graphs, and let the weights have memory of their own."""
        self._captured.clear()
        self.flat.release()

    def _both_ways(self, x: Tensor, y: Tensor, places: Tensor | None = None) -> tuple[Tensor, Left]:
        """Forward and backward pass, and the update where it is to be captured."""
        with on_buffers(self.training.model), self.flat.step(places) as left:
            loss = self.training.loss(x, y, self.epoch)
            with self.flat.collecting():
                loss.backward()
            if x.is_cuda:
                self.flat.update_beside(left)
        return loss.detach(), left

    def _capture(self, x: Tensor, y: Tensor) -> _Captured:
        x, y, places = x.clone(), y.clone(), self.flat.room()  # not the graph's: other graphs use that memory, too
        parts = self.training.model, self.training.objective
        graph = torch.cuda.CUDAGraph()
        try:
            with _unchanged([buffer for part in parts for buffer in part.buffers()], x.device):
                self.flat.rate.fill_(-inf)  # no update
                side = torch.cuda.Stream(x.device)
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):  # what is made or chosen at first use must not be part of the graph
                    for _ in range(3):
                        self._both_ways(x, y)
                torch.cuda.current_stream().wait_stream(side)
                # Other threads, such as one that pins memory, may go on meanwhile.
                with torch.cuda.graph(graph, self._pool, torch.cuda.Stream(x.device), "thread_local"):
                    loss, left = self._both_ways(x, y, places)
        except Exception as error:  # what is wrong with the step itself the plain loop will find again
            raise CaptureFailed(f"{type(error).__name__}: {error}".strip().splitlines()[0]) from error
        self._pool = graph.pool()
        self.flat.place(left)
        return _Captured(graph.replay, x, y, loss, left)


@contextmanager
def _unchanged(buffers: list[Tensor], device: torch.device) -> Iterator[None]:
    """Steps taken inside leave no trace: neither in these buffers nor in the device's chance."""
    before = [buffer.clone() for buffer in buffers]
    chance = torch.cuda.get_rng_state(device)
    try:
        yield
    finally:
        for buffer, old in zip(buffers, before, strict=True):
            buffer.copy_(old)
        torch.cuda.set_rng_state(chance, device)
