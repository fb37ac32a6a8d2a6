"""Which optimizers the flat buffers support."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from moon.fast.sgd import SGD


def optimizer_obstacle(optimizer: Optimizer) -> str | None:
    """Return why the parameters of an optimizer cannot be in flat buffers, or None if they can."""
    if type(optimizer) not in (torch.optim.SGD, SGD) or len(optimizer.param_groups) != 1:
        return "only SGD with one parameter group is supported"
    group = optimizer.param_groups[0]
    if group.get("lr_factor", 1.0) != 1.0:
        return "a parameter group with a learning rate of its own is not supported"
    parameters = [p for p in group["params"] if p.requires_grad]
    if group["dampening"] or group["maximize"] or isinstance(group["lr"], Tensor):
        return "SGD with dampening, maximize or a tensor learning rate is not supported"
    if len({(p.device, p.dtype) for p in parameters}) != 1:
        return "the parameters differ in dtype or device"
    if any(1 + sum((n - 1) * s for n, s in zip(p.shape, p.stride(), strict=True)) != p.numel() for p in parameters):
        return "a parameter has gaps in memory"
    if parameters[0].is_cuda and parameters[0].dtype != torch.float32:
        return f"the parameters are {parameters[0].dtype}, not float32"
    hooks = [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]
    if not all(getattr(hook, "capturable", False) for hook in hooks):
        return "the optimizer has hooks"
    if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters):
        return "a parameter has hooks"
    return None
