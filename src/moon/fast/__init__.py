"""The same step in fewer passes over memory: flat buffers, fused BatchNorm, work beside the critical path."""

from moon.fast.flat import Flat, Left, active, plain
from moon.fast.fuse import fused
from moon.fast.layers import on_buffers
from moon.fast.norm import again, norm_only, norm_relu
from moon.fast.reading import conv_norm, conv_norm_relu, sparse_reading
from moon.fast.select import top

__all__ = [
    "Flat", "Left", "active", "again", "conv_norm", "conv_norm_relu", "fused", "norm_only", "norm_relu", "on_buffers",
    "plain", "sparse_reading", "top",
]  # fmt: skip
