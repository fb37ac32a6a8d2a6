"""Quantities that are computed from features once, and shared by all detectors that are fitted on them."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.weak import WeakTensorKeyDictionary

from moon.evidence.disk import chunks, mapped

_units: Any = WeakTensorKeyDictionary()  # by features: their version, a weak reference to the result, its version
_finite: Any = WeakTensorKeyDictionary()  # by tensors without NaN and infinity: their version


def unit_features(features: Tensor) -> Tensor:
    """Scale features (N, D) to length 1, on disk if they are.

    The same tensor is returned for the same features while it is referenced elsewhere.
    """
    version, reference, result = _units.get(features, (None, lambda: None, None))
    found = reference()
    if found is None or version != version_of(features) or result != version_of(found):
        found = mapped(normalize, features)
        _units[features] = version_of(features), weakref.ref(found), version_of(found)
    return found


def is_finite(tensor: Tensor) -> bool:
    """Return whether a tensor contains neither NaN nor infinity. A tensor that does not is checked only once."""
    version = version_of(tensor)
    if _finite.get(tensor) == version:
        return True
    found = all(bool(part.isfinite().all()) for (part,) in chunks(tensor))
    if found:
        _finite[tensor] = version
    return found


def version_of(tensor: Tensor) -> Any:
    """A number that differs after the tensor was changed in place; inference tensors always differ, to be safe."""
    return object() if tensor.is_inference() else tensor._version
