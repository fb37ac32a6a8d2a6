"""The same computations, faster: training steps on flat buffers on a GPU.

Nothing here imports another part of `moon`.
"""

from moon.fast.batch_norm import norm, norm_relu, second_use
from moon.fast.buffers import FlatBuffers, active_buffers, without_buffers
from moon.fast.compiling import dry_run, kernel_search
from moon.fast.fusing import fused
from moon.fast.gradients import StepGradients
from moon.fast.inference import inference_copy
from moon.fast.layers import layers_on_buffers
from moon.fast.losses import move_average, observe_batch, schedule_weight, unknown_aware_loss
from moon.fast.optimizer_check import optimizer_obstacle
from moon.fast.selection import top_masks
from moon.fast.sgd import SGD
from moon.fast.update import sgd_update, sgd_update_overlapped, write_addresses

__all__ = [
    "SGD", "FlatBuffers", "StepGradients", "active_buffers", "dry_run", "fused", "inference_copy", "kernel_search",
    "layers_on_buffers",
    "move_average", "norm", "norm_relu", "observe_batch", "optimizer_obstacle", "schedule_weight", "second_use",
    "sgd_update", "sgd_update_overlapped", "top_masks", "unknown_aware_loss", "without_buffers", "write_addresses",
]  # fmt: skip
