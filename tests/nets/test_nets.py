import pytest
import torch

from moon import lenet, look, open_head, resnet18, resnet50
from moon.nets import NETS, resnet18_imagenet


@pytest.mark.parametrize(
    ("make", "shape", "features", "parameters"),
    [
        (lambda: resnet18(10), (2, 3, 32, 32), 512, 11_173_962),
        (lambda: lenet(10), (2, 1, 28, 28), 84, 61_706),
        (lambda: lenet(10, in_channels=3), (2, 3, 32, 32), 84, 62_006),
    ],
)
def test_output_shapes_and_numbers_of_parameters(make, shape, features, parameters):
    model = make()
    assert sum(p.numel() for p in model.parameters()) == parameters
    e = look(model, torch.randn(shape))
    assert e.logits.shape == (2, 10)
    assert e.features.shape == (2, features)
    assert look(open_head(model), torch.randn(shape)).logits.shape == (2, 11)


def test_resnet50_has_the_parameters_of_torchvisions():
    model = resnet50()
    assert sum(p.numel() for p in model.parameters()) == 25_557_032
    assert "layer1.0.downsample.0.weight" in model.state_dict()
    assert look(model.eval(), torch.randn(1, 3, 64, 64)).features.shape == (1, 2048)


@pytest.mark.parametrize("name", NETS)
def test_every_net_has_num_classes_and_in_channels(name):
    model = NETS[name](num_classes=7, in_channels=1).eval()
    assert model(torch.randn(1, 1, 32, 32)).shape == (1, 7)


def test_resnet18_for_large_images_reduces_the_resolution_first():
    model = resnet18_imagenet(10, in_channels=1)
    assert sum(p.numel() for p in resnet18_imagenet().parameters()) == 11_689_512  # as torchvision's
    assert model.maxpool(model.conv1(torch.zeros(1, 1, 64, 64))).shape == (1, 64, 16, 16)
    assert look(model.eval(), torch.randn(1, 1, 64, 64)).features.shape == (1, 512)
