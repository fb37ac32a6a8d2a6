"""Nets of other packages by name: `timm:NAME`, `torchvision:NAME`, and OpenOOD's networks, `openood:NAME`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from torch import nn

from moon.nets import lenet, resnet18, resnet18_imagenet, resnet50
from moon.suggest import did_you_mean

PACKAGES = ("timm", "torchvision", "openood")

_EXTRA = "pip install 'moon-sparse[timm]'"
# OpenOOD's networks are ours under other names; below, how its checkpoints name the parameters.
_OPENOOD: dict[str, Callable[..., nn.Module]] = {
    "lenet": lenet,
    "resnet18_32x32": resnet18,
    "resnet18_224x224": resnet18_imagenet,
    "resnet50": resnet50,
}
_OPENOOD_KEYS = {
    "lenet": {
        "block1.0.": "body.0.", "block2.0.": "body.3.", "block3.0.": "body.6.", "classifier.0.": "body.10.",
        "classifier.2.": "fc.",
    },
    "resnet18_32x32": {".shortcut.": ".downsample."},
}  # fmt: skip


def net_of_package(name: str) -> Callable[..., nn.Module]:
    """Look up a net of another package: a function `make(num_classes, in_channels)`.

    Nothing is downloaded: weights are random until they are loaded from a file. A ValueError if the package is not
    installed, or has no such classifier of images.
    """
    package, _, model = name.partition(":")
    if package == "openood":
        if model not in _OPENOOD:
            raise ValueError(_unknown(name, model, list(_OPENOOD)))
        return _OPENOOD[model]
    return partial({"timm": _timm, "torchvision": _torchvision}[package], model, _checked(name, package, model))


def parameter_names(net: str) -> Callable[[str], str]:
    """A function that translates the names of parameters in a checkpoint of this net to those of our network."""
    package, _, model = net.partition(":")
    names = _OPENOOD_KEYS.get(model, {}) if package == "openood" else {}

    def translated(key: str) -> str:
        for theirs, ours in names.items():
            key = key.replace(theirs, ours)
        return key

    return translated


def _checked(name: str, package: str, model: str) -> Any:
    """Import the package and check that it has a model of this name."""
    found = _imported(name, package)
    if package == "timm":
        base = model.partition(".")[0]
        if not base or not found.is_model(base):
            raise ValueError(_unknown(name, base, found.list_models()))
        tags = [known.partition(".")[2] for known in found.list_models(f"{base}.*", pretrained=True)]
        tag = model.partition(".")[2]
        if tag and tag not in tags:
            raise ValueError(f"net '{name}': timm has no weights '{tag}'{did_you_mean(tag, tags)} of {base}")
        return found
    models = found.models
    if model not in (names := models.list_models(module=models)):
        raise ValueError(_unknown(name, model, names))
    return models


def _imported(name: str, package: str) -> Any:
    try:
        module = import_module(package)
        import_module("torchvision.models")  # timm needs torchvision, too
    except ModuleNotFoundError as error:
        raise ValueError(f"net '{name}' needs {error.name}, which is not installed: {_EXTRA}") from None
    except Exception as error:  # a torchvision for another torch raises a RuntimeError
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"net '{name}': importing {package} failed ({reason}); is it compatible with the installed torch?"
        ) from error
    return module


def _unknown(name: str, model: str, models: list[str]) -> str:
    package = name.partition(":")[0]
    listed = ", ".join(models) if len(models) < 10 else f"{len(models):,} models"
    return f"net '{name}': {package} has no image classifier '{model}'{did_you_mean(model, models)}; it has {listed}"


def _timm(model: str, timm: Any, num_classes: int, in_channels: int) -> nn.Module:
    return timm.create_model(model, pretrained=False, num_classes=num_classes, in_chans=in_channels)


def _torchvision(model: str, models: Any, num_classes: int, in_channels: int) -> nn.Module:
    settings = {"init_weights": True} if model in ("googlenet", "inception_v3") else {}  # they warn without it
    net = models.get_model(model, weights=None, num_classes=num_classes, **settings)
    if in_channels != 3:
        _replace_first_convolution(net, in_channels)
    return net


def _replace_first_convolution(net: nn.Module, in_channels: int) -> None:
    """Give a network another number of input channels, which torchvision's functions do not take."""
    first = next(module for module in net.modules() if isinstance(module, nn.Conv2d))
    outputs, _, *kernel = first.weight.shape
    first.in_channels, first.weight = in_channels, nn.Parameter(first.weight.new_empty(outputs, in_channels, *kernel))
    first.reset_parameters()
