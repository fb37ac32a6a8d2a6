"""Layers: how unusual an input is to inner layers, and how far its features are from those of training inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from moon.detect.base import Detector
from moon.detect.knn import Knn
from moon.detect.moments import class_means, second_moment
from moon.evidence import Evidence

_IMAGES = 10_000  # of the training inputs are enough for the Gaussians, drawn at random
_SMALL = 0.03  # of the usual deviation of a channel is added, so that a constant channel has a logarithm
_STATE = ("usual", "mean", "std", "centres", "directions", "variances", "rest")


class ClassGaussians:
    """One Gaussian per class over the statistics of a layer, with a shared covariance, shrunk (Ledoit and Wolf 2004).

    The covariance is exact in the directions of largest variance and has one variance in all others.
    """

    def __init__(self, state: Mapping[str, Tensor] | None = None) -> None:
        self.state = dict(state or {})

    def fit(self, layer: Tensor, labels: Tensor, classes: int, directions: int) -> Self:
        usual = layer.double()[:, layer.shape[1] // 2 :].mean(0)
        x = _logarithmic(layer, usual)
        mean, residuals = x.mean(0), x - class_means(x, labels, classes)[labels]
        std = residuals.std(0, correction=0)
        std = std + 1e-3 * std.mean() + 1e-9
        x, residuals = (x - mean) / std, residuals / std
        moment = second_moment(residuals, residuals.new_zeros(residuals.shape[1]))
        width = len(moment)
        average = moment.trace() / width
        noise = (residuals.square().sum(1).square().mean() - moment.square().sum()) / len(x)
        spread = (moment - average * torch.eye(width, dtype=moment.dtype, device=moment.device)).square().sum()
        share = (noise / spread.clamp(min=1e-12)).clamp(0.01, 1.0)
        values, vectors = torch.linalg.eigh(moment)  # in increasing order
        values = ((1 - share) * values + share * average).clamp(min=1e-9)
        kept = min(directions, width)
        self.state = {
            "usual": usual,
            "mean": mean,
            "std": std,
            "centres": class_means(x, labels, classes).float(),
            "directions": vectors[:, width - kept :].float().contiguous(),
            "variances": values[width - kept :],
            "rest": values[: max(1, width - kept)].mean(),
        }
        return self

    def distances(self, layer: Tensor) -> Tensor:
        """The logarithm of the squared Mahalanobis distance to the nearest class, (N, 1)."""
        usual, mean, std, centres, directions, variances, rest = (self.state[name] for name in _STATE)
        z, centres, directions = (_logarithmic(layer, usual) - mean) / std, centres.double(), directions.double()
        inside, inner = z @ directions, centres @ directions
        weights = variances.rsqrt()
        outside = torch.cdist(z, centres).square() - torch.cdist(inside, inner).square()
        along = torch.cdist(inside * weights, inner * weights).square()
        return (along + outside.clamp(min=0) / rest).amin(1, keepdim=True).clamp(min=1e-12).log()


class Layers(Detector):
    """How unusual an input is to inner layers, and how far its features are from those of training inputs.

    For each of up to eight convolutions, the mean and the logarithm of the standard deviation of each output channel
    are compared with those of training inputs: d is the logarithm of the Mahalanobis distance to the nearest class.
    For the features, d is the logarithm of the distance that KNN finds. With z the d of an input in standard deviations
    above the mean d of validation inputs,

        score = -s(max over the layers of z) - s(z of KNN),    s(z) = log(1 + e^z)

    so one layer is enough to reject an input, and both terms together reject one that neither is sure of.

    K+1 rule: the unknown output is not used.

    Args:
        k: Which neighbour KNN uses; None: it depends on the number of inputs, as for `Knn`.
        directions: In how many directions the covariance of a layer is exact.

    Example:
        >>> import torch
        >>> from moon import Layers, lenet, read
        >>> model = lenet().eval()
        >>> known = [(torch.rand(40, 1, 28, 28), torch.arange(40) % 10)]
        >>> evidence = read(model, known, layers=True)
        >>> detector = Layers().fit(evidence, evidence)
        >>> constant = read(model, torch.zeros(1, 1, 28, 28), layers=True)
        >>> bool(detector.score(constant) < detector.score(evidence).min())
        True
    """

    fits_on = "both"
    layered = True

    def __init__(self, k: int | None = None, directions: int = 32) -> None:
        if directions < 1:
            raise ValueError(f"directions={directions} must be at least 1")
        self.k, self.directions = k, directions
        self.parts = {"knn": Knn(k)}
        self.usual: Tensor | None = None  # (2, layers + 1): mean and standard deviation of d, KNN last
        self._gaussians: list[ClassGaussians] = []

    def fit(self, evidence: Evidence, validation: Evidence | None = None) -> Self:
        """Fit the Gaussians and KNN, and store what is usual for validation inputs.

        Args:
            evidence: Evidence of the training inputs, read with `layers=True`.
            validation: Evidence of known inputs that were not trained on, at least two. Required.

        Returns:
            The detector itself.

        Raises:
            ValueError: If the evidence has no layers, or `validation` is missing.
        """
        if validation is None or len(validation) < 2:
            raise ValueError("Layers also needs known inputs that were not trained on; call fit(training, validation)")
        labels = self._labels(evidence, of_all_classes=True)
        some = torch.randperm(len(evidence), generator=torch.Generator().manual_seed(0))[:_IMAGES].sort().values
        some = some.to(labels.device)
        classes, numbers = labels[some].unique(return_inverse=True)
        self._gaussians = [
            ClassGaussians().fit(layer[some], numbers, len(classes), self.directions) for layer in _layers(evidence)
        ]
        self.parts["knn"].fit(evidence)
        found = self._distances(validation, {})
        self.usual = torch.stack([found.mean(0), found.std(0) + 1e-6])
        return self

    def score(self, evidence: Evidence) -> Tensor:
        return self.score_given(evidence, {})

    def score_given(self, evidence: Evidence, scores: Mapping[str, Tensor]) -> Tensor:
        mean, std = self._fitted("usual")
        z = (self._distances(evidence, scores) - mean) / std
        return (-_softplus(z[:, :-1].amax(1)) - _softplus(z[:, -1])).to(evidence.logits.dtype)

    def _distances(self, evidence: Evidence, scores: Mapping[str, Tensor]) -> Tensor:
        """d of each layer and, last, of KNN."""
        knn = scores["knn"] if "knn" in scores else self.parts["knn"].score(evidence)
        of_layers = [part.distances(layer) for part, layer in zip(self._gaussians, _layers(evidence), strict=True)]
        return torch.cat([*of_layers, (-knn.double()).clamp(min=1e-6).log().unsqueeze(1)], 1)

    def options(self) -> dict[str, Any]:
        return {"k": self.k, "directions": self.directions}

    def state_dict(self) -> dict[str, Tensor]:
        learned = {f"{i}.{name}": value for i, part in enumerate(self._gaussians) for name, value in part.state.items()}
        learned |= {f"knn.{name}": value for name, value in self.parts["knn"].state_dict().items()}
        return super().state_dict() | learned

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        def part(prefix: str) -> dict[str, Tensor]:
            return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}

        super().load_state_dict({"usual": state["usual"]})
        self._gaussians = [ClassGaussians(part(f"{i}.")) for i in range(state["usual"].shape[1] - 1)]
        self.parts["knn"].load_state_dict(part("knn."))


def _layers(evidence: Evidence) -> tuple[Tensor, ...]:
    """The statistics of each layer; a ValueError if there are none."""
    if evidence.layers is None or not evidence.layer_sizes:
        reason = "the network has no convolutions" if evidence.layers is not None else "read it with layers=True"
        raise ValueError(f"Layers needs evidence of inner layers: {reason}")
    return evidence.layers.split(evidence.layer_sizes, 1)


def _logarithmic(layer: Tensor, usual: Tensor) -> Tensor:
    """The means and the logarithms of the deviations, float64."""
    means, deviations = layer.double().split(layer.shape[1] // 2, 1)
    return torch.cat([means, (deviations + _SMALL * usual + 1e-9).log()], 1)


def _softplus(z: Tensor) -> Tensor:
    """log(1 + e^z), for z of any size."""
    return z.clamp(min=0) + (1 + (-z.abs()).exp()).log()
