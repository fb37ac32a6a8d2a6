"""MobileNetV2 (Sandler et al. 2018), to time a network with depthwise convolutions. It is not meant to be trained."""

from __future__ import annotations

from torch import Tensor, nn

# Expansion, output channels, number of blocks, stride of the first one: Table 2 of the paper.
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _convolution(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(outputs), nn.ReLU6(inplace=True)]


class InvertedResidual(nn.Module):
    """A wider 1x1 convolution, a depthwise one, and a narrow 1x1 convolution without activation."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        self.adds = stride == 1 and inputs == outputs
        self.layers = nn.Sequential(
            *(_convolution(inputs, width) if expansion > 1 else []),
            *_convolution(width, width, kernel=3, stride=stride, groups=width),
            *_convolution(width, outputs)[:2],
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.adds else self.layers(x)


class MobileNetV2(nn.Module):
    """A stem, inverted residuals, a wide 1x1 convolution, global average pooling and a linear classifier."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        layers, width = _convolution(in_channels, 32, kernel=3, stride=2), 32
        for expansion, outputs, depth, stride in _STAGES:
            for block in range(depth):
                layers.append(InvertedResidual(width, outputs, stride if block == 0 else 1, expansion))
                width = outputs
        self.features = nn.Sequential(*layers, *_convolution(width, 1280))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(1280, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.pool(self.features(x)).flatten(1))


def mobilenet_v2(num_classes: int = 1000, in_channels: int = 3) -> MobileNetV2:
    """MobileNetV2 of width 1, for 224x224 images; it has 3.5 million weights for 1000 classes."""
    return MobileNetV2(num_classes, in_channels)
