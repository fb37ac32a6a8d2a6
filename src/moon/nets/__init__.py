"""The networks of the paper. Any torch model whose classifier is a Linear layer can be used instead."""

from moon.nets.foreign import fused_blocks
from moon.nets.lenet import lenet, lenet_norm
from moon.nets.resnet import resnet18, resnet18_imagenet, resnet50
from moon.nets.resnet8 import resnet8

NETS = {
    "lenet": lenet,
    "lenet-norm": lenet_norm,
    "resnet8": resnet8,
    "resnet18": resnet18,
    "resnet18-imagenet": resnet18_imagenet,
    "resnet50": resnet50,
}

__all__ = ["NETS", "fused_blocks", "lenet", "lenet_norm", "resnet8", "resnet18", "resnet18_imagenet", "resnet50"]
