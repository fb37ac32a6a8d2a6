"""LeNet-5 for images of 28x28 and a little more, with an 84-dimensional feature, as OpenOOD uses it on MNIST."""

from __future__ import annotations

from torch import Tensor, nn


class LeNet(nn.Module):
    """Three 5x5 convolutions (6, 16, 120 channels), a hidden layer of 84, a Linear classifier; ReLU throughout.

    `norm` puts a BatchNorm behind each convolution, without which very sparse ones often do not learn.
    """

    def __init__(self, num_classes: int, in_channels: int, norm: bool) -> None:
        super().__init__()

        def convolution(inputs: int, outputs: int, padding: int = 0) -> list[nn.Module]:
            layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, 5, padding=padding)]
            return [*layers, *([nn.BatchNorm2d(outputs)] if norm else []), nn.ReLU()]

        self.body = nn.Sequential(
            *convolution(in_channels, 6, padding=2),
            nn.MaxPool2d(2),
            *convolution(6, 16),
            nn.MaxPool2d(2),
            *convolution(16, 120),
            nn.AdaptiveAvgPool2d(1),  # the identity for 28x28
            nn.Flatten(),
            nn.Linear(120, 84),
            nn.ReLU(),
        )
        self.fc = nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x))


def lenet(num_classes: int = 10, in_channels: int = 1, norm: bool = False) -> LeNet:
    """LeNet-5 (LeCun et al. 1998): three convolutions, for 28x28 images; `open_head(lenet(K))` has K+1 outputs."""
    return LeNet(num_classes, in_channels, norm)


def lenet_norm(num_classes: int = 10, in_channels: int = 1) -> LeNet:
    """LeNet-5 with BatchNorm: the same with a norm behind each convolution, which learns when very sparse."""
    return LeNet(num_classes, in_channels, norm=True)
