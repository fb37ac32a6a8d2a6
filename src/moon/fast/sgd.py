"""SGD that does not import torch's compiler, which takes seconds at the start of a process."""

from __future__ import annotations

from inspect import unwrap

import torch


class SGD(torch.optim.SGD):
    """`torch.optim.SGD` without the import of torch's compiler.

    The methods below are the same functions without the decorator that hides them from `torch.compile`. On its first
    call the decorator imports the compiler, even if nothing is ever compiled. `step` still does so; captured training
    has an update of its own.
    """

    add_param_group = unwrap(torch.optim.SGD.add_param_group)
    zero_grad = unwrap(torch.optim.SGD.zero_grad)
    state_dict = unwrap(torch.optim.SGD.state_dict)
    load_state_dict = unwrap(torch.optim.SGD.load_state_dict)
