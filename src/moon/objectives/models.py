"""What objectives require of a model and of its inputs, and a model with another forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from moon.evidence import Inputs, OpenHead, classifier_name, classifier_of, logits_of, replaced_forward


def check_open(model: nn.Module, objective: nn.Module) -> None:
    """Check that the model has the unknown output. Without it, the last known class would become the unknown.

    Args:
        model: The model to train.
        objective: The objective that needs the output.

    Raises:
        ValueError: If no module of the model is an `OpenHead`.

    Example:
        >>> import torch
        >>> from moon import Moon, open_head
        >>> from moon.objectives.models import check_open
        >>> check_open(open_head(torch.nn.Linear(4, 3)), Moon(1.0))
    """
    if _open_head(model) is None:
        raise ValueError(
            f"{type(objective).__name__} needs K+1 outputs, but {type(model).__name__} has no unknown output; "
            "wrap the model first: model = open_head(model)"
        )


def open_logits(model: nn.Module, x: Inputs, objective: nn.Module) -> Tensor:
    """Run a model whose logits must have the unknown output, (N, K+1); otherwise raise a ValueError."""
    check_open(model, objective)
    logits, head = logits_of(model, x), _open_head(model)
    if head is not None and logits.shape[-1] != head.out_features:
        raise ValueError(
            f"{type(model).__name__} has {logits.shape[-1]} outputs, but its open head has {head.out_features}, so it "
            "is not the classifier; name the classifier of the original model: open_head(model, 'fc')"
        )
    return logits


def _open_head(model: nn.Module) -> OpenHead | None:
    """The `OpenHead` of a model; the last children are searched first, which is where heads are."""
    if isinstance(model, OpenHead):
        return model
    return next(filter(None, map(_open_head, reversed(list(model.children())))), None)


def check_tensor(x: Inputs, objective: nn.Module) -> Tensor:
    """Return the inputs if they are one tensor, which `objective` needs; otherwise raise a ValueError."""
    if not isinstance(x, Tensor):
        raise ValueError(
            f"{type(objective).__name__} changes its inputs and needs them as one tensor, not as a "
            f"{type(x).__name__}; give it the images alone, such as batch['pixel_values']"
        )
    return x


@contextmanager
def changed_features(model: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Context in which the classifier of a model gets changed features; `look` still records those before the change.

    Raises a ValueError if the classifier is not called inside the context, so that nothing was changed.
    """
    name = classifier_name(model)
    head = model.get_submodule(name)
    forward, calls = head.forward, []

    def forward_changed(input: Tensor) -> Tensor:
        calls.append(input.shape)
        return forward(change(input))

    with replaced_forward(head, forward_changed):
        yield
    if not calls:
        raise ValueError(
            f"the classifier '{name}' of {type(model).__name__} was never called as a layer, so its features cannot be "
            "changed; call it in the model's forward pass"
        )


class View(nn.Module):
    """A model with another forward pass: the same modules and weights, used for one batch.

    Objectives that change the forward pass of another objective, such as `LogitNorm`, pass it a view of the model. A
    view is created for each batch, so the change cannot outlive it.

    Args:
        model: The model.
        forward: The forward pass to use instead of the model's, a function from a batch to logits.

    Example:
        >>> import torch
        >>> from moon.objectives.models import View
        >>> model = torch.nn.Identity()
        >>> View(model, lambda x: 2 * model(x))(torch.ones(2))
        tensor([2., 2.])
    """

    def __init__(self, model: nn.Module, forward: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.model = model
        self.change = forward

    def forward(self, x: Tensor | None = None, **inputs: Any) -> Tensor:
        return self.change(inputs if x is None else x)

    def get_classifier(self) -> nn.Module:
        """The classifier of the model; see `moon.evidence.classifier_name`."""
        return classifier_of(self.model)
