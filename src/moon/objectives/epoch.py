"""The epoch as objectives see it, in plain and in captured steps."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class DeviceEpoch:
    """The epoch of a captured step, as a tensor for the device and as an integer for Python code.

    A captured step is replayed in later epochs of the same phase. So what it computes must come from `value`, which
    changes from epoch to epoch; `host` only decides branches that `Objective.phase` separates.

    Args:
        value: The epoch, a scalar integer tensor on the device.
        host: The epoch in which the step was captured.

    Example:
        >>> import torch
        >>> from moon import CrossEntropy
        >>> from moon import DeviceEpoch
        >>> epoch = DeviceEpoch(torch.tensor(3), host=3)
        >>> CrossEntropy().has_started(epoch, first=2)
        tensor(True)
    """

    value: Tensor
    host: int


Epoch = int | Tensor | DeviceEpoch  # counted from 0


def epoch_number(epoch: Epoch) -> int | Tensor:
    """The epoch as a number to compute with: an integer, or a tensor on the device in a captured step.

    Args:
        epoch: The epoch that `Objective.terms` was given.

    Returns:
        The integer or the tensor.

    Example:
        >>> import torch
        >>> from moon import DeviceEpoch, epoch_number
        >>> epoch_number(3), epoch_number(DeviceEpoch(torch.tensor(3), host=3))
        (3, tensor(3))
    """
    return epoch.value if isinstance(epoch, DeviceEpoch) else epoch
