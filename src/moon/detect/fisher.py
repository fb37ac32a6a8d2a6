"""Fisher's combination (Fisher 1932): MSP, fDBD and KNN combined by their p-values among known inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from moon.detect.ash import Ash
from moon.detect.base import Detector
from moon.detect.dice import Dice
from moon.detect.energy import Energy
from moon.detect.entropy import Entropy
from moon.detect.fdbd import Fdbd
from moon.detect.gen import Gen
from moon.detect.gradnorm import GradNorm
from moon.detect.knn import Knn
from moon.detect.mahalanobis import Mahalanobis
from moon.detect.max_logit import MaxLogit
from moon.detect.msp import Msp
from moon.detect.nnguide import NnGuide
from moon.detect.openmax import OpenMax
from moon.detect.rmds import Rmds
from moon.detect.rotpred import RotPredScore
from moon.detect.scale import Scale
from moon.detect.scaled import Scaled
from moon.detect.she import She
from moon.detect.unknown import Unknown
from moon.detect.vim import Vim
from moon.evidence import Evidence

PARTS = ("msp", "fdbd", "knn")
# What can be combined. A part that is fitted on validation inputs would score those of the reference too high, and ODIN
# scores other evidence than the others.
COMBINABLE: dict[str, type[Detector]] = {
    "msp": Msp, "ebo": Energy, "knn": Knn, "mls": MaxLogit, "unknown": Unknown, "entropy": Entropy, "gen": Gen,
    "mds": Mahalanobis, "rmds": Rmds, "vim": Vim, "dice": Dice, "ash": Ash, "scale": Scale, "she": She,
    "nnguide": NnGuide, "fdbd": Fdbd, "gradnorm": GradNorm, "openmax": OpenMax, "rotpred": RotPredScore,
}  # fmt: skip
_ROUNDING = 1e-9  # more than the error of a sum of logarithms of whole numbers, in float64


class Fisher(Detector):
    """Fisher's combination of detectors: log p_MSP + log p_fDBD + log p_KNN, or the sum over other `parts`.

    p_d = (1 + #{validation inputs that d scores no higher}) / (n + 1) is the p-value of "x is known": how rare such a
    low score of detector d is among n known inputs. It does not depend on the scale of d. The n inputs must not be
    training inputs, because a model scores its training inputs higher than new ones.

    The parts depend on each other, so the sum does not have the distribution of Fisher's test. `p_values` gives the
    p-value of the sum, which is valid for any dependence.

    K+1 rule: that of the parts. The unknown output lowers MSP and is not used by fDBD and KNN.

    Args:
        k: Which neighbour KNN uses; None: it depends on the number of inputs, as for `Knn`.
        parts: The names of two detectors or more. With "rotpred" the model needs a rotation head, and evidence must be
            read with `rotate=True`, also that of the validation inputs.
        scaled: Whether parts that depend on the scale of the logits, such as "gen" or "rotpred", get logits / T, see
            `Scaled`. The default parts do not depend on it.

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

    def __init__(self, k: int | None = None, parts: Sequence[str] = PARTS, scaled: bool = False) -> None:
        check_parts(parts)
        if k is not None and "knn" not in parts:
            raise ValueError(f"k={k} is for KNN, which is not one of the parts: {', '.join(parts)}")
        self.k, self.scaled = k, scaled
        self.parts = {name: Knn(k) if name == "knn" else COMBINABLE[name]() for name in parts}
        if scaled:
            self.parts = {name: Scaled(part) if part.depends_on_scale else part for name, part in self.parts.items()}
        self.rotates = any(part.rotates for part in self.parts.values())
        self.reference: Tensor | None = None  # (parts, n): the sorted scores of the validation inputs
        self.calibration: Tensor | None = None  # (n,): the sorted sums of the validation inputs

    def fit(self, evidence: Evidence, validation: Evidence | None = None) -> Self:
        """Fit the parts and store their scores of the validation inputs.

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
            if splits := part.fits_on_splits:
                part.fit(*(evidence if split == "train" else validation for split in splits))
        reference = torch.stack([part.score(validation) for part in self.parts.values()])
        if reference.isnan().any():
            raise ValueError("the scores of some validation inputs are NaN; check the model's outputs for them")
        self.reference = reference.sort().values
        ranks = torch.searchsorted(self.reference, reference, right=True)
        self.calibration = ranks.double().log().sum(0).sort().values
        return self

    def score(self, evidence: Evidence) -> Tensor:
        return self.score_given(evidence, {})

    def score_given(self, evidence: Evidence, scores: Mapping[str, Tensor]) -> Tensor:
        count = self._fitted("reference").shape[1]
        terms = []
        for score, no_higher in self._counted(evidence, scores):
            p = (1 + no_higher.to(score)) / (1 + count)
            terms.append(p.where(~score.isnan(), score).log())  # NaN stays NaN
        return torch.stack(terms, 1).sum(1)

    def p_values(self, evidence: Evidence) -> Tensor:
        """The p-value of "x is known" for the combination of all parts.

        For a known input that is drawn like the n validation inputs it is at most p with probability at most p, for
        every p and however the parts depend on each other. It is (1 + #{i: c_i <= c(x)}) / (n + 1), where c(x) is the
        product over the parts of 1 + #{validation inputs that score no higher than x}, and c_i the product of
        #{validation inputs that score no higher than input i}. So it increases with `score`. If c_i counted x too, all
        n + 1 inputs would be treated alike and p would be a rank among them, which has this property; without x, c_i is
        the same or lower and p the same or higher.

        The probability is over the draw of the validation inputs as well: given these inputs, the share of known inputs
        with a p-value of at most p may be above p, and is at most p on average. The condition is that no part is fitted
        on the validation inputs. Scaled parts do not meet it exactly: their temperature, one number, is fitted to the
        validation labels.

        Args:
            evidence: Evidence of N inputs.

        Returns:
            A tensor of shape (N,), between 1 / (n + 1) and 1; NaN where a score is.

        Raises:
            ValueError: If the detector is not fitted.

        Example:
            >>> import torch
            >>> from moon import Evidence, Fisher
            >>> head = torch.eye(2), torch.zeros(2)
            >>> z = torch.randn(200, 2, generator=torch.Generator().manual_seed(0)) + torch.tensor([3.0, 0.0])
            >>> known = [Evidence(part, part, num_known=2, head=head) for part in z.split(100)]
            >>> new = torch.tensor([[3.0, 0.0], [0.0, 0.1]])
            >>> p = Fisher(k=5).fit(*known).p_values(Evidence(new, new, num_known=2, head=head))
            >>> bool(p[0] > 0.05), bool(p[1] <= 0.05)
            (True, True)
        """
        calibration = self._fitted("calibration")
        counted = list(self._counted(evidence, {}))
        total = torch.stack([(1 + no_higher).double().log() for _, no_higher in counted]).sum(0)
        no_higher = torch.searchsorted(calibration, total + _ROUNDING, right=True)
        p = (1 + no_higher.double()) / (1 + len(calibration))
        is_nan = torch.stack([score.isnan() for score, _ in counted]).any(0)
        return p.masked_fill(is_nan, torch.nan)

    def _counted(self, evidence: Evidence, scores: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """For each part: the scores, and how many validation inputs score no higher."""
        for reference, (name, part) in zip(self._fitted("reference"), self.parts.items(), strict=True):
            score = (scores[name] if name in scores else part.score(evidence)).to(evidence.logits)
            yield score, torch.searchsorted(reference, score.to(reference), right=True)

    def options(self) -> dict[str, Any]:
        return {"k": self.k, "parts": list(self.parts), "scaled": self.scaled}

    def state_dict(self) -> dict[str, Tensor]:
        learned = {f"{name}.{key}": v for name, part in self.parts.items() for key, v in part.state_dict().items()}
        return super().state_dict() | learned

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict({key: value for key, value in state.items() if "." not in key})
        for name, part in self.parts.items():
            prefix = f"{name}."
            part.load_state_dict({key.removeprefix(prefix): v for key, v in state.items() if key.startswith(prefix)})


def check_parts(names: Sequence[str]) -> None:
    """Check that detectors can be combined.

    Args:
        names: Their names.

    Raises:
        ValueError: If there are fewer than two, one is named twice, or one cannot be combined.
    """
    if isinstance(names, str) or len(names) < 2:
        given = names if isinstance(names, str) else "".join(names)
        raise ValueError(f"Fisher combines two detectors or more, such as {' and '.join(PARTS[:2])}, not '{given}'")
    for name in names:
        if name not in COMBINABLE:
            raise ValueError(f"Fisher cannot combine '{name}'; choose from: {', '.join(COMBINABLE)}")
        if list(names).count(name) > 1:
            raise ValueError(f"Fisher combines different detectors, but '{name}' is named twice")
