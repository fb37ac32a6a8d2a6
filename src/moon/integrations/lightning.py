"""Lightning: sparse training and the vote as a callback, with any `LightningModule`.

Needs the extra `lightning`: `pip install 'moon-sparse[lightning]'`. Import it as `lightning`, not `pytorch_lightning`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from math import ceil, inf
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities import rank_zero_info
from torch import nn

from moon.integrations.common import SparseTraining
from moon.sparse import DropSchedule, Topology
from moon.sparse.pattern import UNSTRUCTURED, Pattern
from moon.training.vote import WeightVote

__all__ = ["Sparse"]


class Sparse(pl.Callback):
    """A callback that keeps a network sparse during `Trainer.fit`, and averages the weights of the last epochs.

    The module stays as it is: automatic optimization, one optimizer. For MOON's loss it owns an objective, an ordinary
    `nn.Module`, and its `training_step` returns `self.objective(self.net, x, y, epoch=self.current_epoch)`.

    - Masks hold after every optimizer step. Accumulated batches count as one step, and a step that 16-bit precision
      skips does not count. Gradients are clipped by the norm of the sparse network, except in steps that change masks.
    - Checkpoints of the trainer contain masks and votes. `trainer.fit(..., ckpt_path=...)` continues exactly.
    - With DDP, all processes have the same masks, and MOON's moving average is that of the whole batch.
    - At the end of `fit` the average of the votes replaces the weights of the module, and BatchNorm statistics are
      estimated again on the training data. Checkpoints that were written before contain the weights before the vote;
      `trainer.save_checkpoint(...)` after `fit` saves the elected ones.
    - What became sparse is printed at the start. Density, zeros over all matrices, turnover and the weight w of MOON
      are logged after each epoch.

    Args:
        topology: The name of a topology, as for `moon train`, or its class.
        sparsity: The fraction of weights that are zero, in [0, 1). None: 0.9, or 0 if the topology is dense.
        network: The name of the submodule that is the network, such as "net". None: the whole module, which must
            implement `forward` if there is a vote.
        schedule: When the masks change, in optimizer steps. None: every `delta_t` steps in the first part of the run.
        t_end_share: The fraction of the run in which the masks change.
        delta_t: The number of optimizer steps between two changes. None: 100, or fewer in a short run.
        fraction: The initial fraction of non-zero weights that is replaced.
        allocation: How the sparsity is divided among layers: "erk" or "uniform".
        dense: Names of weights to leave dense. Weights of objectives always are.
        pattern: Where in a layer the non-zero weights may be: anywhere, or `NOfM(2, 4)`.
        seed: The seed of the masks.
        first_mask: Which weights of a layer the first mask keeps: "random" ones, or those of largest "magnitude", for
            a network that was trained before.
        vote_share: The fraction of epochs, at the end of the run, that vote; 0 for none. None: that of the topology or
            of the objective, 0.2 for MOON and 0 for cross-entropy.

    Example:
        See `examples/lightning_fit.py`.
    """

    def __init__(
        self,
        topology: str | type[Topology] = "rigl",
        sparsity: float | None = None,
        *,
        network: str | None = None,
        schedule: DropSchedule | None = None,
        t_end_share: float = 0.7,
        delta_t: int | None = None,
        fraction: float = 0.3,
        allocation: Any = "erk",
        dense: Collection[str] = (),
        pattern: Pattern = UNSTRUCTURED,
        seed: int = 0,
        first_mask: Literal["random", "magnitude"] = "random",
        vote_share: float | None = None,
    ) -> None:
        self.network = network
        self._training = SparseTraining(
            *(topology, sparsity), schedule=schedule, t_end_share=t_end_share, delta_t=delta_t, fraction=fraction,
            allocation=allocation, dense=dense, pattern=pattern, seed=seed, first_mask=first_mask,
            vote_share=vote_share,
        )  # fmt: skip

    @property
    def topology(self) -> Topology | None:
        """The topology; None before training starts."""
        return self._training.topology

    @property
    def vote(self) -> WeightVote | None:
        """The vote; None before training starts, or if there is none."""
        return self._training.vote

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        name = type(pl_module).__name__
        if not pl_module.automatic_optimization:
            raise ValueError(
                f"{name} uses manual optimization, but Sparse needs automatic optimization with one optimizer; with "
                "several, or steps of your own, call topology.step() in training_step, without this callback"
            )
        if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
            raise ValueError(
                f"Sparse does not support {type(trainer.strategy).__name__}: masks need whole weights in every "
                "process; use strategy='ddp'"
            )
        self._network(pl_module)

    def _network(self, module: pl.LightningModule) -> nn.Module:
        """The network inside the module."""
        if self.network is None:
            return module
        try:
            return module.get_submodule(self.network)
        except AttributeError:
            names = ", ".join(name for name, _ in module.named_children())
            raise ValueError(
                f"{type(module).__name__} has no submodule '{self.network}'; choose one of: {names}"
            ) from None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        model = self._network(pl_module)
        if self._training.model is model and not self._training.has_state:
            raise ValueError(
                "this callback was already used for a training of this network, and would draw new masks over its "
                "weights; resume it (ckpt_path=...), or create a new callback"
            )
        steps, per_epoch = trainer.estimated_stepping_batches, trainer.num_training_batches
        if inf in (steps, per_epoch):
            raise ValueError(
                "Sparse needs to know the length of the run; give Trainer(max_epochs=...) or max_steps, and "
                "limit_train_batches if the training data has no length"
            )
        if trainer.global_step > 0 and not self._training.has_state:
            raise ValueError(
                f"the run would continue after {trainer.global_step} steps, but without masks: the checkpoint was "
                "written without Sparse; start a new run from its weights (load_from_checkpoint)"
            )
        # The limit of steps, if there is one, may end the run before max_epochs.
        epochs = ceil(steps / ceil(per_epoch / trainer.accumulate_grad_batches))
        if trainer.max_epochs is not None and trainer.max_epochs > 0:
            epochs = min(epochs, trainer.max_epochs)
        topology = self._training.begin(model, trainer.optimizers[0], steps=int(steps), epochs=epochs, within=pl_module)
        rank_zero_info(topology.summary())
        if self._training.vote is not None:
            self._check_election(trainer, model)

    def _check_election(self, trainer: pl.Trainer, model: nn.Module) -> None:
        """Check that BatchNorm statistics can be estimated after the last epoch."""
        if not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
            return
        if isinstance(model, pl.LightningModule) and type(model).forward is pl.LightningModule.forward:
            raise ValueError(
                f"{type(model).__name__} has no forward, which the vote needs to estimate BatchNorm statistics; "
                "implement it, or name the network: Sparse(network='net')"
            )
        if isinstance(trainer.train_dataloader, dict | list | tuple):
            raise ValueError(
                "the vote estimates BatchNorm statistics on the training data, but there are several loaders; use "
                "one, or Sparse(vote_share=0)"
            )

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.world_size > 1:
            self._training.average(pl_module)
        if trainer.is_last_batch:  # before validation, which may write a checkpoint
            self._training.end_epoch(trainer.current_epoch)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._training.end_epoch(trainer.current_epoch)  # where a limit of steps ended the epoch
        pl_module.log_dict(self._training.record(trainer.current_epoch))

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._training.elect(_batches(trainer))
        self._training.end()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._training.end()

    def state_dict(self) -> dict[str, Any]:
        return self._training.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._training.load_state_dict(state_dict)


def _batches(trainer: pl.Trainer) -> Iterator[Any]:
    """The training batches of this process, as `training_step` gets them."""
    for batch in islice(iter(trainer.train_dataloader or ()), int(trainer.num_training_batches)):
        yield trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(batch))
