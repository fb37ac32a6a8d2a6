"""Residual networks (He et al. 2016): ResNet-18 for 32x32 images as in OpenOOD, ResNet-18 and ResNet-50 for ImageNet.

Parameters have the same names as in torchvision, so its weights for ImageNet can be loaded.
"""

from __future__ import annotations

from torch import Tensor, nn

from moon.fast import norm, norm_relu, second_use


class Projection(nn.Sequential):
    """The shortcut of a block whose input and output shapes differ: a 1x1 convolution with BatchNorm."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, input: Tensor) -> Tensor:
        convolution, layer = self
        assert isinstance(layer, nn.BatchNorm2d)
        return norm(layer, convolution(input))


def _shortcut(inputs: int, outputs: int, stride: int) -> Projection | None:
    """The projection where the shape changes; None where the shortcut is the identity."""
    return None if stride == 1 and inputs == outputs else Projection(inputs, outputs, stride)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = norm_relu(self.bn1, self.conv1(x))
        shortcut = second_use(x) if self.downsample is None else self.downsample(second_use(x))
        return norm_relu(self.bn2, self.conv2(out), shortcut)


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 (which has the stride) and a 1x1 convolution, and a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = norm_relu(self.bn1, self.conv1(x))
        out = norm_relu(self.bn2, self.conv2(out))
        shortcut = second_use(x) if self.downsample is None else self.downsample(second_use(x))
        return norm_relu(self.bn3, self.conv3(out), shortcut)


def _stage(
    block: type[BasicBlock] | type[Bottleneck], depth: int, inputs: int, width: int, stride: int
) -> nn.Sequential:
    """`depth` blocks of the same width; the first one has the stride."""
    rest = [block(width * block.expansion, width, 1) for _ in range(depth - 1)]
    return nn.Sequential(block(inputs, width, stride), *rest)


def _channels(width: float) -> tuple[int, int, int, int]:
    """The channels of the four stages; the stem has those of the first."""
    if width <= 0 or 64 * width % 8:
        raise ValueError(
            f"width={width:g} gives {64 * width:g} channels in the first stage, which must be a multiple of 8; use a "
            "multiple of 0.125, such as 0.5, 1.5 or 2"
        )
    return int(64 * width), int(128 * width), int(256 * width), int(512 * width)


class ResNet(nn.Module):
    """A stem, four stages of blocks, global average pooling and a linear classifier.

    For `small_images`, 32x32, the stem is a 3x3 convolution without pooling. `width` is a factor of all numbers of
    channels, which must be multiples of 8 (otherwise a ValueError).
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        num_classes: int,
        in_channels: int,
        small_images: bool,
        width: float = 1.0,
    ) -> None:
        super().__init__()
        first, second, third, fourth = _channels(width)
        if small_images:
            self.conv1 = nn.Conv2d(in_channels, first, 3, 1, 1, bias=False)
            self.maxpool = nn.Identity()
        else:
            self.conv1 = nn.Conv2d(in_channels, first, 7, 2, 3, bias=False)
            self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.bn1 = nn.BatchNorm2d(first)
        self.layer1 = _stage(block, depths[0], first, first, stride=1)
        self.layer2 = _stage(block, depths[1], first * block.expansion, second, stride=2)
        self.layer3 = _stage(block, depths[2], second * block.expansion, third, stride=2)
        self.layer4 = _stage(block, depths[3], third * block.expansion, fourth, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(fourth * block.expansion, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.avgpool(self.feature_maps(x)).flatten(1))

    def feature_maps(self, x: Tensor) -> Tensor:
        """The output of the last stage, (N, C, H, W)."""
        x = self.maxpool(norm_relu(self.bn1, self.conv1(x)))
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))


def resnet18(num_classes: int = 10, in_channels: int = 3, width: float = 1.0) -> ResNet:
    """ResNet-18 (He et al. 2016): for 32x32 images (3x3 stem, no pooling).

    Args:
        num_classes: K, the number of known classes. `open_head(resnet18(K))` has K+1 outputs.
        in_channels: The number of channels of the images.
        width: Multiplies all numbers of channels; a multiple of 1/8.

    Returns:
        The network.

    Raises:
        ValueError: `width` gives numbers of channels that are not multiples of 8.

    Example:
        >>> import torch
        >>> from moon import open_head, resnet18
        >>> with torch.device("meta"):  # without memory for the weights
        ...     model = open_head(resnet18(num_classes=10))
        >>> model.fc
        OpenHead(in_features=512, out_features=11, bias=True)
    """
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes, in_channels, small_images=True, width=width)


def resnet18_imagenet(num_classes: int = 1000, in_channels: int = 3, width: float = 1.0) -> ResNet:
    """ResNet-18 (He et al. 2016): for the images of ImageNet, and others of 64x64 or more (7x7 stem, pooling).

    `width` multiplies all numbers of channels, which must be multiples of 8.
    """
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes, in_channels, small_images=False, width=width)


def resnet50(num_classes: int = 1000, in_channels: int = 3, width: float = 1.0) -> ResNet:
    """ResNet-50 (He et al. 2016): for the images of ImageNet.

    Args:
        num_classes: K, the number of known classes. `open_head(resnet50(K))` has K+1 outputs.
        in_channels: The number of channels of the images.
        width: Multiplies all numbers of channels; a multiple of 1/8.

    Returns:
        The network.

    Raises:
        ValueError: `width` gives numbers of channels that are not multiples of 8.

    Example:
        >>> import torch
        >>> from moon import resnet50
        >>> with torch.device("meta"):  # without memory for the weights
        ...     model = resnet50(num_classes=1000)
        >>> model.fc
        Linear(in_features=2048, out_features=1000, bias=True)
    """
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes, in_channels, small_images=False, width=width)
