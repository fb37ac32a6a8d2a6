"""What the training loop requires of the training data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from torch import Tensor


class EpochBatches(Protocol):
    """The training data: `len(batches)` batches per epoch.

    If several processes train as one, batches with an attribute `divided = True` yield only the part of this process.
    """

    def __len__(self) -> int: ...

    @property
    def sizes(self) -> list[int]:
        """The number of images of each batch, over all processes; needed only if `divided`."""
        ...

    def epoch(self, epoch: int) -> Iterable[tuple[Tensor, Tensor]]:
        """The batches (x, y) of an epoch; they must depend on the epoch only."""
        ...
