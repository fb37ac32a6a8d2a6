"""Hugging Face: sparse training, objectives and the vote in a `Trainer`, and saved classifiers that say "unknown".

Needs the extra `hf`: `pip install 'moon-sparse[hf]'`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

from moon.evidence.outputs import only_tensor
from moon.files import write_atomic
from moon.integrations.common import SparseTraining
from moon.integrations.huggingface_answers import Answers, Examples
from moon.integrations.huggingface_classifier import OpenClassifier
from moon.integrations.huggingface_files import check_weights, digests, load_renamed
from moon.integrations.objective import make_objective
from moon.objectives import AutoWeight, Objective
from moon.sparse import Topology

__all__ = ["Answers", "Examples", "MoonTrainer", "OpenClassifier", "SparseCallback"]

_STATE = "moon.pt"  # the file of a checkpoint


class SparseCallback(TrainerCallback):
    """Sparse training and the vote of the last epochs, for any `transformers.Trainer`.

    From the first step on, each step of the optimizer is a step of the topology. It works with gradient accumulation,
    clipping, bf16 and fp16, and with several processes (`torchrun`), but not with FSDP or DeepSpeed. Checkpoints of the
    trainer contain masks and votes in `moon.pt`: a resumed run ends with the same weights, bit for bit.

    When the training ends, the weights of the model are replaced by the average of the votes, and its BatchNorm
    statistics are estimated again on the training data.

    Args:
        topology: The name of a topology, such as "rigl", "set", "gmp" or "dense", or its class.
        sparsity: The fraction of weights that are zero, in [0, 1). None: 0.9, or 0 if the topology is dense.
        **settings: Further arguments of `moon.integrations.common.SparseTraining`: `schedule`, `t_end_share`,
            `delta_t`, `fraction`, `allocation`, `dense`, `pattern`, `seed`, `first_mask` ("magnitude" for a model with
            pretrained weights) and `vote_share`, the share of epochs that vote (None: that of the topology or of the
            objective of a `MoonTrainer`, otherwise 0).

    Attributes:
        objective: The objective of a `MoonTrainer`, whose state belongs to a checkpoint.
        checkpoint: The folder from which a `MoonTrainer` resumes.

    Example:
        >>> from moon.integrations.huggingface import SparseCallback
        >>> callback = SparseCallback("rigl", sparsity=0.9, delta_t=50)  # Trainer(..., callbacks=[callback])
    """

    def __init__(self, topology: str | type[Topology] = "rigl", sparsity: float | None = None, **settings: Any) -> None:
        self.training = SparseTraining(topology, sparsity, **settings)
        self.objective: Objective | None = None
        self.checkpoint: str | None = None
        self._own_share = self.training.vote_share

    @property
    def topology(self) -> Topology | None:
        """The topology; None before the training."""
        return self.training.topology

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Create the topology, or restore it from the checkpoint that the trainer resumes."""
        training, model = self.training, parts["model"]
        if args.fsdp or args.deepspeed or args.n_gpu > 1:
            raise ValueError(
                "a sparse topology needs whole weights: FSDP, DeepSpeed and DataParallel (several GPUs in one process) "
                "are not supported; start one process per GPU with torchrun, or set CUDA_VISIBLE_DEVICES=0"
            )
        optimizer = getattr(parts["optimizer"], "optimizer", parts["optimizer"])  # accelerate wraps it
        if training.topology is not None and not state.global_step:
            raise ValueError(
                "this callback was already used for a training; resume it from a checkpoint, or create a new callback "
                "and a new trainer"
            )
        training.end()
        if state.global_step:
            # A plain trainer does not tell its callbacks the folder; the digests show whether this is the one.
            usual = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            self._load(Path(self.checkpoint or args.resume_from_checkpoint or usual), model)
        epochs = state.num_train_epochs if _has_length(parts["train_dataloader"]) else 1
        if self._own_share is None and training.kind.vote_share is None and self.objective is not None:
            training.vote_share = self.objective.vote_share
        if training.vote_share and args.load_best_model_at_end:
            raise ValueError(
                "the vote averages the last epochs, but load_best_model_at_end takes one; choose one of them"
            )
        topology = training.begin(model, optimizer, steps=state.max_steps, epochs=epochs)
        if topology.masks and state.is_world_process_zero:
            print(topology.summary())  # as the callbacks of transformers do

    def _load(self, checkpoint: Path, model: nn.Module) -> None:
        """Restore the state of a checkpoint."""
        path = checkpoint / _STATE
        if not path.is_file():
            raise ValueError(
                f"{path}: no such file, so the masks of this checkpoint are not known: it was saved without this "
                "callback, in another folder, or it is incomplete; resume from another one, or start a new training"
            )
        saved = torch.load(path, map_location="cpu", weights_only=True)
        load_renamed(model, checkpoint, saved.get("weights", {}))
        check_weights(model, saved.get("weights", {}), checkpoint)
        self.training.load_state_dict(saved["training"])
        if self.objective is not None:
            self.objective.load_state_dict(saved["objective"])

    def on_save(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Add masks, votes, the state of the objective and digests of the weights to a checkpoint."""
        if not args.should_save or args.save_only_model:
            return
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / _STATE
        objective = {} if self.objective is None else self.objective.state_dict()
        saved = {"training": self.training.state_dict(), "objective": dict(objective)}
        saved["weights"] = digests(parts["model"])
        write_atomic(path, lambda partial: torch.save(saved, partial))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Vote after the last step of an epoch."""
        # Not on_epoch_end: a checkpoint after the last step of an epoch is written before that.
        if float(state.epoch).is_integer() or state.global_step == state.max_steps:
            self.training.end_epoch(ceil(state.epoch) - 1)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """Add the sparsity, of the masked layers and of all matrices, to what the trainer logs in training."""
        if logs is not None and "loss" in logs and self.topology is not None and self.topology.masks:
            found = {"sparsity": 1 - self.topology.density(), "zeros": self.topology.zeros()}
            rounded = {name: round(value, 6) for name, value in found.items()}
            logs |= rounded
            state.log_history[-1] |= rounded

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Replace the weights by the average of the votes."""
        self.training.elect(parts["train_dataloader"])
        self.training.end()


class MoonTrainer(Trainer):
    """A `transformers.Trainer` that minimises an objective of `moon`, such as MOON's loss.

    Everything else is as in `Trainer`. Give it a `SparseCallback` for sparse training; without one the network is
    dense. It can be combined with other trainers: `class Mine(MoonTrainer, Other)`. The loss of an evaluation is that
    of the model itself.

    With gradient accumulation, the loss is the mean of the losses of its batches.

    Args:
        *args: Arguments of `Trainer`.
        objective: The name of an objective, such as "moon", or an objective, such as `Moon(AutoWeight(epochs=10))`.
            Objectives with an unknown output, such as MOON, need a model with `open_head`.
        objective_options: Options of an objective that is given by its name, such as `{"quiet_epochs": 1}`.
        **settings: Keyword arguments of `Trainer`.

    Attributes:
        objective: The objective. One that is given by its name is built when the training begins.
        sparse: The `SparseCallback`; a dense one, if none was given.

    Raises:
        ValueError: If settings of the `Trainer` contradict the objective, such as label smoothing.

    Example:
        >>> from moon.integrations.huggingface import MoonTrainer
        >>> issubclass(MoonTrainer, MoonTrainer.__mro__[1])  # see examples/hf_vit.py
        True
    """

    def __init__(
        self,
        *args: Any,
        objective: str | Objective = "moon",
        objective_options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self._given, self._options = objective, dict(objective_options or {})
        self.objective: Objective | None = None
        if self.compute_loss_func is not None or self.label_smoother is not None:
            raise ValueError(
                "the objective replaces the loss, so compute_loss_func and label_smoothing_factor have no effect: "
                "leave them out (label smoothing is an objective: objective='label-smoothing')"
            )
        found = [each for each in self.callback_handler.callbacks if isinstance(each, SparseCallback)]
        self.sparse = found[0] if found else SparseCallback("dense", 0.0)
        if not found:
            self.add_callback(self.sparse)
        # The loss of an objective is the mean over a batch, so the trainer has to divide it by the number of batches of
        # a step. It does so for models that do not count the items of all these batches themselves.
        self.model_accepts_loss_kwargs = False

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, *args: Any, **settings: Any
    ) -> Any:
        """The loss of a batch as in `Trainer`: the objective in training, otherwise the loss of the model itself.

        In training, `return_outputs` and a batch without "labels" are ValueErrors.
        """
        if self.objective is None or not model.training:
            return super().compute_loss(model, inputs, return_outputs, *args, **settings)
        if return_outputs:
            raise ValueError(
                "an objective runs the model itself and returns the loss only; call the model for its outputs"
            )
        if not isinstance(inputs.get("labels"), Tensor):
            raise ValueError(
                f"a batch has no 'labels', only {sorted(inputs)}; {type(self.objective).__name__} needs them"
            )
        x = {name: value for name, value in inputs.items() if name != "labels"}
        network: Any = self.model
        tensor = only_tensor(network, x)  # some objectives compute with images, such as Mixup
        loss = self.objective(
            model, x if tensor is None else tensor, inputs["labels"], epoch=int(self.state.epoch or 0)
        )
        self.sparse.training.average(self.objective)
        return loss

    def _inner_training_loop(self, *args: Any, resume_from_checkpoint: str | None = None, **settings: Any) -> Any:
        self.sparse.checkpoint = resume_from_checkpoint
        return super()._inner_training_loop(*args, resume_from_checkpoint=resume_from_checkpoint, **settings)

    def create_optimizer(self, *args: Any, **settings: Any) -> Any:
        """Build the objective, and the optimizer as `Trainer` does; it also updates parameters of the objective."""
        if self.objective is None:
            self.objective = self.sparse.objective = self._build().to(self.args.device)
        optimizer: Any = super().create_optimizer(*args, **settings)
        updated = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
        own = [weight for weight in self.objective.parameters() if id(weight) not in updated]
        if own and self.args.world_size > 1:
            name = type(self.objective).__name__
            raise ValueError(f"{name} has parameters, which several processes would train differently; use one process")
        if own:
            optimizer.add_param_group({"params": own})
            self.add_callback(_ClearGradients(self.objective))
        return optimizer

    def _build(self) -> Objective:
        """The objective, for the number of epochs of this training."""
        epochs = ceil(self.args.num_train_epochs)
        if self.args.max_steps > 0:
            loader = self.get_train_dataloader()
            batches = (
                len(loader) if _has_length(loader) else self.args.max_steps * self.args.gradient_accumulation_steps
            )
            epochs = ceil(self.args.max_steps / ceil(batches / self.args.gradient_accumulation_steps))
        network: Any = self.model
        objective = make_objective(self._given, network, epochs=epochs, **self._options)
        for part in objective.modules():
            if isinstance(part, AutoWeight) and part.epochs != epochs:
                raise ValueError(
                    f"AutoWeight(epochs={part.epochs}), but the training has {epochs}, so its weight would not rise as "
                    f"planned; give AutoWeight(epochs={epochs}), or objective='moon'"
                )
        return objective

    def log(self, logs: dict[str, float], *args: Any, **settings: Any) -> None:
        """Log as `Trainer` does, in training also the values of the objective, such as the weight w of MOON."""
        if "loss" in logs and self.objective is not None:
            values = self.objective.log(max(ceil(self.state.epoch or 0) - 1, 0))
            logs = logs | {name: value + 0.0 for name, value in values.items()}  # no minus zero
        super().log(logs, *args, **settings)


class _ClearGradients(TrainerCallback):
    """Clears the gradients of an objective; the trainer clears those of the model only."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.objective.zero_grad()


def _has_length(loader: Any) -> bool:
    try:
        return len(loader) > 0
    except TypeError:
        return False
