"""VOS (Du et al. 2022): separate the energy of images from that of virtual outliers, unlikely features of a class."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor, nn
from torch.distributions import Gamma
from torch.nn.functional import cross_entropy, linear

from moon.evidence import classifier_of, look
from moon.objectives.base import Objective, Terms, at_least_float32
from moon.objectives.epoch import Epoch
from moon.objectives.models import View


class Vos(Objective):
    """VOS: -log p_y, plus `weight` times the loss of a logistic regression from energy to "image or virtual outlier".

    The energy is log sum_k relu(v_k) * exp(z_k) with learned v. A queue holds the latest features of each class. The
    virtual outliers of class k are the `select` least likely of `draws` samples from N(mean of queue k, shared
    covariance); the model's classifier computes their logits. The second term starts after `start_share` of the epochs.

    The optimizer must update the parameters of this objective as well, see the example.

    Args:
        num_known: K, the number of known classes.
        num_features: The number of inputs of the model's classifier.
        epochs: The number of epochs of the run.
        weight: The weight of the second term.
        start_share: The fraction of the epochs after which the second term starts, in [0, 1].
        queue: The number of features that the queue of a class holds; at least the batch size.
        draws: The number of samples per class.
        select: The number of virtual outliers per class.

    Example:
        >>> import torch
        >>> from moon import Vos
        >>> model = torch.nn.Linear(8, 4)
        >>> objective = Vos(num_known=4, num_features=8, epochs=100, queue=64, draws=100)
        >>> optimizer = torch.optim.SGD([*model.parameters(), *objective.parameters()], lr=0.1)
        >>> x, y = torch.randn(16, 8), torch.arange(16) % 4
        >>> objective(model, x, y, epoch=40).backward()
        >>> optimizer.step()
    """

    reads_features = True
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
        self.register_buffer("seen", torch.zeros(num_known, dtype=torch.int64))  # features per class so far

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: Epoch) -> Terms:
        if isinstance(model, View):
            raise ValueError(
                "Vos cannot be an inner objective: it computes the logits of virtual outliers with the model's own "
                "classifier. Use it alone"
            )
        batch = look(model, x)
        logits = at_least_float32(batch.known_logits)
        self.enqueue(batch.features.detach(), y)
        terms = {"cross_entropy": cross_entropy(at_least_float32(batch.logits), y)}
        started = self.has_started(epoch, self.start)
        if started is not False:  # True, or a tensor whose value is not known here
            head = classifier_of(model)
            with torch.autocast(logits.device.type, enabled=False):  # as the classifier computes the logits of images
                virtual = linear(self.virtual_outliers(), head.weight, head.bias)[:, : batch.num_known]
            terms["virtual_outliers"] = self.weight * started * self.energy_loss(logits, virtual)
        return terms

    def phase(self, epoch: int) -> bool:
        return epoch >= self.start

    def energy_loss(self, known: Tensor, virtual: Tensor) -> Tensor:
        """The loss of the logistic regression that separates images from virtual outliers by their energy.

        Args:
            known: (N, K), the logits of the images.
            virtual: (M, K), the logits of the virtual outliers.

        Returns:
            The loss, a scalar.
        """
        log_v = self.energy_weight.relu().clamp(min=1e-30).log()
        energy = (torch.cat([known, virtual]) + log_v).logsumexp(1, keepdim=True)
        is_image = torch.zeros(len(energy), dtype=torch.int64, device=energy.device)
        is_image[: len(known)] = 1
        return cross_entropy(energy * self.logistic.weight.T + self.logistic.bias, is_image)  # not autocast

    @torch.no_grad()
    def enqueue(self, features: Tensor, y: Tensor) -> None:
        """Put each feature into the queue of its class; the oldest one there is overwritten.

        Args:
            features: (N, D), the features of a batch.
            y: (N,), their classes.

        Raises:
            ValueError: If the batch is larger than a queue.
        """
        length = self.queues.shape[1]
        if len(y) > length:
            raise ValueError(f"a batch of {len(y)} does not fit in queues of {length}; set queue={len(y)} or more")
        is_of = nn.functional.one_hot(y, len(self.seen))
        before = (is_of.cumsum(0) - is_of).gather(1, y[:, None]).squeeze(1)  # of the same class, earlier in the batch
        self.queues[y, (self.seen[y] + before) % length] = features.to(self.queues)
        self.seen += is_of.sum(0)

    @torch.no_grad()
    def virtual_outliers(self) -> Tensor:
        """Draw virtual outliers from the features in the queues.

        A sample is mean + L e with e standard normal; the longer e is, the less likely is the sample. Length and
        direction of e are independent, so it is enough to draw the lengths of all samples, and directions for the
        longest.

        Returns:
            (K * select, D), features. A class without features repeats the virtual outliers of the class with most.
        """
        with torch.autocast(self.queues.device.type, enabled=False):
            return self._draw()

    def _draw(self) -> Tensor:
        """The virtual outliers, without autocast."""
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
        fallback = draws.index_select(0, count.argmax(0, keepdim=True))
        return torch.where((count > 0)[:, None, None], draws, fallback).flatten(0, 1)
