"""HOD (Roy et al. 2022): outliers have classes too; the unknown output is the sum of their probabilities."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, nll_loss

from moon.evidence import look
from moon.objectives.base import Draw, Objective, Terms, at_least_float32
from moon.objectives.epoch import Epoch
from moon.objectives.models import check_open, check_tensor


class Hod(Objective):
    """HOD: -log p of the class, known or outlier, plus `weight` times -log p of the coarse answer, known or outlier.

    p_{K+1} is the probability of all outlier classes together. A classifier q on the same features, a part of this
    objective, divides it among them: p_class = p_{K+1} * q_class for an outlier class. After training only p_{K+1} is
    used.

    The optimizer must update the parameters of this objective as well, see the example.

    Args:
        outliers: A function; `outliers(n)` returns n outliers and their classes, integers in [0, outlier_classes).
        outlier_classes: The number of outlier classes.
        num_features: The number of inputs of the model's classifier.
        weight: The weight of the coarse term.
        per_image: The number of outliers per image of the batch.

    Example:
        >>> import torch
        >>> from moon import Hod, open_head
        >>> model = open_head(torch.nn.Linear(8, 4))
        >>> def draw(n):
        ...     return torch.rand(n, 8), torch.randint(3, (n,))
        >>> objective = Hod(draw, outlier_classes=3, num_features=8)
        >>> optimizer = torch.optim.SGD([*model.parameters(), *objective.parameters()], lr=0.1)
        >>> x, y = torch.randn(16, 8), torch.arange(16) % 4
        >>> objective(model, x, y, epoch=0).backward()
        >>> optimizer.step()
    """

    extra_logits = 1
    reads_features = True

    def __init__(
        self, outliers: Draw, outlier_classes: int, num_features: int, weight: float = 0.1, per_image: float = 1.0
    ) -> None:
        super().__init__()
        if not (0 <= weight < inf and 0 < per_image < inf):
            raise ValueError(f"weight={weight} must be at least 0, per_image={per_image} above 0, both finite")
        if outlier_classes < 1:
            raise ValueError(f"outlier_classes must be at least 1, not {outlier_classes}")
        self.outliers, self.weight, self.per_image = outliers, weight, per_image
        self.divide = nn.Linear(num_features, outlier_classes)  # q

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: Epoch) -> Terms:
        check_open(model, self)
        x = check_tensor(x, self)
        outliers, classes = self.outliers(max(1, round(self.per_image * len(x))))
        # Not checked on a GPU, where it would wait for the device.
        if not classes.is_cuda and int(classes.max()) >= self.divide.out_features:
            raise ValueError(
                f"an outlier has class {int(classes.max())}, but with outlier_classes={self.divide.out_features} "
                f"classes are integers in [0, {self.divide.out_features})"
            )
        evidence = look(model, torch.cat([x, outliers]))
        log_p = at_least_float32(evidence.logits).log_softmax(1)
        log_unknown, log_known = log_p[:, -1], log_p[:, :-1].logsumexp(1)
        fine = nll_loss(log_p, torch.cat([y, torch.full_like(classes, evidence.num_known)]))  # -log p_y, -log p_{K+1}
        q = at_least_float32(self.divide(evidence.features[len(x) :]))
        outlier_share = len(outliers) / len(log_p)
        return {
            "classes": fine + outlier_share * cross_entropy(q, classes),
            "known_or_outlier": -self.weight * torch.cat([log_known[: len(x)], log_unknown[len(x) :]]).mean(),
        }
