"""Find the classifier of a model, and replace it by one with K+1 outputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn


class OpenHead(nn.Linear):
    """The K+1-way classifier of Section 3.1: K known outputs, and the unknown output as the last one.

    Args:
        in_features: D, the number of features.
        num_known: K, the number of known classes.
        bias: Whether to learn a bias.
        device: The device of the parameters.
        dtype: The type of the parameters.

    Example:
        >>> import torch
        >>> from moon import OpenHead
        >>> head = OpenHead(in_features=8, num_known=10)
        >>> head(torch.zeros(4, 8)).shape
        torch.Size([4, 11])
    """

    def __init__(
        self,
        in_features: int,
        num_known: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, num_known + 1, bias=bias, device=device, dtype=dtype)
        self.num_known = num_known


def classifier_name(model: nn.Module) -> str:
    """Return the name of the model's classifier.

    It is the model's `OpenHead`, else the layer that `model.get_classifier()` returns (timm), else the last `Linear`.

    Args:
        model: Any PyTorch model that ends in a `Linear` layer.

    Returns:
        The name to give to `model.get_submodule`. It is empty if the model itself is the classifier.

    Raises:
        ValueError: If the model has no `Linear` classifier.

    Example:
        >>> from moon import lenet
        >>> from moon.evidence import classifier_name
        >>> classifier_name(lenet())
        'fc'
    """
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    heads = [name for name, module in linears.items() if isinstance(module, OpenHead)]
    if heads:
        return heads[0]
    get_classifier = getattr(model, "get_classifier", None)  # a method of timm models
    if callable(get_classifier):
        classifier = get_classifier()
        linears = {name: module for name, module in linears.items() if module is classifier}
    if not linears:
        raise ValueError(f"{type(model).__name__} has no Linear classifier; its last layer must be a torch.nn.Linear")
    return list(linears)[-1]


@contextmanager
def float32_classifier(model: nn.Module) -> Iterator[None]:
    """Context in which autocast does not apply to the model's classifier.

    In bfloat16, logits that differ by less than 0.4% are equal, and the arg-max then depends on the order of classes.

    Args:
        model: The model; it is changed inside the context only.

    Example:
        >>> import torch
        >>> from moon.evidence import float32_classifier
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
        >>> with torch.autocast("cpu", torch.bfloat16), float32_classifier(model):
        ...     print(model(torch.ones(1, 4)).dtype)
        torch.float32
    """
    head = model.get_submodule(classifier_name(model))
    assert isinstance(head, nn.Linear)
    replaced = vars(head).get("forward")
    forward = head.forward

    def in_float32(input: Tensor) -> Tensor:
        with torch.autocast(input.device.type, enabled=False):
            return forward(input.to(head.weight.dtype))

    head.forward = in_float32
    try:
        yield
    finally:
        del head.forward
        if replaced is not None:
            head.forward = replaced


@contextmanager
def autocast(model: nn.Module, device: torch.device, precision: torch.dtype) -> Iterator[None]:
    """Context in which the model computes in low precision, except for its classifier.

    A model without a `Linear` classifier is autocast as a whole.

    Args:
        model: The model.
        device: Its device.
        precision: The dtype; with torch.float32 autocast is off.

    Example:
        >>> import torch
        >>> from moon.evidence import autocast
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
        >>> with autocast(model, torch.device("cpu"), torch.bfloat16):
        ...     print(model[0](torch.ones(1, 4)).dtype, model(torch.ones(1, 4)).dtype)
        torch.bfloat16 torch.float32
    """
    is_low = precision != torch.float32
    has_classifier = any(isinstance(module, nn.Linear) for module in model.modules())
    classifier = float32_classifier(model) if is_low and has_classifier else nullcontext()
    with torch.autocast(device.type, precision, enabled=is_low), classifier:
        yield


def open_head(model: nn.Module) -> nn.Module:
    """Replace the model's classifier by an `OpenHead` with one more output.

    The rows of the known classes keep their weights; the new row has PyTorch's default initialisation.

    Args:
        model: A model whose last layer is a `torch.nn.Linear` with K outputs. It is changed in place.

    Returns:
        The model, now with K+1 outputs. If the model is itself a `Linear`, the new `OpenHead`.

    Raises:
        ValueError: If the model has no `Linear` classifier or already has an open head.

    Example:
        >>> from moon import open_head, resnet18
        >>> model = open_head(resnet18(10))
        >>> model.fc
        OpenHead(in_features=512, out_features=11, bias=True)
    """
    name = classifier_name(model)
    old = model.get_submodule(name)
    assert isinstance(old, nn.Linear)
    if isinstance(old, OpenHead):
        raise ValueError(f"{type(model).__name__} already has an open head ('{name}'); call open_head only once")
    head = OpenHead(old.in_features, old.out_features, old.bias is not None, old.weight.device, old.weight.dtype)
    with torch.no_grad():
        head.weight[:-1] = old.weight
        if old.bias is not None:
            head.bias[:-1] = old.bias
    head.train(old.training)
    if not name:  # the model is the classifier
        return head
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, head)
    return model
