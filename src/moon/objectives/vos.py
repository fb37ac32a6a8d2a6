"""VOS (Du et al. 2022): tell the energy of images from that of virtual outliers, rare features of each class."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor, nn
from torch.distributions import Gamma
from torch.nn.functional import cross_entropy, linear

from moon.evidence import classifier_name, look
from moon.objectives.base import Objective, Terms, View, widened


class Vos(Objective):
    """-log p_y, plus `weight` times the loss of a logistic regression from energy to "image or virtual outlier".

    The energy is log sum_k relu(v_k) * exp(z_k) with learned v. Each class keeps a queue of its last features; the
    virtual outliers of class k are the `select` least likely of `draws` from N(mean of queue k, shared covariance),
    seen through the model's classifier. It starts after `start_share` of the epochs.
    """

    queues: Tensor
    seen: Tensor

    def __init__(
        self,
        num_known: int,
        num_features: int,
        epochs: int,
        weight: float = 0.1,
        start_share: float = 0.4,
        queue: int = 1000,
        draws: int = 10_000,
        select: int = 1,
    ) -> None:
        super().__init__()
        if not (0 <= weight < inf and 0 <= start_share <= 1 and queue >= 2 and 1 <= select <= draws):
            raise ValueError(
                f"weight={weight} must be at least 0, start_share={start_share} in [0, 1], queue={queue} at least 2, "
                f"select={select} at least 1 and at most draws={draws}"
            )
        self.weight, self.start, self.draws, self.select = weight, start_share * epochs, draws, select
        self.energy_weight = nn.Parameter(torch.rand(num_known))  # v
        self.logistic = nn.Linear(1, 2)
        self.register_buffer("queues", torch.zeros(num_known, queue, num_features))
        self.register_buffer("seen", torch.zeros(num_known, dtype=torch.int64))  # features of each class so far

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int | Tensor) -> Terms:
        if isinstance(model, View):
            raise ValueError(
                "Vos compares logits of images with its own of virtual outliers; it cannot be an inner objective"
            )
        batch = look(model, x)
        logits = widened(batch.known_logits)
        self.enqueue(batch.features.detach(), y)
        terms = {"cross_entropy": cross_entropy(widened(batch.logits), y)}
        started = self.has_come(epoch, self.start)
        if started is not False:  # a tensor on the device is not asked
            virtual = self.virtual_outliers()
            head = model.get_submodule(classifier_name(model))
            assert isinstance(head, nn.Linear)
            strange = widened(linear(virtual, head.weight, head.bias))[:, : batch.num_known]
            terms["virtual_outliers"] = self.weight * started * self.tell_apart(logits, strange)
        return terms

    def phase(self, epoch: int) -> bool:
        return epoch >= self.start

    def tell_apart(self, known: Tensor, strange: Tensor) -> Tensor:
        """The loss of the logistic regression on energies."""
        log_v = self.energy_weight.relu().clamp(min=1e-30).log()
        energy = (torch.cat([known, strange]) + log_v).logsumexp(1, keepdim=True)
        kind = torch.zeros(len(energy), dtype=torch.int64, device=energy.device)
        kind[: len(known)] = 1
        return cross_entropy(energy * self.logistic.weight.T + self.logistic.bias, kind)  # not autocast

    @torch.no_grad()
    def enqueue(self, features: Tensor, y: Tensor) -> None:
        """Put each feature into its class's queue, over the oldest one."""
        length = self.queues.shape[1]
        if len(y) > length:
            raise ValueError(f"a batch of {len(y)} does not fit queues of {length}; give a longer queue")
        own = nn.functional.one_hot(y, len(self.seen))
        before = (own.cumsum(0) - own).gather(1, y[:, None]).squeeze(1)  # of the same class, earlier in the batch
        self.queues[y, (self.seen[y] + before) % length] = features.to(self.queues)
        self.seen += own.sum(0)

    @torch.no_grad()
    def virtual_outliers(self) -> Tensor:
        """(classes * select, D). A class that was never seen has none of its own: it repeats a seen one's.

        A draw is mean + L e with e standard normal, and it is the less likely the longer e is. Length and direction of
        e are independent, so only the lengths of all draws are drawn, and directions for the longest.
        """
        with torch.autocast(self.queues.device.type, enabled=False):
            return self._draw()

    def _draw(self) -> Tensor:
        classes, length, size = self.queues.shape
        filled = torch.arange(length, device=self.seen.device) < self.seen[:, None]
        count = filled.sum(1)
        mean = self.queues.sum(1) / count.clamp(min=1)[:, None]
        centred = (self.queues - mean[:, None]) * filled[:, :, None]
        covariance = torch.einsum("kqd,kqe->de", centred, centred) / count.sum().clamp(min=1)
        covariance.diagonal().add_(1e-4)
        root, _ = torch.linalg.cholesky_ex(covariance)  # does not wait for the device
        half = torch.full((), 0.5, device=mean.device)
        squares = Gamma(half * size, half, validate_args=False).sample(torch.Size([classes, self.draws]))  # chi^2 of D
        lengths = squares.topk(self.select).values.sqrt()
        directions = torch.randn(classes, self.select, size, device=mean.device)
        directions = directions / directions.norm(dim=2, keepdim=True)
        draws = mean[:, None] + (lengths[:, :, None] * directions).to(root) @ root.T
        some = draws.index_select(0, count.argmax(0, keepdim=True))
        return torch.where((count > 0)[:, None, None], draws, some).flatten(0, 1)
