"""Fisher's combination (Fisher 1932): MSP, fDBD and KNN combined by their p-values among known inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from moon.detect.base import Detector
from moon.detect.fdbd import Fdbd
from moon.detect.knn import Knn
from moon.detect.msp import Msp
from moon.evidence import Evidence


class Fisher(Detector):
    """Fisher's combination of three detectors: log p_MSP + log p_fDBD + log p_KNN.

    p_d = (1 + #{validation inputs that d scores no higher}) / (n + 1) is the p-value of "x is known": how rare such a
    low score of detector d is among n known inputs. It does not depend on the scale of d. The n inputs must not be
    training inputs, because a model scores its training inputs higher than new ones.

    K+1 rule: that of the three detectors. The unknown output lowers MSP and is not used by the others.

    Args:
        k: Which neighbour KNN uses, at least 1.

    Example:
        >>> import torch
        >>> from moon import Evidence, Fisher
        >>> head = torch.eye(2), torch.zeros(2)  # weight and bias of the classifier: here logits = features
        >>> z = torch.tensor([[4.0, 0.0], [3.0, 1.0], [0.0, 4.0], [1.0, 3.0]])
        >>> train = Evidence(z, z, num_known=2, head=head)
        >>> validation = Evidence(z + 0.1, z + 0.1, num_known=2, head=head)
        >>> fisher = Fisher(k=2).fit(train, validation)
        >>> new = torch.tensor([[4.0, 0.0], [2.0, 2.1]])
        >>> fisher.score(Evidence(new, new, num_known=2, head=head))
        tensor([-0.5108, -4.8283])
    """

    fits_on = "both"

    def __init__(self, k: int = 50) -> None:
        self.k = k
        self.parts = {"msp": Msp(), "fdbd": Fdbd(), "knn": Knn(k)}
        self.reference: Tensor | None = None  # (parts, n): the sorted scores of the validation inputs

    def fit(self, evidence: Evidence, validation: Evidence | None = None) -> Self:
        """Fit the three detectors and store their scores of the validation inputs.

        Args:
            evidence: Evidence of the training inputs.
            validation: Evidence of known inputs that were not trained on. Required.

        Returns:
            The detector itself.

        Raises:
            ValueError: If `validation` is missing or empty, or if some of its scores are NaN.
        """
        if validation is None or not len(validation):
            raise ValueError("Fisher also needs known inputs that were not trained on; call fit(training, validation)")
        for part in self.parts.values():
            part.fit(evidence)
        reference = torch.stack([part.score(validation) for part in self.parts.values()])
        if reference.isnan().any():
            raise ValueError("the scores of some validation inputs are NaN; check the model's outputs for them")
        self.reference = reference.sort().values
        return self

    def score(self, evidence: Evidence) -> Tensor:
        return self.score_given(evidence, {})

    def score_given(self, evidence: Evidence, scores: Mapping[str, Tensor]) -> Tensor:
        terms = []
        for reference, (name, part) in zip(self._fitted("reference"), self.parts.items(), strict=True):
            score = (scores[name] if name in scores else part.score(evidence)).to(evidence.logits)
            no_higher = torch.searchsorted(reference, score.to(reference), right=True)
            p = (1 + no_higher.to(score)) / (1 + len(reference))
            terms.append(p.where(~score.isnan(), score).log())  # NaN stays NaN
        return torch.stack(terms, 1).sum(1)

    def state_dict(self) -> dict[str, Tensor]:
        learned = {f"{name}.{key}": v for name, part in self.parts.items() for key, v in part.state_dict().items()}
        return super().state_dict() | learned

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict({key: value for key, value in state.items() if "." not in key})
        for name, part in self.parts.items():
            prefix = f"{name}."
            part.load_state_dict({key.removeprefix(prefix): v for key, v in state.items() if key.startswith(prefix)})
