"""Training steps replayed from CUDA graphs, which run without Python code."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from moon.fast import (
    FlatBuffers,
    StepGradients,
    dry_run,
    kernel_search,
    layers_on_buffers,
    optimizer_obstacle,
    sgd_update,
    sgd_update_overlapped,
    top_masks,
    write_addresses,
)
from moon.nets import fused_blocks
from moon.objectives import Objective
from moon.objectives.epoch import DeviceEpoch
from moon.sparse import SparseTopology, Topology
from moon.training.setup import TrainingSetup

# Layers of timm and torchvision decide nothing by the values of tensors, and their random numbers (dropout, stochastic
# depth) come from the generator of the device.
_TRUSTED = ("moon", "torch", "timm", "torchvision")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class CaptureFailed(Exception):
    """A step could not be captured; nothing was changed."""


def capture_obstacle(setup: TrainingSetup) -> str | None:
    """Return why training steps cannot be captured, or None if they can.

    The Python code of a captured step runs only once, when it is captured. Code from outside of `moon`, `torch`, `timm`
    and `torchvision` may not allow for that, so it is captured only if its class declares `capturable = True`.
    """
    if setup.ranks.count > 1:
        return "several processes train as one"
    if setup.device.type == "cuda" and find_spec("triton") is None:
        return "triton is not installed"
    if not _updates_as_usual(type(setup.topology)):
        return f"{type(setup.topology).__name__} overrides step, update or _enforce"
    others = [each for part in setup.objective.modules() if isinstance(part, Objective) for each in part.networks]
    for part in (module for each in (setup.objective, setup.model, *others) for module in each.modules()):
        if isinstance(part, Objective) and not part.capturable:
            return f"{type(part).__name__} is not capturable"
        if any(getattr(part, hooks) for hooks in _HOOKS):
            return f"{type(part).__name__} has hooks"
        # Functions that it calls, such as the one that draws outliers, are checked as well.
        functions = [value for value in vars(part).values() if callable(value) and not isinstance(value, nn.Module)]
        for value in (part, *functions):
            if (name := _undeclared(value)) is not None:
                return f"{name} does not declare capturable = True"
    return optimizer_obstacle(setup.optimizer)


def _updates_as_usual(topology: type[Topology]) -> bool:
    """Whether a topology overrides nothing but `change`, which is not captured, and the scores."""
    if issubclass(topology, SparseTopology) and topology._enforce is not SparseTopology._enforce:
        return False
    return topology.step is Topology.step and topology.update is Topology.update


def _undeclared(value: Any) -> str | None:
    """The name of an object's class if it is not of a trusted package and does not declare `capturable = True`."""
    while isinstance(value, partial):
        value = value.func
    owner = getattr(value, "__self__", value)  # the object of a bound method
    kind = owner if hasattr(owner, "__qualname__") else type(owner)
    is_trusted = kind.__module__.partition(".")[0] in _TRUSTED
    return None if is_trusted or vars(kind).get("capturable", False) else f"{kind.__module__}.{kind.__qualname__}"


@dataclass
class _Graph:
    """A captured step for batches of one shape: its inputs and its results are in fixed memory."""

    replay: Callable[[], object]
    x: Tensor
    y: Tensor
    loss: Tensor
    gradients: StepGradients


