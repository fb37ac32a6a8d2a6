"""The same step in fewer passes over memory: flat buffers, fused BatchNorm, work beside the critical path."""

from moon.fast.buffers import Flat, Left, active, plain
from moon.fast.compiled import fused
from moon.fast.layers import on_buffers
from moon.fast.norm import again, norm_only, norm_relu
from moon.fast.select import top
from moon.fast.sparse_inference import conv_norm, conv_norm_relu, sparse_reading

__all__ = [
    "Flat", "Left", "active", "again", "conv_norm", "conv_norm_relu", "fused", "norm_only", "norm_relu", "on_buffers",
    "plain", "sparse_reading", "top",
]  # fmt: skip
