"""A small residual network for few small images: three blocks behind a stem that halves the resolution."""

from __future__ import annotations

from torch import Tensor, nn

from moon.fast import norm_relu
from moon.nets.resnet import BasicBlock


class ResNet8(nn.Module):
    """A 3x3 convolution with stride 2, three blocks of two convolutions, global average pooling, a classifier."""

    def __init__(self, num_classes: int, in_channels: int, width: float) -> None:
        super().__init__()
        if width <= 0 or 2 * width % 1:
            raise ValueError(f"width={width:g} must be a multiple of 0.5, so that channels are multiples of 8")
        first, second, third = (int(channels * width) for channels in (16, 32, 64))
        self.conv1 = nn.Conv2d(in_channels, first, 3, 2, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(first)
        self.layer1 = BasicBlock(first, first, stride=1)
        self.layer2 = BasicBlock(first, second, stride=2)
        self.layer3 = BasicBlock(second, third, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(third, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = norm_relu(self.bn1, self.conv1(x))
        return self.fc(self.avgpool(self.layer3(self.layer2(self.layer1(x)))).flatten(1))


def resnet8(num_classes: int = 10, in_channels: int = 3, width: float = 1.0) -> ResNet8:
    """ResNet-8 (He et al. 2016): three narrow blocks, for few small images.

    It has 78,000 weights and takes 3 million multiplications for a 32x32 image. `width` multiplies the numbers of
    channels (16, 32 and 64); a multiple of 0.5.
    """
    return ResNet8(num_classes, in_channels, width)
