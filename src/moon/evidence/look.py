"""Run a model: `look` on one batch, `read` on a whole data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from moon.evidence.evidence import Evidence
from moon.evidence.head import OpenHead, classifier_name


def look(model: nn.Module, x: Tensor, y: Tensor | None = None) -> Evidence:
    """Run the model on one batch. The evidence is differentiable.

    A temporary hook on the classifier records the features, so any model that ends in a `Linear` layer works. The
    model's mode (training or evaluation) is not changed.

    Args:
        model: A model whose classifier is a `Linear` or an `OpenHead`.
        x: A batch of inputs, on the model's device.
        y: Their labels, if known.

    Returns:
        The evidence of the batch.

    Raises:
        ValueError: If the model does not call its classifier exactly once, with features of shape (N, D).

    Example:
        >>> import torch
        >>> from moon import lenet, look, open_head
        >>> evidence = look(open_head(lenet()), torch.zeros(2, 1, 28, 28))
        >>> evidence.logits.shape, evidence.num_known
        (torch.Size([2, 11]), 10)
    """
    head = model.get_submodule(classifier_name(model))
    assert isinstance(head, nn.Linear)
    features: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    try:
        logits = model(x)
    finally:
        handle.remove()
    if len(features) != 1 or features[0].ndim != 2:
        found = f"with an input of {features[0].ndim} dimensions" if features else "never"
        raise ValueError(
            f"the classifier of {type(model).__name__} was called {found if len(features) < 2 else 'repeatedly'}; "
            "it must be called once per forward pass, with features of shape (N, D)"
        )
    num_known = head.num_known if isinstance(head, OpenHead) else head.out_features
    bias = head.weight.new_zeros(head.out_features) if head.bias is None else head.bias
    return Evidence(logits, features[0], num_known, y, (head.weight.detach(), bias.detach()))


def read(
    model: nn.Module,
    loader: Iterable,
    perturb: Callable[[nn.Module, Tensor], Tensor] | None = None,
) -> Evidence:
    """Run the model on a data set, in evaluation mode and without gradients.

    The mode of every module is restored afterwards.

    Args:
        model: A model whose classifier is a `Linear` or an `OpenHead`.
        loader: Yields batches: (inputs, labels), or inputs alone. They are moved to the model's device.
        perturb: A function that changes the inputs before the forward pass, such as `Odin().perturb`.

    Returns:
        The evidence of all inputs, in order, on the model's device.

    Raises:
        ValueError: If the loader yields no batch.

    Example:
        >>> import torch
        >>> from moon import lenet, read
        >>> loader = [(torch.zeros(4, 1, 28, 28), torch.arange(4)), (torch.zeros(2, 1, 28, 28), torch.arange(2))]
        >>> evidence = read(lenet(), loader)
        >>> len(evidence), evidence.labels
        (6, tensor([0, 1, 2, 3, 0, 1]))
    """
    device = next(model.parameters()).device
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        parts = []
        for batch in loader:
            x, y, *_ = (*batch, None) if isinstance(batch, (tuple, list)) else (batch, None)
            x = x.to(device, non_blocking=True)
            y = None if y is None else y.to(device, non_blocking=True)
            if perturb is not None:
                x = perturb(model, x)
            with torch.no_grad():
                parts.append(look(model, x, y))
    finally:
        for module, training in modes:
            module.training = training
    return Evidence.concatenate(parts)