class CapturedSteps:
    """Training steps captured in CUDA graphs, one for each batch shape and each phase of the objective.

    A graph holds the forward and backward pass and the update of all weights. The learning rate and the epoch are
    tensors, so that they can change. In a step in which the topology may change, the update of the graph is switched
    off; it follows after the change, unless the change replaces it.

    On a CPU nothing is captured, but everything else is the same. `capture_obstacle(setup)` must be None.
    """

    def __init__(self, setup: TrainingSetup) -> None:
        self.setup = setup
        device, topology = setup.device, setup.topology
        self._on_device = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        masks = {topology.weights[name]: mask for name, mask in topology.masks.items()}
        low_precision = None if setup.precision == torch.float32 else setup.precision
        self.buffers = FlatBuffers(setup.optimizer, masks, low_precision)
        topology.keep_masks_in(self.buffers.masks)
        self._epoch = DeviceEpoch(torch.zeros((), dtype=torch.int64, device=device), host=0)
        self._graphs: dict[Hashable, _Graph] = {}
        self._pool = None

    def step(self, x: Tensor, y: Tensor, epoch: int, lr: float, batch_size: int | None = None) -> Tensor:
        """Take one training step, see `Training.step`. The next step overwrites the loss."""
        with self._on_device:
            return self._step(x, y, epoch, lr)

    def _step(self, x: Tensor, y: Tensor, epoch: int, lr: float) -> Tensor:
        if self._epoch.host != epoch:
            self._epoch = DeviceEpoch(self._epoch.value.fill_(epoch), epoch)
        setup, buffers, topology = self.setup, self.buffers, self.setup.topology
        is_due = topology.is_due
        if x.is_cuda:
            graph = self._graph(x, y, epoch)
            graph.x.copy_(x)
            graph.y.copy_(y)
            buffers.lr.fill_(-inf if is_due else lr)
            graph.replay()
            loss, gradients = graph.loss, graph.gradients
        else:
            loss, gradients = self._forward_backward(x, y)
        setup.set_lr(lr)
        changed = False
        if is_due:
            gradients = buffers.gather(gradients)
            changed = topology.change()
            buffers.refresh()
        if not changed and (is_due or not x.is_cuda):
            buffers.lr.fill_(lr)
            sgd_update(buffers, gradients)
        topology.steps += 1
        return loss

    def replayed(self, x: Tensor, y: Tensor, epoch: int, lr: float) -> Callable[[], object]:
        """Take one step on a GPU, and return a function that repeats its captured part, for measurements.

        The part is both passes and the update, without a mask change.
        """
        with self._on_device:
            self._step(x, y, epoch, lr)
            self.buffers.lr.fill_(lr)
            return self._graph(x, y, epoch).replay

    def refresh(self) -> None:
        """Prepare for the next step after other code may have changed weights, gradients or masks."""
        self.buffers.refresh()

    def release(self) -> None:
        """Delete the graphs and give each weight its own memory again."""
        self._graphs.clear()
        self.buffers.release()

    def _forward_backward(self, x: Tensor, y: Tensor, addresses: Tensor | None = None) -> tuple[Tensor, StepGradients]:
        """Forward and backward pass; on a GPU also the update, which is captured with them."""
        model = self.setup.model
        with layers_on_buffers(model), fused_blocks(model), self.buffers.step(addresses) as gradients:
            loss = self.setup.loss(x, y, self._epoch)
            with self.buffers.collect_gradients():
                loss.backward()
            if x.is_cuda:
                sgd_update_overlapped(self.buffers, gradients)
        return loss.detach(), gradients

    def _compile_kernels(self, x: Tensor, y: Tensor) -> None:
        """Compile all kernels of a step and of a mask update, several at a time."""
        topology = self.setup.topology
        with dry_run(), kernel_search(False):  # other convolutions than ours are computed
            if isinstance(topology, SparseTopology) and topology.rewires:
                weights = [topology.weights[name].detach() for name in topology.masks]
                top_masks(weights, [1] * len(weights))
            self._forward_backward(x, y)

    def _graph(self, x: Tensor, y: Tensor, epoch: int) -> _Graph:
        """The graph for batches like this one in this epoch; captured on first use."""
        key = x.shape, self.setup.objective.phase(epoch), self.buffers.hyperparameters
        if key not in self._graphs:
            self.setup.objective.prepare(self.setup.model, x, epoch)
            self._graphs[key] = self._capture(x, y)
        return self._graphs[key]

    def _capture(self, x: Tensor, y: Tensor) -> _Graph:
        # Not in the memory of the graph, which other graphs reuse.
        x, y, addresses = x.clone(), y.clone(), self.buffers.allocate_addresses()
        parts = self.setup.model, self.setup.objective
        graph = torch.cuda.CUDAGraph()
        try:
            # A smaller batch than others is the last one of an epoch: its kernels are not worth a search.
            is_smaller = any(len(x) < len(graph.x) for graph in self._graphs.values())
            with _unchanged(parts, x.device), kernel_search(not is_smaller):
                self.buffers.lr.fill_(-inf)  # no update
                self._compile_kernels(x, y)
                warm_up = torch.cuda.Stream(x.device)
                warm_up.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(warm_up):  # one-time initialisation of libraries must not be in the graph
                    for _ in range(3):
                        self._forward_backward(x, y)
                torch.cuda.current_stream().wait_stream(warm_up)
                # thread_local: other threads, such as one that pins memory, may use CUDA at the same time.
                with torch.cuda.graph(graph, self._pool, torch.cuda.Stream(x.device), "thread_local"):
                    loss, gradients = self._forward_backward(x, y, addresses)
        except Exception as error:  # an error of the step itself occurs again in `PlainSteps`
            raise CaptureFailed(f"{type(error).__name__}: {error}".strip().splitlines()[0]) from error
        self._pool = graph.pool()
        write_addresses(self.buffers, gradients)
        return _Graph(graph.replay, x, y, loss, gradients)


@contextmanager
def _unchanged(parts: Iterable[nn.Module], device: torch.device) -> Iterator[None]:
    """Context that restores the buffers of these modules and the random state of a GPU at its end."""
    buffers = [buffer for part in parts for buffer in part.buffers()]
    before = [buffer.clone() for buffer in buffers]
    random_state = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        for buffer, old in zip(buffers, before, strict=True):
            buffer.copy_(old)
        if random_state is not None:
            torch.cuda.set_rng_state(random_state, device)
