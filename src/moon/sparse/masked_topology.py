"""Topologies with masks: the invariant that the masks guarantee, and their state."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from moon.sparse.summary import share_of_zeros
from moon.sparse.topology import Topology

_log = logging.getLogger(__name__)


class MaskedTopology(Topology):
    """Base class of topologies with masks. `SparseTopology` chooses the masks; this class applies them.

    Invariant: outside the masks a weight is exactly +0.0, and so is every optimizer state of its shape, whatever the
    gradient, momentum or weight decay did in the step. So new weights start from zero, and a weight that is dropped and
    grown in the same step keeps its value and optimizer state.

    A subclass sets `optimizer` and `weights` in its constructor and then calls `_start`.
    """

    counts: dict[str, int]
    _pruned: dict[str, Tensor]  # the weights that a step sets to zero; dense layers have none
    _grown: Tensor  # the number of weights grown so far

    def _start(self, masks: dict[str, Tensor], counts: dict[str, int], sparse: Collection[str]) -> None:
        """Set the first masks. `sparse` names the weights that are, or become, sparse; the others stay dense."""
        self.masks, self.counts = masks, counts
        self._pruned = {name: ~mask for name, mask in masks.items() if name in sparse}
        device = next(iter(masks.values())).device
        self._grown = torch.zeros((), dtype=torch.int64, device=device)
        self._enforce()

    def _replace(self, name: str, new: Tensor, count: int) -> None:
        """Replace a mask by a new one of `count` weights. `_enforce` has to follow."""
        mask = self.masks[name]
        self._grown += (new & ~mask).sum()
        mask.copy_(new)
        torch.logical_not(mask, out=self._pruned[name])
        self.counts[name] = count

    @torch.no_grad()
    def _enforce(self) -> None:
        """Restore the invariant. Filling, unlike multiplying by the mask, gives +0.0 and removes NaN."""
        for name, pruned in self._pruned.items():
            weight = self.weights[name]
            weight.masked_fill_(pruned, 0.0)
            for value in self.optimizer.state.get(weight, {}).values():
                if isinstance(value, Tensor) and value.shape == weight.shape:
                    value.masked_fill_(pruned, 0.0)

    def turnover(self) -> float:
        return int(self._grown) / sum(self.counts.values())

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"grown": self._grown, "masks": dict(self.masks)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for name, mask in self.masks.items():
            if name not in state["masks"] or state["masks"][name].shape != mask.shape:
                raise ValueError(
                    f"the saved masks have no '{name}' of shape {tuple(mask.shape)}; "
                    "was the state saved for another model?"
                )
            if name not in self._pruned and not state["masks"][name].all():
                raise ValueError(f"'{name}' has a saved mask, but is dense here; give the same allocation and `dense`")
            mask.copy_(state["masks"][name])
            self.counts[name] = int(mask.sum())
            if name in self._pruned:
                self._pruned[name].copy_(~mask)
        self._grown.copy_(state["grown"])
        self._enforce()
        zeros = share_of_zeros(self.weights[name][mask] for name, mask in self.masks.items())
        if zeros > 0.5:  # a change of the masks leaves fewer
            _log.warning(
                "%.0f%% of the weights inside the saved masks are zero, so the model does not have the weights that "
                "were saved with them; load these now (model.load_state_dict)",
                100 * zeros,
            )
