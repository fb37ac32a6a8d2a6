"""Groups of rows that are rewired separately, so that the unknown output of an `OpenHead` keeps its weights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from moon.evidence import OpenHead

_log = logging.getLogger(__name__)


class RowGroups:
    """Divides each weight into groups of rows, and the number of its non-zero weights among them.

    The rows of the known classes and the row of the unknown output of an `OpenHead` are a group each; any other weight
    is one group. The unknown output has small gradients, since its probability is small, and weight decay makes its
    weights small. If they competed with those of the known classes, it would lose them and none would grow back.
    """

    def __init__(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        known = {id(module.weight): module.num_known for module in model.modules() if isinstance(module, OpenHead)}
        self._heads = {n: (known[id(w)], *w.shape) for n, w in weights.items() if id(w) in known}

    def divide(self, name: str, count: int) -> list[tuple[slice, int]]:
        """Divide the `count` non-zero weights of a layer among its groups: the rows of each, and its number of weights.

        The unknown output is last and has all of its weights, unless that is more than a quarter of `count`. Then it
        has a quarter, or its share, `count` divided by the number of outputs, if that is more; at least one.
        """
        if name not in self._heads:
            return [(slice(None), count)]
        known, outputs, inputs = self._heads[name]
        share = round(count * (outputs - known) / outputs)
        unknown = min((outputs - known) * inputs, max(1, share, count // 4))
        return [(slice(known), count - unknown), (slice(known, None), unknown)]

    def check(self, budget: Callable[[str], int]) -> None:
        """Log a warning if an unknown output cannot keep all of its weights."""
        for name, (known, outputs, inputs) in self._heads.items():
            count, size = budget(name), (outputs - known) * inputs
            kept = self.divide(name, count)[-1][1]
            if kept < size:
                _log.warning(
                    "the unknown output of '%s' keeps %d of its %d weights, because the layer keeps only %d; for all "
                    "of them choose a lower sparsity, another allocation, or name the weight in `dense`",
                    *(name, kept, size, count),
                )


def join(names: Sequence[str], masks: Iterable[Tensor]) -> dict[str, Tensor]:
    """Join the masks of groups of rows to the mask of each weight. Groups of the same weight follow each other."""
    groups: dict[str, list[Tensor]] = {}
    for name, mask in zip(names, masks, strict=True):
        groups.setdefault(name, []).append(mask)
    return {name: parts[0] if len(parts) == 1 else torch.cat(parts) for name, parts in groups.items()}
