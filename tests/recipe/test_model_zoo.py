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


def test_a_package_that_cannot_be_imported_is_explained(monkeypatch):
    """A torchvision that was built for another torch raises a RuntimeError."""

    def fail(name):
        raise RuntimeError("operator torchvision::nms does not exist\nsecond line")

    monkeypatch.setattr("moon.recipe.model_zoo.import_module", fail)
    message = r"importing torchvision failed \(RuntimeError: operator torchvision::nms does not exist\); is it "
    with pytest.raises(ValueError, match=message):
        pick("net", "torchvision:resnet18")


def test_openoods_networks_are_ours():
    assert isinstance(pick("net", "openood:lenet")(num_classes=3, in_channels=3), LeNet)
    assert isinstance(pick("net", "openood:resnet18_32x32")(num_classes=3, in_channels=3), ResNet)
    with pytest.raises(ValueError, match=r"openood has no .* 'resnet18' \(.*\); it has lenet, resnet18_32x32, "):
        pick("net", "openood:resnet18")


def test_other_names_are_still_import_paths():
    with pytest.raises(ValueError, match="there is no module 'no_such_package'"):
        pick("net", "no_such_package:make")
    with pytest.raises(ValueError, match=r"timm:NAME, torchvision:NAME, openood:NAME, or an import path"):
        pick("net", "resnet19")
