"""Compute in low precision, except for the classifier."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from weakref import WeakSet

import torch
from torch import Tensor, nn

from moon.evidence.head import classifier_name, classifier_of, linear_layers

_log = logging.getLogger(__name__)
_without_classifier: WeakSet[nn.Module] = WeakSet()  # models for which this was logged


@contextmanager
def float32_classifier(model: nn.Module) -> Iterator[None]:
    """Context in which autocast does not apply to the model's classifier.

    In bfloat16, logits that differ by less than 0.4% are equal, and the arg-max then depends on the order of classes.
    """
    head = classifier_of(model)
    forward = head.forward

    def in_float32(input: Tensor) -> Tensor:
        with torch.autocast(input.device.type, enabled=False):
            return forward(input.to(head.weight.dtype))

    with replaced_forward(head, in_float32):
        yield


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Tensor]) -> Iterator[None]:
    """Context in which a module has another forward pass. It may already have one that was set in this way."""
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


@contextmanager
def autocast(model: nn.Module, device: torch.device, precision: torch.dtype) -> Iterator[None]:
    """Context in which the model computes in low precision, except for its classifier. torch.float32 means no autocast.

    A model whose classifier is not clear, see `classifier_name`, is autocast as a whole; this is logged.
    """
    is_low = precision != torch.float32
    classifier = float32_classifier(model) if is_low and _has_classifier(model) else nullcontext()
    with torch.autocast(device.type, precision, enabled=is_low), classifier:
        yield


def _has_classifier(model: nn.Module) -> bool:
    try:
        classifier_name(model)
    except ValueError as error:
        if linear_layers(model) and model not in _without_classifier:
            _without_classifier.add(model)
            _log.warning("%s computes all of its layers in low precision: %s", type(model).__name__, error)
        return False
    return True
