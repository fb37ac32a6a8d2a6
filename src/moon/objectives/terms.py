"""The sum of the terms of a loss, with a check of what an objective returned."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import add

import torch
from torch import Tensor, nn

Terms = dict[str, Tensor]


def total(terms: Terms, model: nn.Module, name: str) -> Tensor:
    """Add the terms of a loss; `name` is that of the objective, for errors.

    Raises a ValueError if the terms are not named scalars, at least one of them a tensor, or if the loss does not
    depend on the model's weights. Only shapes and types are checked, so nothing waits for the device.
    """
    if not isinstance(terms, Mapping) or not terms:
        found = "an empty dict" if isinstance(terms, Mapping) else f"a {type(terms).__name__}"
        raise ValueError(f'{name}.terms must return a dict of scalars, such as {{"cross_entropy": loss}}, not {found}')
    has_tensor = any(isinstance(term, Tensor) for term in terms.values())
    for key, term in terms.items():
        if has_tensor and isinstance(term, int | float):  # such as 0.0 for a term that is switched off
            continue
        if not isinstance(term, Tensor):
            raise ValueError(f"{name}.terms: '{key}' must be a scalar tensor, not a {type(term).__name__}")
        if term.ndim:
            raise ValueError(f"{name}.terms: '{key}' must be a scalar, not of shape {tuple(term.shape)}; take its mean")
    loss = reduce(add, terms.values())
    is_trained = torch.is_grad_enabled() and any(weight.requires_grad for weight in model.parameters())
    if is_trained and not loss.requires_grad:
        raise ValueError(f"{name}: the loss does not depend on the model's weights; is something detached in terms?")
    return loss
