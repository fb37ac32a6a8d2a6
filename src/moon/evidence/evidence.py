"""`Evidence`: what a model outputs for a set of inputs.

This module defines the convention that all others rely on: a model has K outputs, or K+1 if its classifier is an
`OpenHead`, and then the unknown output is the last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from moon.evidence.derived import unit_features
from moon.evidence.disk import mapped, taken

_OPTIONAL = ("labels", "rotations", "layers")  # have a row for each input, if they are there at all


@dataclass(frozen=True)
class Evidence:
    """What a model outputs for N inputs. All detectors score evidence.

    Args:
        logits: The outputs, of shape (N, K), or (N, K+1) from an open head, whose last column is the unknown output.
        features: The inputs of the classifier, of shape (N, D).
        num_known: K, the number of known classes.
        labels: The classes of the inputs, of shape (N,), if they are known.
        head: The classifier's weight and bias, for detectors that change features or weights.
        rotations: The logits of the rotation head for each input turned by 0 to 3 quarter turns, of shape (N, 4, 4),
            if they were computed.
        layers: Mean and standard deviation of each output channel of up to 8 convolutions, side by side, (N, M), if
            they were computed.
        layer_sizes: How many columns of `layers` belong to each of these convolutions: first the means, then as many
            deviations.

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
    rotations: Tensor | None = None
    layers: Tensor | None = None
    layer_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        outputs = self.logits.shape[-1]
        if self.logits.ndim != 2 or outputs not in (self.num_known, self.num_known + 1):
            raise ValueError(
                f"logits have shape {tuple(self.logits.shape)}; with num_known={self.num_known} they must be "
                f"(N, {self.num_known}), or (N, {self.num_known + 1}) with the unknown output last"
            )
        parts = {name: getattr(self, name) for name in _OPTIONAL} | {"features": self.features}
        for name, tensor in parts.items():
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
        return mapped(lambda logits: logits[:, : self.num_known].argmax(1), self.logits)

    @property
    def confidence(self) -> Tensor:
        """The probability of the prediction, max of p_1..p_K, of shape (N,)."""
        return self.known.amax(1)

    @property
    def unit_features(self) -> Tensor:
        """The features scaled to length 1, of shape (N, D).

        They are computed once for the same `features`: detectors that keep them share the memory.
        """
        return unit_features(self.features)

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
        """Convert all but the labels with `Tensor.to`, and move the labels to the same device.

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
        features = self.features.to(*args, **kwargs)
        others = {name: getattr(self, name) for name in ("rotations", "layers")}
        others = {name: None if part is None else part.to(*args, **kwargs) for name, part in others.items()}
        return replace(self, logits=logits, features=features, labels=labels, **others)

    def take(self, index: Tensor) -> Evidence:
        """Select inputs.

        Args:
            index: The numbers of the inputs, or a mask of shape (N,), on any device.

        Returns:
            The evidence of these inputs.

        Example:
            >>> import torch
            >>> from moon import Evidence
            >>> evidence = Evidence(torch.eye(3), torch.zeros(3, 8), num_known=3)
            >>> evidence.take(torch.tensor([2, 0])).prediction
            tensor([2, 0])
        """
        parts = {name: getattr(self, name) for name in ("logits", "features", *_OPTIONAL)}
        given = {name: part for name, part in parts.items() if part is not None}
        return replace(self, **{name: taken(part, index.to(part.device)) for name, part in given.items()})

    @staticmethod
    def concatenate(parts: Iterable[Evidence]) -> Evidence:
        """Join evidence of several batches of one model.

        Args:
            parts: The evidence of each batch, at least one.

        Returns:
            The evidence of all inputs, in order. It has labels, rotations and layers if every part has.

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
            raise ValueError("there is no evidence to concatenate: the loader yielded no batch")

        def joined(name: str) -> Tensor | None:
            found = [value for part in parts if (value := getattr(part, name)) is not None]
            return torch.cat(found) if len(found) == len(parts) else None

        return replace(parts[0], **{name: joined(name) for name in ("logits", "features", *_OPTIONAL)})

    @staticmethod
    def mean(views: Iterable[Evidence]) -> Evidence:
        """Average the evidence of several views of the same inputs, such as images and their mirror images.

        The classifier is linear, so the mean logits are the logits of the mean features.

        Args:
            views: Evidence of the same inputs in the same order, at least one.

        Returns:
            Evidence with the mean logits, features, rotations and layers, and the labels and head of the first view.

        Raises:
            ValueError: If there is no view, or only some have rotations or layers.

        Example:
            >>> import torch
            >>> from moon import Evidence
            >>> views = [Evidence(torch.full((1, 2), f), torch.zeros(1, 8), num_known=2) for f in (1.0, 3.0)]
            >>> Evidence.mean(views).logits
            tensor([[2., 2.]])
        """
        views = list(views)
        optional = {tuple(getattr(view, name) is not None for name in ("rotations", "layers")) for view in views}
        if len(optional) != 1:
            raise ValueError("views to average are missing, or only some of them have rotations or layers")
        if len(views) == 1:
            return views[0]
        given = [name for name in ("rotations", "layers") if getattr(views[0], name) is not None]
        names = ("logits", "features", *given)

        def mean(*parts: Tensor) -> Tensor:
            total: Any = sum(part / len(views) for part in parts)
            return total

        return replace(views[0], **{name: mapped(mean, *(getattr(v, name) for v in views)) for name in names})
