"""Check the scores by which a topology drops and grows weights."""

from __future__ import annotations

from torch import Tensor


def checked(kind: str, score: Tensor, topology: type, name: str, weight: Tensor, grad: Tensor, mask: Tensor) -> Tensor:
    """Return a score ("keep" or "grow") of the weights of a layer; raise a ValueError if it is not valid.

    It must be a tensor of the weight's shape, without NaN, and a keep score at least 0, where it is used. Values are
    only checked for topologies of other packages, because this waits for the device, and only if weights and gradients
    are finite: otherwise training has diverged, which is reported as such.
    """
    what = f"{topology.__name__}.{kind}_score of '{name}'"
    if not isinstance(score, Tensor) or score.shape != weight.shape:  # a smaller one would be broadcast
        found = f"shape {tuple(score.shape)}" if isinstance(score, Tensor) else type(score).__name__
        raise ValueError(f"{what} must be a tensor of the weight's shape {tuple(weight.shape)}, not {found}")
    if topology.__module__.startswith("moon.") or not bool(weight.isfinite().all() & grad.isfinite().all()):
        return score
    used = score[mask] if kind == "keep" else score  # a weight that is dropped may grow again
    if bool(used.isnan().any()):
        raise ValueError(f"{what} is NaN for some weights, though weights and gradients are finite; is it 0 / 0?")
    if kind == "keep" and bool((used < 0).any()):
        raise ValueError(f"{what} is below 0 for some weights; it must be at least 0")
    return score
