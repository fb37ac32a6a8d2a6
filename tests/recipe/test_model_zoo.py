"""Nets of other packages by name, where the packages are missing; tests/cross_check has them."""

import sys

import pytest

from moon.data import BENCHMARKS
from moon.nets.lenet import LeNet
from moon.nets.resnet import ResNet
from moon.recipe import make_recipe
from moon.recipe.registry import pick


@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:resnet18"])
def test_a_missing_package_is_named_with_its_extra(name, monkeypatch):
    package = name.partition(":")[0]
    monkeypatch.setitem(sys.modules, package, None)
    message = rf"net '{name}' needs {package}, which is not installed: pip install 'moon-sparse\[timm\]'"
    with pytest.raises(ValueError, match=message):
        make_recipe(BENCHMARKS["cifar10"], net=name)


def test_openoods_networks_are_ours():
    assert isinstance(pick("net", "openood:lenet")(num_classes=3, in_channels=3), LeNet)
    assert isinstance(pick("net", "openood:resnet18_32x32")(num_classes=3, in_channels=3), ResNet)
    with pytest.raises(ValueError, match=r"openood has no .* 'resnet18' \(.*\); it has lenet, resnet18_32x32, "):
        pick("net", "openood:resnet18")
