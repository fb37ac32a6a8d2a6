"""Networks of other packages whose BatchNorm and ReLU layers are computed as in ours.

The residual blocks of timm and torchvision have the layers of ours under the same names, so our forward passes apply.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from moon.fast import norm, norm_relu
from moon.nets.resnet import BasicBlock, Bottleneck, ResNet

_PACKAGES = ("timm.models.resnet", "torchvision.models.resnet")
_BLOCKS: dict[str, Callable[..., Tensor]] = {"BasicBlock": BasicBlock.forward, "Bottleneck": Bottleneck.forward}
_LAYERS = {"conv1", "bn1", "conv2", "bn2", "conv3", "bn3", "downsample"}


@contextmanager
def fused_blocks(model: nn.Module) -> Iterator[None]:
    """Context in which BatchNorm, the residual sum and ReLU are one operation, as in our networks, see `norm_relu`.

    This concerns the residual networks of timm and torchvision, and BatchNorm layers in any `nn.Sequential`. Blocks
    with other layers between these, such as attention or stochastic depth, are not changed, nor are other modules.
    """
    found = {module: forward for module in model.modules() if (forward := _fused_forward(module)) is not None}
    try:
        for module, forward in found.items():
            module.forward = partial(forward, module)
        yield
    finally:
        for module in found:
            vars(module).pop("forward", None)


def _fused_forward(module: nn.Module) -> Callable[..., Tensor] | None:
    """The replacement of the module's forward pass; None if it keeps its own."""
    kind = type(module)
    if "forward" in vars(module):
        return None
    if isinstance(module, nn.Sequential) and kind.forward is nn.Sequential.forward:
        return _sequence if any(type(layer) is nn.BatchNorm2d for layer in module) else None
    if kind.__module__ not in _PACKAGES:
        return None
    if kind.__name__ in _BLOCKS:
        return _BLOCKS[kind.__name__] if _has_only_our_layers(module) else None
    return _resnet if kind.__name__ == "ResNet" and _has_our_stem(module) else None


def _has_only_our_layers(block: nn.Module) -> bool:
    """Whether a residual block consists of convolutions, BatchNorm, ReLU and a shortcut."""
    return all(
        type(layer) is nn.BatchNorm2d
        if name.startswith("bn")
        else name in _LAYERS or type(layer) in (nn.ReLU, nn.Identity)
        for name, layer in block.named_children()
    )


def _has_our_stem(net: Any) -> bool:
    """Whether a residual network begins with a convolution, BatchNorm and ReLU, and keeps all feature maps."""
    activation = getattr(net, "act1", None) or getattr(net, "relu", None)
    is_usual = type(net.bn1) is nn.BatchNorm2d and type(activation) is nn.ReLU
    return is_usual and not getattr(net, "grad_checkpointing", False)


def _resnet(net: Any, x: Tensor) -> Tensor:
    """The forward pass of a residual network of timm or torchvision."""
    maps = ResNet.feature_maps(net, x)
    return net.forward_head(maps) if hasattr(net, "forward_head") else net.fc(net.avgpool(maps).flatten(1))


def _sequence(layers: nn.Sequential, x: Tensor) -> Tensor:
    """The forward pass of layers in sequence, with BatchNorm and the ReLU after it as one operation."""
    rest = deque(layers)
    while rest:
        layer = rest.popleft()
        if type(layer) is not nn.BatchNorm2d:
            x = layer(x)
        elif rest and type(rest[0]) is nn.ReLU:
            rest.popleft()
            x = norm_relu(layer, x)
        else:
            x = norm(layer, x)
    return x
