import copy

import pytest
import torch
from torch import nn

from moon import Evidence, OpenHead, RotationHead, lenet, look, open_head, read, rotation_head
from moon.evidence import classifier_name, find_rotation_head, rotated


def test_images_are_turned_counter_clockwise():
    x = torch.arange(4.0).view(1, 1, 2, 2)  # 0 1 / 2 3
    assert [image.flatten().tolist() for image in rotated(x)] == [[1, 3, 0, 2], [3, 2, 1, 0], [2, 0, 3, 1]]
    assert all(image.is_contiguous() for image in rotated(torch.zeros(2, 3, 4, 4)))
    for shape in ((1, 2, 2), (1, 1, 2, 3)):
        with pytest.raises(ValueError, match="images to rotate must have the shape"):
            rotated(torch.zeros(shape))


@pytest.mark.parametrize("make", [lambda: lenet(10), lambda: open_head(lenet(10)), lambda: nn.Linear(5, 3)])
def test_the_head_is_beside_the_classifier(make):
    model = make()
    name, names = classifier_name(model), list(model.state_dict())
    assert rotation_head(model) is model
    assert classifier_name(model) == name
    assert classifier_name(copy.deepcopy(model)) == name
    prefix = f"{name}." if name else ""
    added = [key for key in model.state_dict() if key not in names]
    assert added == [f"{prefix}rotation.weight", f"{prefix}rotation.bias"]
    head = model.get_submodule(name)
    assert find_rotation_head(model) is head.rotation
    assert head.rotation.in_features == head.in_features
    with pytest.raises(ValueError, match="already has a rotation head"):
        rotation_head(model)


def test_open_head_keeps_the_rotation_head():
    model = rotation_head(lenet(10))
    head = model.fc.rotation
    open_head(model)
    assert isinstance(model.fc, OpenHead)
    assert model.fc.rotation is head
    assert look(model, torch.zeros(2, 1, 28, 28)).num_known == 10


def test_the_head_of_a_model_that_cannot_be_traced_is_found_by_name():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(16, 3), nn.Linear(16, 3)

        def forward(self, x):
            return self.second(x.flatten(1)) if x.sum() > 0 else self.second(2 * x.flatten(1))

    model = rotation_head(Net(), "second")
    assert isinstance(model.second.rotation, RotationHead)
    assert classifier_name(model) == "second"


def test_evidence_of_all_rotations(small_net):
    model = rotation_head(open_head(small_net()))
    x, y = torch.randn(10, 1, 8, 8), torch.arange(10) % 4
    found = read(model, [(x[:7], y[:7]), (x[7:], y[7:])], rotate=True)
    model.eval()
    expected = torch.stack([model[6].rotation(model[:6](x.rot90(turns, (2, 3)))) for turns in range(4)], 1)
    torch.testing.assert_close(found.rotations, expected)
    torch.testing.assert_close(found.logits, model(x))
    assert read(model, [x]).rotations is None
    flipped = read(model, [x], lambda _, x: x.flip(3), rotate=True)  # turned after the change
    expected = model[6].rotation(model[:6](x.flip(3).rot90(1, (2, 3))))
    torch.testing.assert_close(flipped.rotations[:, 1], expected)
    mean = Evidence.mean([found, flipped])
    torch.testing.assert_close(mean.rotations, (found.rotations + flipped.rotations) / 2)
    assert Evidence.mean([read(model, [x])] * 2).rotations is None
    assert found.to(torch.float64).rotations.dtype == torch.float64
    with pytest.raises(ValueError, match="3 rotations for 2 logits"):
        Evidence(torch.zeros(2, 3), torch.zeros(2, 5), 3, rotations=torch.zeros(3, 4, 4))
    with pytest.raises(ValueError, match=r"rotate changes one floating-point tensor, .* \['a', 'b'\]"):
        read(model, [{"a": x, "b": x}], rotate=True)


def test_the_rotation_head_is_not_autocast(small_net):
    model = rotation_head(small_net())
    with torch.autocast("cpu", torch.bfloat16):
        assert model[6].rotation.predict(torch.zeros(2, 16, dtype=torch.bfloat16)).dtype == torch.float32
