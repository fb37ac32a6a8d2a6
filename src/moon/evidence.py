"""Evidence: what a model outputs for a set of inputs, and `look` and `read`, which compute it.

This module defines the convention that all others rely on: a model has K outputs, or K+1 if its classifier is an
`OpenHead`, and then the unknown output is the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Evidence:
    """What a model outputs for N inputs. All detectors score evidence.

    Args:
        logits: The outputs, of shape (N, K), or (N, K+1) from an open head. The unknown output is the last column.
        features: The inputs of the classifier, of shape (N, D).
        num_known: K, the number of known classes.
        labels: The classes of the inputs, of shape (N,), if they are known.
        head: The classifier's weight and bias, for detectors that change features or weights.

    Raises:
        ValueError: If the shapes do not fit together.

    Example:
        >>> import torch
        >>> from moon import Evidence
        >>> evidence = Evidence(torch.tensor([[0.6, 0.1, 0.3], [0.1, 0.2, 0.7]]).log(), torch.zeros(2, 8), num_known=2)
        >>> evidence.is_open
        True
        >>> evidence.known
        tensor([[0.6000, 0.1000],
                [0.1000, 0.2000]])
        >>> evidence.unknown
        tensor([0.3000, 0.7000])
        >>> evidence.prediction
        tensor([0, 1])
    """

    logits: Tensor
    features: Tensor
    num_known: int
    labels: Tensor | None = None
    head: tuple[Tensor, Tensor] | None = None

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
        """Whether the model has the K+1-th (unknown) output."""
        return self.logits.shape[1] == self.num_known + 1

    @property
    def known_logits(self) -> Tensor:
        """The logits of the known classes, of shape (N, K)."""
        return self.logits[:, : self.num_known]

    @property
    def known(self) -> Tensor:
        """The probabilities p_1..p_K, of shape (N, K), of one softmax over all outputs.

        With an open head, each row sums to 1 - p_{K+1}.
        """
        return self.logits.softmax(1)[:, : self.num_known]

    @property
    def unknown(self) -> Tensor:
        """The probability p_{K+1}, of shape (N,), of one softmax over all outputs. Zero for a model with K outputs."""
        if self.is_open:
            return self.logits.softmax(1)[:, -1]
        return self.logits.new_zeros(len(self))

    @property
    def prediction(self) -> Tensor:
        """The most likely of the K known classes, of shape (N,)."""
        return self.known_logits.argmax(1)

    @property
    def confidence(self) -> Tensor:
        """The probability of the prediction, max of p_1..p_K, of shape (N,)."""
        return self.known.amax(1)

    @property
    def known_head(self) -> tuple[Tensor, Tensor]:
        """The weight (K, D) and bias (K,) of the known classes, in the features' dtype and on their device.

        `known_logits` equals `features @ weight.T + bias`. Raises `ValueError` if the evidence has no head.
        """
        if self.head is None:
            raise ValueError("this evidence has no head; get it with look or read, or give head=(weight, bias)")
        weight, bias = (part[: self.num_known].to(self.features) for part in self.head)
        return weight, bias

    def to(self, *args, **kwargs) -> Evidence:
        """Convert logits and features with `Tensor.to`, and move the labels to the same device.

        Args:
            *args: Passed to `Tensor.to`, such as a dtype or a device.
            **kwargs: Passed to `Tensor.to`.

        Returns:
            New evidence. The labels keep their dtype.

        Example:
            >>> import torch
            >>> from moon import Evidence
            >>> Evidence(torch.zeros(1, 2), torch.zeros(1, 8), num_known=2).to(torch.float64).logits.dtype
            torch.float64
        """
        logits = self.logits.to(*args, **kwargs)
        labels = None if self.labels is None else self.labels.to(logits.device)
        return replace(self, logits=logits, features=self.features.to(*args, **kwargs), labels=labels)

    @staticmethod
    def concatenate(parts: Iterable[Evidence]) -> Evidence:
        """Join evidence of several batches of one model.

        Args:
            parts: The evidence of each batch, at least one.

        Returns:
            The evidence of all inputs, in order. It has labels if every part has.

        Raises:
            ValueError: If there are no parts.

        Example:
            >>> import torch
            >>> from moon import Evidence
            >>> batch = Evidence(torch.zeros(4, 2), torch.zeros(4, 8), num_known=2)
            >>> len(Evidence.concatenate([batch, batch]))
            8
        """
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
        """Average the evidence of several views of the same inputs, such as images and their mirror images.

        The classifier is linear, so the mean logits are the logits of the mean features.

        Args:
            views: Evidence of the same inputs in the same order, at least one.

        Returns:
            Evidence with the mean logits and features, and the labels and head of the first view.

        Example:
            >>> import torch
            >>> from moon import Evidence
            >>> views = [Evidence(torch.full((1, 2), f), torch.zeros(1, 8), num_known=2) for f in (1.0, 3.0)]
            >>> Evidence.mean(views).logits
            tensor([[2., 2.]])
        """
        views = list(views)
        if len(views) == 1:
            return views[0]
        logits, features = (sum(getattr(v, part) / len(views) for v in views) for part in ("logits", "features"))
        return replace(views[0], logits=logits, features=features)


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
        perturb: A detector's change of the inputs, such as `Odin().perturb`.

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
