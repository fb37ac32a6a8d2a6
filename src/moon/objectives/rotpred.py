"""RotPred (Hendrycks et al. 2019): predict the rotation of rotated images beside the class of the upright ones."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from moon.evidence import find_rotation_head, logits_of, look, rotated
from moon.objectives.base import Objective, Terms, at_least_float32
from moon.objectives.cross_entropy import CrossEntropy
from moon.objectives.epoch import Epoch
from moon.objectives.models import View, check_tensor


class RotPred(Objective):
    """RotPred: another objective, by default cross-entropy, plus the loss of a head that predicts rotations.

    L_rotation = 1/4 * -log q_0(x) + 3/4 * mean over the rotated copies of -log q_r(x turned by r quarter turns)

    q are the probabilities of the rotation head. Upright and rotated images go through the model as one batch. With all
    three copies L_rotation is the mean over the four rotations; with fewer it has the same expectation.

    The model needs the head: `model = rotation_head(model)`.

    Args:
        rotation_weight: The factor of L_rotation.
        copies: The rotated copies of each image in a step, 1 to 3: all of them, or different random ones. A step then
            computes copies + 1 times as many images.
        inner: The objective for the upright images; None for `CrossEntropy`.

    Example:
        >>> import torch
        >>> from moon import RotPred, lenet, rotation_head
        >>> model = rotation_head(lenet())
        >>> x, y = torch.randn(4, 1, 28, 28), torch.arange(4)
        >>> list(RotPred().terms(model, x, y, epoch=0))
        ['cross_entropy', 'rotation']
    """

    rotates = True

    def __init__(self, rotation_weight: float = 1.0, copies: int = 3, inner: Objective | None = None) -> None:
        super().__init__()
        if not 0 <= rotation_weight < inf:
            raise ValueError(f"rotation_weight must be at least 0 and finite, not {rotation_weight}")
        if copies not in (1, 2, 3):
            raise ValueError(f"copies, the rotated copies of each image, must be 1, 2 or 3, not {copies}")
        self.rotation_weight, self.copies = rotation_weight, copies
        self.inner = inner or CrossEntropy()

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: Epoch) -> Terms:
        head = find_rotation_head(model)
        copies, turns = self.rotated_copies(check_tensor(x, self))
        features: list[Tensor] = []

        def forward(upright: Tensor) -> Tensor:
            if features:  # the inner objective runs the model again
                return logits_of(model, upright)
            batch = look(model, torch.cat([upright, copies]))
            features.append(batch.features)
            return batch.logits[: len(upright)]

        terms = self.inner.terms(View(model, forward), x, y, epoch=epoch)
        logits = at_least_float32(head.predict(features[0]))
        upright, turned = logits[: len(x)], logits[-len(turns) :]  # outliers of the inner objective lie between
        no_turn = torch.zeros(len(upright), dtype=turns.dtype, device=turns.device)
        loss = cross_entropy(upright, no_turn) / 4 + cross_entropy(turned, turns) * 3 / 4
        return terms | {"rotation": self.rotation_weight * loss}

    def rotated_copies(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate each image by 1, 2 and 3 quarter turns, or by some of these, drawn at random without replacement.

        Args:
            x: (N, C, H, W), upright square images.

        Returns:
            (copies * N, C, H, W), the rotated images, and (copies * N,), their quarter turns.
        """
        every = torch.stack(rotated(x))
        if self.copies == 3:
            turns = torch.arange(1, 4, device=x.device)[:, None].expand(3, len(x))
            return every.flatten(0, 1), turns.flatten()
        drawn = torch.rand(3, len(x), device=x.device).argsort(0)[: self.copies]
        return every[drawn, torch.arange(len(x), device=x.device)].flatten(0, 1), 1 + drawn.flatten()

    def step_inputs(self, x: Tensor) -> Tensor:
        return torch.cat([super().step_inputs(x), self.rotated_copies(x)[0]])
