"""pytorch-ood: its detectors on our evidence, and our detectors in its interface.

Needs the extra `ood`: `pip install 'moon-sparse[ood]'`. Scores of pytorch-ood are higher for unknown inputs, ours for
known ones; both adapters change the sign.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from moon.detect import Detector
from moon.evidence import Evidence, read

__all__ = ["FromPytorchOod", "to_pytorch_ood"]


class FromPytorchOod(Detector):
    """A detector of pytorch-ood as one of ours: it is fitted and scores by evidence, and higher means more known.

    Detectors of logits (`MaxSoftmax`, `EnergyBased`, `KLMatching`, ...), of features (`KNN`, `Mahalanobis`, `ViM`, ...)
    and of feature maps (`ReAct`, `ASH`, ...) can be used. The last ones get our features as maps of one pixel, so
    their `head` must accept (N, D, 1, 1). Detectors that need the images, such as their `ODIN`, cannot.

    The K+1-th output: by default a detector of logits gets the K known logits only, so that the unknown output cannot
    raise a score. With `outputs="all"` it gets all, as if it were given the model.

    Args:
        detector: The detector of pytorch-ood; it may have been created with the model None.
        outputs: Which logits to give it, "known" or "all".
        fits_on: The known data that `fit` needs, "train" or "validation". Ignored if it needs no fit.

    Example:
        >>> from pytorch_ood.detector import EnergyBased
        >>> import torch
        >>> from moon import Evidence
        >>> from moon.integrations.pytorch_ood import FromPytorchOod
        >>> evidence = Evidence(torch.tensor([[4.0, 0.0], [1.0, 1.0]]), torch.zeros(2, 8), num_known=2)
        >>> FromPytorchOod(EnergyBased(None)).score(evidence)
        tensor([4.0181, 1.6931])
    """

    def __init__(
        self,
        detector: Any,
        outputs: Literal["known", "all"] = "known",
        fits_on: Literal["train", "validation"] = "train",
    ) -> None:
        self._takes = _taken_by(detector)
        if outputs not in ("known", "all"):
            raise ValueError(f"outputs must be known or all, not {outputs}")
        self.detector, self.outputs = detector, outputs
        self.fits_on = fits_on if detector.requires_fit else "nothing"  # pyright: ignore[reportAttributeAccessIssue]

    def fit(self, evidence: Evidence) -> Self:
        """Fit the detector on evidence of known inputs with labels. Does nothing if it needs no fit."""
        if not self.detector.requires_fit:
            return self
        if evidence.labels is None:
            raise ValueError(f"{type(self.detector).__name__} needs labels; give read a loader with labels")
        getattr(self.detector, f"fit_{self._takes}")(self._input(evidence), evidence.labels.cpu())
        return self

    def score(self, evidence: Evidence) -> Tensor:
        try:
            with torch.no_grad():
                found = getattr(self.detector, f"predict_{self._takes}")(self._input(evidence))
        except _their_api().RequiresFittingException:
            name = type(self.detector).__name__
            raise ValueError(f"{name} is not fitted; call fit(evidence of known inputs) first") from None
        return -torch.as_tensor(found).to(evidence.logits)

    def _input(self, evidence: Evidence) -> Tensor:
        """What the detector takes, on the CPU, from where it moves it to its own device."""
        if self._takes == "logits":
            return (evidence.known_logits if self.outputs == "known" else evidence.logits).detach().cpu()
        features = evidence.features.detach().cpu()
        return features if self._takes == "features" else features[:, :, None, None]


def _their_api() -> Any:
    try:
        return import_module("pytorch_ood.api")
    except ModuleNotFoundError as error:
        raise ImportError(f"this needs {error.name}: pip install 'moon-sparse[ood]'") from None


def _taken_by(detector: Any) -> str:
    """What a detector of pytorch-ood takes: logits, features or feature_maps."""
    api = _their_api()
    kinds = {
        "logits": api.LogitsDetector,
        "features": api.FeaturesDetector,
        "feature_maps": api.FeatureMapsDetector,
    }
    if found := [name for name, kind in kinds.items() if isinstance(detector, kind)]:
        return found[0]
    if isinstance(detector, api.Detector):
        raise ValueError(
            f"{type(detector).__name__} of pytorch-ood needs images, not evidence; call its predict(images)"
        )
    raise ValueError(f"expected a detector from pytorch-ood, not {detector!r}")


def to_pytorch_ood(detector: Detector, model: nn.Module, classifier: str | None = None) -> Any:
    """Wrap one of our detectors as a detector of pytorch-ood: higher means more unknown.

    The result has `fit(loader)`, `predict(x)` and `requires_fit`, and can be given to its benchmarks and metrics.
    Inputs with a negative label, which are unknown there, are ignored by `fit`. The model runs in evaluation mode. Move
    the model to its device before `fit`; what `fit` learned stays there.

    Args:
        detector: The detector. One that is fitted on training and on validation images takes both:
            `fit(loader, validation_loader)`.
        model: The network; its classifier is found as by `moon.read`.
        classifier: The name of the classifier, if it cannot be determined.

    Returns:
        An object of a subclass of `pytorch_ood.api.Detector`.

    Raises:
        ImportError: If pytorch-ood is not installed.

    Example:
        >>> import torch
        >>> from moon import Energy, lenet
        >>> from moon.integrations.pytorch_ood import to_pytorch_ood
        >>> theirs = to_pytorch_ood(Energy(), lenet())
        >>> theirs.predict(torch.zeros(3, 1, 28, 28)).shape
        torch.Size([3])
    """
    api = _their_api()

    class FromMoon(api.Detector):
        """A detector of moon. Higher means more unknown."""

        def __init__(self) -> None:
            self.detector, self.model = detector, model
            self.requires_fit = bool(detector.fits_on_splits)
            self._is_fitted = not self.requires_fit

        def fit(self, data_loader: Iterable, validation_loader: Iterable | None = None) -> Self:
            loaders = [data_loader] if validation_loader is None else [data_loader, validation_loader]
            if self.requires_fit:
                splits = detector.fits_on_splits
                if len(loaders) != len(splits):
                    raise ValueError(
                        f"{type(detector).__name__} is fitted on {' and '.join(splits)}: give {len(splits)} loader(s)"
                    )
                how = {"classifier": classifier, "layers": detector.layered}
                detector.fit(*(_known_only(read(model, loader, **how)) for loader in loaders))
            self._is_fitted = True
            return self

        def predict(self, x: Tensor) -> Tensor:
            if not self._is_fitted:
                raise api.RequiresFittingException
            return -detector.score(read(model, [x], classifier=classifier, layers=detector.layered, **detector.reading))

    return FromMoon()


def _known_only(evidence: Evidence) -> Evidence:
    """The evidence of inputs whose label is not negative."""
    labels = evidence.labels
    return evidence if labels is None or bool((labels >= 0).all()) else evidence.take(labels >= 0)
