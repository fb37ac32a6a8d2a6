"""Hooks with which `optimizer.step()` does what `topology.step()` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer


class StepHooks:
    """Hooks that run code in every step of an optimizer: when the gradients are ready, and after the update.

    They work wherever `optimizer.step()` is called: with a closure, which computes the gradients first, and from a
    `GradScaler`. A step that the scaler skips because gradients are not finite, or one without any gradient, does not
    count: neither function is called. If `before` returns True, the weights are not updated in this step.

    Raises a ValueError if the optimizer has such hooks already, or computes the gradients several times per step.
    """

    def __init__(self, optimizer: Optimizer, before: Callable[[], bool], after: Callable[[], object]) -> None:
        if isinstance(optimizer, LBFGS):
            raise ValueError("LBFGS computes the gradients several times per step; use another optimizer")
        present = optimizer._optimizer_step_pre_hooks.values()
        if any(isinstance(getattr(hook, "__self__", None), StepHooks) for hook in present):
            raise ValueError("another topology is attached to this optimizer; call its detach() first")
        self.optimizer, self._before, self._after = optimizer, before, after
        self._counts = False
        self._withheld: list[tuple[nn.Parameter, Tensor]] = []
        self._handles = [optimizer.register_step_pre_hook(self._enter), optimizer.register_step_post_hook(self._leave)]

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def _enter(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        self._give_back()  # where the step before was interrupted
        self._counts = False
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
        if closure is None:
            self._begin()
            return None

        def evaluated() -> Any:
            loss = closure()
            self._begin()
            return loss

        return args[:1], {**kwargs, "closure": evaluated}

    @torch.no_grad()
    def _begin(self) -> None:
        """The gradients are ready."""
        parameters = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        gradients = [(weight, weight.grad) for weight in parameters if weight.grad is not None]
        if not gradients or self._is_skipped():
            return
        self._unscale([gradient for _, gradient in gradients])
        self._counts = True
        if self._before():
            # An optimizer skips weights without a gradient: neither the weights nor its own state change.
            self._withheld = gradients
            for weight, _ in gradients:
                weight.grad = None

    def _leave(self, *_: Any) -> None:
        self._give_back()
        if self._counts:
            self._after()

    def _give_back(self) -> None:
        """Give the weights their gradients back: zeroing them is the task of the loop."""
        for weight, gradient in self._withheld:
            weight.grad = gradient
        self._withheld = []

    def _is_skipped(self) -> bool:
        """Whether the optimizer itself will skip the step; a `GradScaler` leaves this to fused optimizers."""
        found = getattr(self.optimizer, "found_inf", None)
        return found is not None and bool(found)

    def _unscale(self, gradients: list[Tensor]) -> None:
        """Unscale gradients that a `GradScaler` leaves to a fused optimizer to unscale."""
        scale = getattr(self.optimizer, "grad_scale", None)
        if scale is not None:
            for gradient in gradients:
                gradient.div_(scale.to(gradient.device))
            self.optimizer.grad_scale = None  # pyright: ignore[reportAttributeAccessIssue]
