"""LeNet-5 for small grey or colour images (28x28 or a little larger), with 84 features, as OpenOOD uses it on MNIST."""

from __future__ import annotations

from torch import Tensor, nn


class LeNet(nn.Module):
    """Three 5x5 convolutions (6, 16 and 120 channels), a hidden layer of 84 and a linear classifier, with ReLU.

    With `norm`, a BatchNorm layer follows each convolution.
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
            nn.AdaptiveAvgPool2d(1),  # the identity for 28x28 images
            nn.Flatten(),
            nn.Linear(120, 84),
            nn.ReLU(),
        )
        self.fc = nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x))


def lenet(num_classes: int = 10, in_channels: int = 1, norm: bool = False) -> LeNet:
    """LeNet-5 (LeCun et al. 1998): three convolutions, for 28x28 images.

    Args:
        num_classes: K, the number of known classes. `open_head(lenet(K))` has K+1 outputs.
        in_channels: The number of channels of the images.
        norm: Whether to add a BatchNorm layer after each convolution; without it, very sparse networks often fail to
            learn.

    Returns:
        The network.

    Example:
        >>> import torch
        >>> from moon import lenet
        >>> lenet(10)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    return LeNet(num_classes, in_channels, norm)


def lenet_norm(num_classes: int = 10, in_channels: int = 1) -> LeNet:
    """LeNet-5 with BatchNorm: `lenet` with a BatchNorm layer after each convolution, for very sparse networks."""
    return LeNet(num_classes, in_channels, norm=True)
