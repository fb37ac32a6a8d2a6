"""The training loop, for every objective and topology, on CPU and GPU."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from moon.errors import RankLost
from moon.objectives import Objective
from moon.seeds import derive
from moon.sparse import Topology
from moon.training.batches import EpochBatches
from moon.training.captured import CapturedSteps, CaptureFailed, capture_obstacle
from moon.training.checkpoint import Checkpoints, written_at_exit
from moon.training.divergence import Diverged, check_finite
from moon.training.plain import PlainSteps
from moon.training.ranks import Ranks
from moon.training.setup import Steps, TrainingSetup
from moon.training.vote import WeightVote, check_vote

__all__ = ["Diverged", "OnStep", "Record", "Training"]

Record = dict[str, float | int | None]
OnStep = Callable[[int, int, Callable[[], float]], object]

_log = logging.getLogger(__name__)


class Training:
    """A training run. It can be stopped at the end of any epoch and resumed with bit-identical results.

    On a GPU, steps are captured in CUDA graphs where possible, see `capture_obstacle` and `is_captured`.

    Args:
        model: The model to train.
        optimizer: Updates the parameters of the model, and those of the objective if it has any.
        objective: Computes the loss.
        topology: Replaces `optimizer.step()`; `Dense(optimizer)` for a dense network.
        rate: Maps the fraction of steps done, in [0, 1], to the learning rate, such as `CosineRate(0.1, 1e-6)`.
        batches: The training data, with a length and a method `epoch(epoch)`; see `EpochBatches`.
        epochs: The number of epochs.
        vote_from: The first epoch, counted from 0, after which the weights are averaged; None for no vote.
        vote_every: The number of epochs from one vote to the next.
        precision: torch.bfloat16 autocasts the forward pass; weights, classifier and loss stay float32.
        seed: Determines the random numbers of the run.
        ranks: This process among several that train as one.
        captured: Whether to capture steps. None: where possible; False: never; True: always, with a ValueError if it is
            not possible. On a CPU, True runs the same code without a graph.

    Attributes:
        next_epoch: The epoch that `run` starts with.
        vote: The `WeightVote`, or None.
        is_captured: Whether steps are captured; set by `run` and `begin`.
        capture_obstacle: Why steps are not captured although capture was requested; otherwise None.
        election_seconds: How long the vote's estimation of BatchNorm statistics took.

    Raises:
        ValueError: If the vote starts before the masks are frozen, or if the optimizer does not update every parameter
            of the objective.

    Example:
        >>> import torch
        >>> from moon import CosineRate, CrossEntropy, DropSchedule, RigL, Training
        >>> class Noise:
        ...     def __len__(self):
        ...         return 2
        ...     def epoch(self, epoch):
        ...         for step in range(2):
        ...             generator = torch.Generator().manual_seed(2 * epoch + step)
        ...             yield torch.randn(8, 16, generator=generator), torch.arange(8) % 4
        >>> model = torch.nn.Linear(16, 4)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> topology = RigL(model, optimizer, sparsity=0.5, schedule=DropSchedule(t_end=4, delta_t=1))
        >>> training = Training(
        ...     model, optimizer, CrossEntropy(), topology, CosineRate(0.1, 0.001), Noise(), epochs=3, vote_from=2
        ... )
        >>> records = []
        >>> elected = training.run(on_epoch=records.append)
        >>> [record["epoch"] for record in records], int((elected.weight != 0).sum())
        ([0, 1, 2], 32)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        objective: Objective,
        topology: Topology,
        rate: Callable[[float], float],
        batches: EpochBatches,
        *,
        epochs: int,
        vote_from: int | None = None,
        vote_every: int = 1,
        precision: torch.dtype = torch.float32,
        seed: int = 0,
        ranks: Ranks | None = None,
        captured: bool | None = None,
    ) -> None:
        self.setup = TrainingSetup(model, optimizer, objective, topology, precision, ranks or Ranks())
        self.setup.ranks.share_norms(model)
        self.model, self.optimizer, self.objective, self.topology = model, optimizer, objective, topology
        self.device = self.setup.device
        self.rate, self.batches, self.epochs, self.seed = rate, batches, epochs, seed
        self.vote_from, self.vote_every = vote_from, vote_every
        self._votes_after = range(0) if vote_from is None else range(vote_from, epochs, vote_every)
        self._is_divided = getattr(batches, "divided", False)
        if vote_from is not None:
            check_vote(topology, len(batches), epochs, vote_from)
        self.vote = None if vote_from is None else WeightVote(model, topology)
        self.captured = captured
        self.is_captured = False
        self.capture_obstacle: str | None = None
        self.next_epoch = 0
        self.election_seconds = 0.0
        self._steps: Steps = PlainSteps(self.setup)

    @property
    def masks(self) -> dict[str, Tensor]:
        """The masks of the trained model: the topology's, or those of the average if the voters' masks differ."""
        return self.topology.masks | ({} if self.vote is None else self.vote.masks)

    def run(
        self,
        *,
        checkpoints: Checkpoints | None = None,
        checkpoint_seconds: float = 0.0,
        watch: Callable[[nn.Module], Record] | None = None,
        on_step: OnStep | None = None,
        on_epoch: Callable[[Record], object] | None = None,
    ) -> nn.Module:
        """Train from `next_epoch` to the end.

        Args:
            checkpoints: Where to save the state after epochs; None to save nothing.
            checkpoint_seconds: Minimum time between checkpoints. The state after the last epoch is always saved.
            watch: Called with the model after each epoch; its values are added to the record.
            on_step: Called as `on_step(epoch, step, loss)` after each step, for progress bars. Only calling `loss()`
                waits for the device.
            on_epoch: Called with the record of each epoch before the checkpoint is written. In it, `seconds` is the
                time of the training steps of the epoch, `elapsed_seconds` the time since this call.

        Returns:
            The trained model; if there was a vote, the averaged one.

        Raises:
            Diverged: If the loss or a weight is not finite after an epoch.
            RankLost: If one of several processes that train as one is lost.
        """
        self.begin()
        try:
            with written_at_exit(checkpoints):
                try:
                    self._run_epochs(checkpoints, checkpoint_seconds, watch, on_step, on_epoch)
                finally:
                    self._release()
            return self.model if self.vote is None else self._elect(self.vote)
        except RankLost as error:
            raise RankLost(f"{error}, after {self.next_epoch} of {self.epochs} epochs") from error

    def _elect(self, vote: WeightVote) -> nn.Module:
        torch.manual_seed(derive("training", self.seed, self.epochs))
        started, batches = time.monotonic(), self.batches.epoch(self.epochs)
        parts = batches if self._is_divided else (self.setup.ranks.part(x, y)[1] for x, y in batches)
        elected = vote.elect((self.setup.objective.step_inputs(x), y) for x, y in parts)
        self.election_seconds = time.monotonic() - started
        return elected

    def _run_epochs(
        self,
        checkpoints: Checkpoints | None,
        checkpoint_seconds: float,
        watch: Callable[[nn.Module], Record] | None,
        on_step: OnStep | None,
        on_epoch: Callable[[Record], object] | None,
    ) -> None:
        run_started = saved_at = time.monotonic()
        while self.next_epoch < self.epochs:
            started = time.monotonic()
            epoch = self.next_epoch
            record = self._run_epoch(epoch, on_step)
            if self.vote is not None and epoch in self._votes_after:
                self.vote.cast(self.model)
            seconds = round(time.monotonic() - started, 3)
            if watch is not None:
                record |= watch(self.model)
            record |= {"seconds": seconds, "elapsed_seconds": round(time.monotonic() - run_started, 3)}
            self.next_epoch += 1
            if on_epoch is not None:
                on_epoch(record)
            is_due = time.monotonic() - saved_at >= checkpoint_seconds or self.next_epoch == self.epochs
            if checkpoints is not None and is_due:
                checkpoints.save(self.next_epoch, self.state_dict())
                saved_at = time.monotonic()

    def _run_epoch(self, epoch: int, on_step: OnStep | None) -> Record:
        # Each epoch has its own seed, so there is no random state to save.
        torch.manual_seed(derive("training", self.seed, epoch))
        self.model.train()
        self._steps.refresh()
        steps = len(self.batches)
        losses = torch.zeros(steps, device=self.device)  # read after the epoch: no step waits for the device
        lr = 0.0
        for step, (x, y) in enumerate(self.batches.epoch(epoch)):
            lr = self.rate((epoch * steps + step) / (self.epochs * steps))
            loss = self.step(x, y, epoch, lr, self.batches.sizes[step] if self._is_divided else None)
            losses[step] = loss
            if on_step is not None:
                on_step(epoch, step, loss.item)
        self.setup.ranks.check_agreement(self.topology.masks)
        check_finite(losses, self.model, epoch)
        return {
            "epoch": epoch,
            "loss": losses.double().mean().item(),
            "lr": lr,
            "density": self.topology.density(),
            "turnover": self.topology.turnover(),
            **self.objective.log(epoch),
        }

    def begin(self) -> None:
        """Prepare to take steps, captured ones where possible. `run` calls it; call it yourself before `step`.

        Raises:
            ValueError: If `captured` is True but steps cannot be captured.
        """
        self._release()
        wanted = self.setup.device.type == "cuda" if self.captured is None else self.captured
        obstacle = capture_obstacle(self.setup) if wanted else None
        self.capture_obstacle, self.is_captured = None, wanted and obstacle is None
        if self.is_captured:
            self._steps = CapturedSteps(self.setup)
        elif obstacle is not None:
            self._use_plain_steps(obstacle)

    def step(self, x: Tensor, y: Tensor, epoch: int, lr: float, batch_size: int | None = None) -> Tensor:
        """Take one training step, without waiting for the device.

        Args:
            x: The images of the batch.
            y: Their classes.
            epoch: The epoch, counted from 0.
            lr: The learning rate.
            batch_size: If several processes train as one and x is only the part of this process: the number of images
                of all parts. None: x is the whole batch.

        Returns:
            The loss, a scalar on the device. If steps are captured, the next step overwrites it.
        """
        try:
            return self._steps.step(x, y, epoch, lr, batch_size)
        except CaptureFailed as error:
            self._release()
            self._use_plain_steps(str(error))
        return self._steps.step(x, y, epoch, lr, batch_size)

    def _use_plain_steps(self, obstacle: str) -> None:
        if self.captured:
            raise ValueError(f"steps cannot be captured: {obstacle}")
        self.capture_obstacle, self.is_captured = obstacle, False
        _log.info("steps are not captured, which is slower: %s", obstacle)

    def _release(self) -> None:
        """Return from captured steps to plain ones; the weights get their own memory again."""
        self._steps.release()
        self._steps = PlainSteps(self.setup)

    def state_dict(self) -> dict[str, Any]:
        """The state of the run.

        Returns:
            Tensors and plain values in dicts and lists, for `Checkpoints.save`.
        """
        return {
            "next_epoch": self.next_epoch,
            **self.setup.state_dict(),
            "vote": {} if self.vote is None else self.vote.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state; `run` resumes from it.

        Args:
            state: What `state_dict` returned.
        """
        was_captured = isinstance(self._steps, CapturedSteps)
        self._release()
        self.setup.load_state_dict(state)
        if self.vote is not None:
            self.vote.load_state_dict(state["vote"])
        self.next_epoch = state["next_epoch"]
        if was_captured:
            self.begin()
