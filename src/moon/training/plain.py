"""Ordinary PyTorch training steps: forward, backward, update."""

from __future__ import annotations

from torch import Tensor, nn

from moon.training.setup import TrainingSetup


class PlainSteps:
    """Training steps without CUDA graphs, for one process or several."""

    def __init__(self, setup: TrainingSetup) -> None:
        self.setup = setup

    def step(self, x: Tensor, y: Tensor, epoch: int, lr: float, batch_size: int | None = None) -> Tensor:
        """Take one training step, see `Training.step`. With several processes, each computes its part of the batch."""
        setup, ranks = self.setup, self.setup.ranks
        if batch_size is None:
            share, (x, y) = ranks.part(x, y)
        else:
            share = ranks.share(len(y), batch_size)
        setup.set_lr(lr)
        loss = setup.loss(x, y, epoch)
        setup.optimizer.zero_grad()
        if ranks.count > 1:
            loss = loss * share
        loss.backward()
        loss = loss.detach()
        if ranks.count > 1:
            self._merge(loss, share)
        setup.topology.step()
        return loss

    def _merge(self, loss: Tensor, share: float) -> None:
        """Replace the loss, the gradients and the moving averages of the objective by those of the whole batch."""
        setup = self.setup
        parameters = (p for group in setup.optimizer.param_groups for p in group["params"])
        averages = moving_averages(setup.objective)
        for buffer in averages:
            buffer.mul_(share)
        setup.ranks.sum([loss, *(p.grad for p in parameters if p.grad is not None), *averages])

    def refresh(self) -> None:
        """Does nothing: there is no state outside of the setup."""

    def release(self) -> None:
        """Does nothing: there is no state outside of the setup."""


def moving_averages(objective: nn.Module) -> list[Tensor]:
    """Buffers that depend linearly on the batch, so their mean over processes is the value of the whole batch."""
    return [module.get_buffer(name) for module in objective.modules() for name in getattr(module, "averages", ())]
