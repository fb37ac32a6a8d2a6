"""ViM (Wang et al. 2022): the energy minus a virtual logit."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor

from moon.detect.base import Detector
from moon.detect.moments import second_moment
from moon.evidence import Evidence, chunks, mapped


class Vim(Detector):
    """Virtual-logit matching: log sum_k exp(f_k) - alpha |R^T (z - o)|.

    The second term is the virtual logit: the part of the features z outside their principal subspace. o is the point
    where the classifier's bias cancels (W o = -b), R spans the directions left over by the `dim` principal directions
    of the training features, and alpha makes the mean virtual logit equal to the mean largest logit.

    K+1 rule: the K known logits and their rows of W are used, not the unknown output.

    Args:
        dim: The number of principal directions, below the number of features D. The default is the paper's rule: 1000
            for D >= 2048, 512 for D >= 768, D // 2 otherwise.

    Example:
        >>> import torch
        >>> from moon import Evidence, Vim
        >>> head = torch.eye(2), torch.zeros(2)  # weight and bias of the classifier: here logits = features
        >>> z = torch.tensor([[4.0, 0.0], [3.0, -0.2], [0.0, 4.0], [-0.2, 3.0]])
        >>> vim = Vim(dim=1).fit(Evidence(z, z, num_known=2, head=head))
        >>> new = torch.tensor([[4.0, 0.0], [3.0, 3.0]])
        >>> vim.score(Evidence(new, new, num_known=2, head=head))
        tensor([-0.0995, -2.4833])
    """

    depends_on_scale = True
    fits_on = "train"
    grid: ClassVar = {"dim": (16, 32, 64, 128, 256, 512)}

    def __init__(self, dim: int | None = None) -> None:
        if dim is not None and dim < 1:
            raise ValueError(f"dim must be at least 1, not {dim}")
        self.dim = dim
        self.origin: Tensor | None = None
        self.residual: Tensor | None = None
        self.alpha: Tensor | None = None

    def fit(self, evidence: Evidence) -> Self:
        weight, bias = evidence.known_head
        size = evidence.features.shape[1]
        # The paper's rule for 2048 and for 768 features and more; half of the features below that.
        dim = self.dim or (1000 if size >= 2048 else 512 if size >= 768 else size // 2)
        if dim >= size:
            raise ValueError(f"dim={dim} leaves no residual of {size} features; give a smaller dim")
        origin = -(torch.linalg.pinv(weight.double()) @ bias.double())
        moment = second_moment(evidence.features, origin)
        _, vectors = torch.linalg.eigh(moment)  # in order of increasing variance
        residual = vectors[:, : size - dim]
        lengths = torch.cat([((z.double() - origin) @ residual).norm(dim=1) for (z,) in chunks(evidence.features)])
        if lengths.square().mean() < 1e-12 * moment.trace():
            raise ValueError(
                f"the training features vary in {dim} directions at most; use more training inputs or a smaller dim"
            )
        largest = mapped(lambda logits: logits[:, : evidence.num_known].amax(1), evidence.logits)
        alpha = largest.double().mean() / lengths.mean()
        self.origin, self.residual, self.alpha = origin.to(weight), residual.to(weight), alpha.to(weight)
        return self

    def score(self, evidence: Evidence) -> Tensor:
        residual = self._fitted("residual")
        virtual = (evidence.features.to(residual) - self._fitted("origin")) @ residual
        return evidence.known_logits.logsumexp(1) - self._fitted("alpha") * virtual.norm(dim=1)
