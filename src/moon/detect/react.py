"""ReAct (Sun, Guo and Li 2021): the energy of clipped features."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor

from moon.detect.shaping import Shaping, check_percentile
from moon.evidence import Evidence


class React(Shaping):
    """Energy of features clipped at c, the `percentile` of all activations on known inputs: z' = min(z, c).

    K+1 rule: the K known logits are used, not the unknown output.

    Args:
        percentile: In [0, 100). Lower values clip more.

    Example:
        >>> import torch
        >>> from moon import Evidence, React
        >>> head = torch.eye(2), torch.zeros(2)  # weight and bias of the classifier: here logits = features
        >>> z = torch.tensor([[4.0, 0.0], [3.0, 1.0], [0.0, 4.0], [1.0, 3.0]])
        >>> react = React(percentile=50).fit(Evidence(z, z, num_known=2, head=head))
        >>> react.threshold
        tensor(2.)
        >>> new = torch.tensor([[9.0, 1.0], [1.0, 1.0]])
        >>> react.score(Evidence(new, new, num_known=2, head=head))
        tensor([2.3133, 1.6931])
    """

    fits_on = "validation"
    grid: ClassVar = {"percentile": (85.0, 90.0, 95.0, 99.0)}

    def __init__(self, percentile: float = 90.0) -> None:
        check_percentile(percentile)
        self.percentile = percentile
        self.threshold: Tensor | None = None

    def fit(self, evidence: Evidence) -> Self:
        values = evidence.features.flatten().sort().values
        at = self.percentile / 100 * (len(values) - 1)  # linear interpolation, as in numpy.percentile
        low = values[int(at)]
        high = values[min(int(at) + 1, len(values) - 1)]
        self.threshold = torch.lerp(low, high, at - int(at))
        return self

    def shape(self, features: Tensor) -> Tensor:
        return features.minimum(self._fitted("threshold").to(features))
