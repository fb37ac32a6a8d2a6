"""Where the gradients of a training step on flat buffers are."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass
class StepGradients:
    """Where the gradients of one step are.

    The weight gradient of a convolution or linear layer stays where it was computed, and the update reads it there:
    copying it into the flat buffer would need another pass over memory.

    Attributes:
        separate: The gradients that are not in the flat buffer, by parameter.
        missing: The parameters that have no gradient in this step. As in `torch.optim`, the update skips them.
        addresses: For each block of the flat buffers the memory address of its gradient; 0 if the gradient is in the
            flat buffer, -1 if it is missing.
    """

    separate: dict[nn.Parameter, Tensor]
    missing: list[nn.Parameter]
    addresses: Tensor
