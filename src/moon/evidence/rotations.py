"""Rotated images, and a head that predicts their rotation: what RotPred trains and scores."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from moon.evidence.head import classifier_name

TURNS = 4  # the images turned by 0, 1, 2 and 3 quarter turns


class RotationHead(nn.Linear):
    """Predicts by how many quarter turns an image was rotated, from the features that the classifier gets.

    The model's forward pass does not use it, so the model's outputs and exports are the same without it.

    Args:
        in_features: D, the number of features.
        device: The device of the parameters.
        dtype: The type of the parameters.

    Example:
        >>> import torch
        >>> from moon import RotationHead
        >>> RotationHead(in_features=8)(torch.zeros(2, 8)).shape
        torch.Size([2, 4])
    """

    def __init__(
        self, in_features: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(in_features, TURNS, device=device, dtype=dtype)

    def predict(self, features: Tensor) -> Tensor:
        """The logits of the four rotations; computed outside autocast, like those of the classifier.

        Args:
            features: (N, D).

        Returns:
            (N, 4), of the type of the head's weights.
        """
        with torch.autocast(features.device.type, enabled=False):
            return self(features.to(self.weight.dtype))


def rotation_head(model: nn.Module, classifier: str | None = None) -> nn.Module:
    """Give a model a `RotationHead` beside its classifier.

    It is a submodule of the classifier, called `rotation`. A topology treats its weight as that of any other layer.

    Args:
        model: A model whose output is that of a `torch.nn.Linear`. It is changed in place.
        classifier: The name of this layer, such as "fc"; needed only if it cannot be determined, see
            `moon.evidence.classifier_name`.

    Returns:
        The model.

    Raises:
        ValueError: If the classifier cannot be determined, or if the model already has a rotation head.

    Example:
        >>> from moon import open_head, resnet18, rotation_head
        >>> model = rotation_head(open_head(resnet18(10)))
        >>> model.fc.rotation
        RotationHead(in_features=512, out_features=4, bias=True)
    """
    if any(isinstance(module, RotationHead) for module in model.modules()):
        raise ValueError(f"{type(model).__name__} already has a rotation head; call rotation_head only once")
    name = classifier_name(model, classifier_name(model, classifier))  # by name, so that it is remembered
    head = model.get_submodule(name)
    assert isinstance(head, nn.Linear)
    rotation = RotationHead(head.in_features, head.weight.device, head.weight.dtype)
    head.add_module("rotation", rotation.train(head.training))
    return model


def find_rotation_head(model: nn.Module) -> RotationHead:
    """The rotation head of a model, or of one inside it; raises a ValueError if there is none."""
    found = next((module for module in model.modules() if isinstance(module, RotationHead)), None)
    if found is None:
        raise ValueError(
            f"{type(model).__name__} has no rotation head; train it with the objective rotpred, in your own code after "
            "model = rotation_head(model)"
        )
    return found


def rotated(x: Tensor, turns: Iterable[int] = range(1, TURNS)) -> list[Tensor]:
    """Rotate images (N, C, H, W) by quarter turns, counter-clockwise: a contiguous tensor for each number of turns.

    Raises a ValueError if the images are not square.
    """
    if x.ndim != 4 or x.shape[2] != x.shape[3]:
        raise ValueError(f"images to rotate must have the shape (N, C, size, size), not {tuple(x.shape)}")
    return [x.rot90(count, (2, 3)).contiguous() for count in turns]
