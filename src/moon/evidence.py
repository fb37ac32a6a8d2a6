"""What a model says about inputs: `Evidence`, and the two ways to get it, `look` and `read`.

The convention that everything else relies on is fixed here, once: a model has K outputs, or K+1 if its
classifier is an `OpenHead`, and then the unknown output is the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Evidence:
    """What a model says about N inputs; the unknown column of `logits`, if there is one, is the last."""

    logits: Tensor  # (N, K), or (N, K+1) from an open head
    features: Tensor  # (N, D), the input of the classifier
    num_known: int  # K
    labels: Tensor | None = None
    head: tuple[Tensor, Tensor] | None = None  # the classifier's weight and bias, for detectors that change features

    def __post_init__(self) -> None:
        outputs = self.logits.shape[-1]
        if self.logits.ndim != 2 or outputs not in (self.num_known, self.num_known + 1):
            raise ValueError(
                f"logits have shape {tuple(self.logits.shape)}; with num_known={self.num_known} they must be "
                f"(N, {self.num_known}), or (N, {self.num_known + 1}) with the unknown output last"
            )
        for name, tensor in (("features", self.features), ("labels", self.labels)):
            if tensor is not None and len(tensor) != len(self.logits):
                raise ValueError(f"{len(tensor)} {name} for {len(self.logits)} logits; give one per input")

    def __len__(self) -> int:
        return len(self.logits)

    @property
    def is_open(self) -> bool:
        """Whether the model has the K+1-th output."""
        return self.logits.shape[1] == self.num_known + 1

    @property
    def known_logits(self) -> Tensor:
        """(N, K): the logits of the known classes."""
        return self.logits[:, : self.num_known]

    @property
    def known(self) -> Tensor:
        """(N, K): p_1..p_K of one softmax over all outputs; with an open head they sum to 1 - p_{K+1}."""
        return self.logits.softmax(1)[:, : self.num_known]

    @property
    def unknown(self) -> Tensor:
        """(N,): p_{K+1} of one softmax over all outputs; 0 for a K-way model."""
        if self.is_open:
            return self.logits.softmax(1)[:, -1]
        return self.logits.new_zeros(len(self))

    @property
    def prediction(self) -> Tensor:
        """(N,): the most likely of the K known classes."""
        return self.known_logits.argmax(1)

    @property
    def confidence(self) -> Tensor:
        """(N,): the probability of the prediction, max of p_1..p_K."""
        return self.known.amax(1)

    @property
    def known_head(self) -> tuple[Tensor, Tensor]:
        """((K, D), (K,)): the classifier of the known classes, in the features' type: logits = features @ W.T + b."""
        if self.head is None:
            raise ValueError("this evidence has no head; get it with look or read, or give head=(weight, bias)")
        weight, bias = (part[: self.num_known].to(self.features) for part in self.head)
        return weight, bias

    def to(self, *args, **kwargs) -> Evidence:
        """The same evidence with its floating tensors converted and all tensors moved, as `Tensor.to`."""
        logits = self.logits.to(*args, **kwargs)
        labels = None if self.labels is None else self.labels.to(logits.device)
        return replace(self, logits=logits, features=self.features.to(*args, **kwargs), labels=labels)

    @staticmethod
    def concatenate(parts: Iterable[Evidence]) -> Evidence:
        """One evidence of several batches of one model."""
        parts = list(parts)
        if not parts:
            raise ValueError("there is no evidence to concatenate: the loader gave no batch")
        labels = [part.labels for part in parts if part.labels is not None]
        return Evidence(
            torch.cat([part.logits for part in parts]),
            torch.cat([part.features for part in parts]),
            parts[0].num_known,
            torch.cat(labels) if len(labels) == len(parts) else None,
            parts[0].head,
        )

    @staticmethod
    def mean(views: Iterable[Evidence]) -> Evidence:
        """One evidence of several views of the same inputs; as the classifier is linear, it is that of the features."""
        views = list(views)
        if len(views) == 1:
            return views[0]
        logits, features = (sum(getattr(v, part) / len(views) for v in views) for part in ("logits", "features"))
        return replace(views[0], logits=logits, features=features)


class OpenHead(nn.Linear):
    """The K+1-way classifier of Section 3.1: K known outputs and a last one that stores the unknown."""

    def __init__(self, in_features: int, num_known: int, bias: bool = True, device=None, dtype=None) -> None:
        super().__init__(in_features, num_known + 1, bias=bias, device=device, dtype=dtype)
        self.num_known = num_known


def classifier_name(model: nn.Module) -> str:
    """The name of the model's classifier: its open head, else what timm says it is, else its last Linear."""
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    heads = [name for name, module in linears.items() if isinstance(module, OpenHead)]
    if heads:
        return heads[0]
    get_classifier = getattr(model, "get_classifier", None)  # timm models know theirs
    if callable(get_classifier):
        told = get_classifier()
        linears = {name: module for name, module in linears.items() if module is told}
    if not linears:
        raise ValueError(f"{type(model).__name__} has no Linear classifier; its last layer must be a torch.nn.Linear")
    return list(linears)[-1]


def open_head(model: nn.Module) -> nn.Module:
    """Swap the model's classifier for an `OpenHead` with K+1 outputs; the K known rows keep their weights."""
    name = classifier_name(model)
    old = model.get_submodule(name)
    assert isinstance(old, nn.Linear)
    if isinstance(old, OpenHead):
        raise ValueError(f"{type(model).__name__} already has an open head ('{name}'); open a model once")
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


def look(model: nn.Module, x: Tensor, y: Tensor | None = None) -> Evidence:
    """The evidence of one batch, differentiable; the features are what reaches the classifier."""
    head = model.get_submodule(classifier_name(model))
    assert isinstance(head, nn.Linear)
    seen: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        logits = model(x)
    finally:
        handle.remove()
    if len(seen) != 1 or seen[0].ndim != 2:
        found = f"with an input of {seen[0].ndim} dimensions" if seen else "never"
        raise ValueError(
            f"the classifier of {type(model).__name__} was called {found if len(seen) < 2 else 'repeatedly'}; "
            "it must see one (N, D) batch of features per forward pass"
        )
    num_known = head.num_known if isinstance(head, OpenHead) else head.out_features
    bias = head.weight.new_zeros(head.out_features) if head.bias is None else head.bias
    return Evidence(logits, seen[0], num_known, y, (head.weight.detach(), bias.detach()))


def read(
    model: nn.Module,
    loader: Iterable,
    perturb: Callable[[nn.Module, Tensor], Tensor] | None = None,
) -> Evidence:
    """The evidence of a whole set, in evaluation mode and without gradient; the model is left as found.

    The loader gives (x, y) pairs, or x alone. `perturb` is a detector's change of the input (ODIN's).
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
