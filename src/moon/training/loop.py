"""The only training loop: every objective, every topology, CPU and CUDA."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from moon.objectives import Objective
from moon.seeds import derive
from moon.sparse import Topology
from moon.training.captured import CapturedSteps, CaptureFailed, obstacle
from moon.training.checkpoint import Checkpoints
from moon.training.ranks import Ranks
from moon.training.vote import WeightVote

Record = dict[str, float | int | None]
OnStep = Callable[[int, int, Callable[[], float]], object]


class EpochBatches(Protocol):
    """What the loop needs of the data: a length in batches, and the batches of any epoch."""

    def __len__(self) -> int: ...

    @property
    def sizes(self) -> list[int]: ...

    def epoch(self, epoch: int) -> Iterable[tuple[Tensor, Tensor]]: ...


class Diverged(Exception):
    """The loss became NaN or infinite."""


class Training:
    """A training run that can be put down at the end of any epoch and taken up again, bit for bit.

    `rate` maps the share of steps done to the learning rate. The model votes at the end of every `vote_every`-th epoch
    from `vote_from` on. With `precision=torch.bfloat16` the forward pass is autocast; weights and loss stay float32.
    On a GPU steps are captured (see `CapturedSteps`) where they can be; `captured=False` keeps to the plain loop, and
    True refuses to.
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
        self.model, self.optimizer, self.objective, self.topology = model, optimizer, objective, topology
        self.rate, self.batches, self.epochs, self.seed = rate, batches, epochs, seed
        self.ranks = ranks or Ranks()
        self.ranks.share_norms(model)
        self.precision, self.vote_from, self.vote_every = precision, vote_from, vote_every
        self.vote = None if vote_from is None else WeightVote(model)
        self.captured = captured
        self.plain_because: str | None = None
        self.is_captured = False  # known once it runs
        self._steps: CapturedSteps | None = None
        self._say: Callable[[str], object] = print
        self.next_epoch = 0
        self.election_seconds = 0.0
        self.device = next(model.parameters()).device
        too_early = vote_from is not None and (vote_from + 1) * len(batches) < topology.frozen_after
        if vote_from is not None and too_early and not topology.superposes:
            votes = epochs + 1 - -(-topology.frozen_after // len(batches))
            raise ValueError(
                f"the first vote is cast after {vote_from + 1} epochs of {len(batches)} steps, but the masks change "
                f"until step {topology.frozen_after}; let the last {votes} epochs or fewer vote, or rewire less long"
            )

    def run(
        self,
        *,
        checkpoints: Checkpoints | None = None,
        checkpoint_seconds: float = 0.0,
        watch: Callable[[nn.Module], Record] | None = None,
        on_step: OnStep | None = None,
        on_epoch: Callable[[Record], object] | None = None,
        say: Callable[[str], object] = print,
    ) -> nn.Module:
        """Train from `next_epoch` to the end and return the model: the elected one if there was a vote.

        `watch` looks at the model after each epoch and adds to its record; `on_step(epoch, step, loss)` is for
        progress bars, and only calling `loss()` waits for the device; `on_epoch` gets the record before the checkpoint
        is written, at most every `checkpoint_seconds`. `say` is told where steps cannot be captured, and why. Of a
        record `seconds` are those of the epoch's training alone, `elapsed_seconds` all since this call.
        """
        self.begin(say)
        with _on_disk(checkpoints, say):
            try:
                self._all_epochs(checkpoints, checkpoint_seconds, watch, on_step, on_epoch)
            finally:
                self._let_go()
        if self.vote is None:
            return self.model
        torch.manual_seed(derive("training", self.seed, self.epochs))
        divided = getattr(self.batches, "divided", False)
        started, batches = time.monotonic(), self.batches.epoch(self.epochs)
        elected = self.vote.elect(batches if divided else (self.ranks.part(x, y)[1] for x, y in batches))
        self.election_seconds = time.monotonic() - started
        return elected

    def _all_epochs(
        self,
        checkpoints: Checkpoints | None,
        checkpoint_seconds: float,
        watch: Callable[[nn.Module], Record] | None,
        on_step: OnStep | None,
        on_epoch: Callable[[Record], object] | None,
    ) -> None:
        begun = saved_at = time.monotonic()
        while self.next_epoch < self.epochs:
            started = time.monotonic()
            epoch = self.next_epoch
            record = self._epoch(epoch, on_step)
            if self.vote is not None and self._votes(epoch):
                self.vote.cast(self.model)
            seconds = round(time.monotonic() - started, 3)  # of training; looking at the model is not
            if watch is not None:
                record |= watch(self.model)
            record |= {"seconds": seconds, "elapsed_seconds": round(time.monotonic() - begun, 3)}
            self.next_epoch += 1
            if on_epoch is not None:
                on_epoch(record)
            due = time.monotonic() - saved_at >= checkpoint_seconds or self.next_epoch == self.epochs
            if checkpoints is not None and due:
                checkpoints.save(self.next_epoch, self.state_dict())
                saved_at = time.monotonic()

    def begin(self, say: Callable[[str], object]) -> None:
        """Get ready to take steps: capture them where that is possible, or say why it is not."""
        self._let_go()
        self._say = say
        wanted = self.device.type == "cuda" if self.captured is None else self.captured
        why = obstacle(self) if wanted else None
        self.plain_because, self.is_captured = None, wanted and why is None
        if self.is_captured:
            self._steps = CapturedSteps(self)
        elif why is not None:
            self._stay_plain(why)

    def _stay_plain(self, why: str) -> None:
        if self.captured:
            raise ValueError(f"steps cannot be captured: {why}")
        self.plain_because, self.is_captured = why, False
        self._say(f"steps are not captured, which is slower: {why}")

    def _let_go(self) -> None:
        """Have the weights back from captured steps."""
        if self._steps is not None:
            self._steps.release()
            self._steps = None

    def take(self, x: Tensor, y: Tensor, epoch: int, lr: float, whole: int | None = None) -> Tensor:
        """One training step, captured where `begin` could; a captured step's loss is overwritten by the next."""
        if self._steps is not None:
            try:
                return self._steps.step(x, y, epoch, lr)
            except CaptureFailed as error:
                self._let_go()
                self._stay_plain(str(error))
        return self.step(x, y, epoch, lr, whole)

    def step(self, x: Tensor, y: Tensor, epoch: int, lr: float, whole: int | None = None) -> Tensor:
        """One training step of the plain loop; the loss stays on the device, and nothing waits for it.

        Of several processes each takes its part of the batch, and all take the step of the whole; where the batch is
        this process's part already, `whole` is how many images all have.
        """
        if whole is None:
            share, (x, y) = self.ranks.part(x, y)
        else:
            share = self.ranks.share(len(y), whole)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        loss = self.loss(x, y, epoch)
        self.optimizer.zero_grad()
        if self.ranks.count > 1:
            loss = loss * share
        loss.backward()
        loss = loss.detach()
        if self.ranks.count > 1:
            self._merge(loss, share)
        self.topology.step()
        return loss

    def loss(self, x: Tensor, y: Tensor, epoch: int | Tensor) -> Tensor:
        """The objective's, its forward pass in the run's precision."""
        with torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32):
            return self.objective(self.model, x, y, epoch=epoch)

    def _merge(self, loss: Tensor, share: float) -> None:
        """Make loss, gradients and the averages of the objective those of the whole batch."""
        parameters = (p for group in self.optimizer.param_groups for p in group["params"])
        averages = [buffer for module in self.objective.modules() for buffer in _averages(module)]
        for buffer in averages:
            buffer.mul_(share)
        self.ranks.sum([loss, *(p.grad for p in parameters if p.grad is not None), *averages])

    def _votes(self, epoch: int) -> bool:
        late = -1 if self.vote_from is None else epoch - self.vote_from
        return late >= 0 and late % self.vote_every == 0

    @property
    def masks(self) -> dict[str, Tensor]:
        """Of the trained model: the topology's, or those that a vote over different masks elected."""
        return self.topology.masks | ({} if self.vote is None else self.vote.masks)

    def _epoch(self, epoch: int, on_step: OnStep | None) -> Record:
        # Chance restarts each epoch from the seed, so there is no random state to save.
        torch.manual_seed(derive("training", self.seed, epoch))
        self.model.train()
        if self._steps is not None:
            self._steps.flat.resume()  # others have had the model since the last epoch
        steps = len(self.batches)
        losses = torch.zeros(steps, device=self.device)  # looked at when the epoch has ended: nothing waits before
        lr = 0.0
        for step, (x, y) in enumerate(self.batches.epoch(epoch)):
            lr = self.rate((epoch * steps + step) / (self.epochs * steps))
            # Batches that come divided say how large they are in all.
            whole = self.batches.sizes[step] if getattr(self.batches, "divided", False) else None
            loss = self.take(x, y, epoch, lr, whole)
            losses[step] = loss
            if on_step is not None:
                on_step(epoch, step, loss.item)
        self.ranks.check_agreement(self.topology.masks)
        bad = (~losses.isfinite()).nonzero().flatten().tolist()
        if not torch.stack([parameter.isfinite().all() for parameter in self.model.parameters()]).all():
            bad.append(steps - 1)  # the last step's update
        if bad:
            raise Diverged(
                f"the loss is not finite since epoch {epoch}, step {bad[0]} of {steps}; "
                "try a lower learning rate; the last checkpoint is kept"
            )
        return {
            "epoch": epoch,
            "loss": losses.double().mean().item(),
            "lr": lr,
            "density": self.topology.density(),
            "turnover": self.topology.turnover(),
            **self.objective.log(epoch),
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "next_epoch": self.next_epoch,
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "objective": dict(self.objective.state_dict()),
            "topology": self.topology.state_dict(),
            "vote": {} if self.vote is None else self.vote.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        was_begun = self._steps is not None
        self._let_go()
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for parameter, values in self.optimizer.state.items():
            for name, value in values.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:  # laid out as the weight is
                    values[name] = torch.empty_like(parameter).copy_(value)
        self.objective.load_state_dict(state["objective"])
        self.topology.load_state_dict(state["topology"])
        if self.vote is not None:
            self.vote.load_state_dict(state["vote"])
        self.next_epoch = state["next_epoch"]
        if was_begun:
            self.begin(self._say)


@contextmanager
def _on_disk(checkpoints: Checkpoints | None, say: Callable[[str], object]) -> Iterator[None]:
    """What is saved inside is on disk in the end, whatever the end is; what ended it is not hidden by a full disk."""
    try:
        yield
    except BaseException:
        if checkpoints is not None:
            try:
                checkpoints.wait()
            except Exception as error:
                say(f"the last checkpoint was not written: {error}")
        raise
    if checkpoints is not None:
        checkpoints.wait()


def _averages(module: nn.Module) -> list[Tensor]:
    """Buffers that are linear in what a batch shows, so that their mean over processes is that of the whole batch."""
    return [module.get_buffer(name) for name in getattr(module, "averages", ())]
