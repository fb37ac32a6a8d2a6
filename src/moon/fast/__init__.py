"""The same step in fewer passes over memory: flat buffers, fused BatchNorm, work beside the critical path."""

from moon.fast.flat import Flat, active, plain
from moon.fast.fuse import fused
from moon.fast.norm import norm_only, norm_relu

__all__ = ["Flat", "active", "fused", "norm_only", "norm_relu", "plain"]
