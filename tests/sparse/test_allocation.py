from math import prod

import pytest

from moon import erk, open_head, resnet18, uniform
from moon.sparse import sparse_weights


def shapes(outputs: int) -> dict[str, tuple[int, ...]]:
    model = resnet18(outputs)
    return {name: tuple(weight.shape) for name, weight in sparse_weights(model).items()}


@pytest.mark.parametrize(
    ("outputs", "count"), [(10, 11_164_352), (11, 11_164_864), (100, 11_210_432), (101, 11_210_944)]
)
def test_number_of_weights_that_can_be_sparse_in_resnet18(outputs, count):
    assert sum(prod(shape) for shape in shapes(outputs).values()) == count


def test_an_open_head_can_be_sparse_and_norms_and_biases_cannot():
    names = sparse_weights(open_head(resnet18(10)))
    assert names["fc.weight"].shape == (11, 512)
    assert not any("bn" in name or "bias" in name or "downsample.1" in name for name in names)


# Densities at 80, 90, 95 and 99% sparsity with 11 outputs, computed independently, truncated to four digits.
VECTORS = {
    "layer1.0.conv1.weight": (1, 0.4795, 0.2325, 0.0440),
    "layer2.0.conv1.weight": (0.7537, 0.3542, 0.1718, 0.0325),
    "layer2.0.conv2.weight": (0.4986, 0.2344, 0.1137, 0.0215),
    "layer3.0.conv1.weight": (0.3711, 0.1744, 0.0846, 0.0160),
    "layer3.1.conv2.weight": (0.2465, 0.1158, 0.0562, 0.0106),
    "layer4.0.conv1.weight": (0.1841, 0.0865, 0.0420, 0.0079),
    "layer4.1.conv2.weight": (0.1225, 0.0576, 0.0279, 0.0053),
    "layer2.0.downsample.0.weight": (1, 1, 1, 0.2869),
    "layer3.0.downsample.0.weight": (1, 1, 0.7535, 0.1427),
    "layer4.0.downsample.0.weight": (1, 0.7749, 0.3758, 0.0712),
    "conv1.weight": (1, 1, 1, 0.5117),
    "fc.weight": (1, 1, 1, 1),
}


@pytest.mark.parametrize(("column", "sparsity"), list(enumerate((0.8, 0.9, 0.95, 0.99))))
def test_erk_on_resnet18(column, sparsity):
    found = erk(shapes(11), sparsity)
    for name, densities in VECTORS.items():
        assert found[name] == pytest.approx(densities[column], abs=1e-4), name
    dense = {name for name, density in found.items() if density == 1}
    assert len(dense) == {0.8: 9, 0.9: 4, 0.95: 3, 0.99: 1}[sparsity]


def test_erk_on_101_outputs():
    assert erk(shapes(101), 0.95)["fc.weight"] == pytest.approx(0.7175, abs=1e-4)
    found = erk(shapes(101), 0.99)
    assert found["fc.weight"] == pytest.approx(0.1419, abs=1e-4)
    assert found["conv1.weight"] == pytest.approx(0.5057, abs=1e-4)


@pytest.mark.parametrize("allocation", [erk, uniform])
@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.8, 0.99, 0.9999])
@pytest.mark.slow
def test_the_network_has_the_given_sparsity(allocation, sparsity):
    size = {name: prod(shape) for name, shape in shapes(10).items()}
    density = allocation(shapes(10), sparsity)
    assert all(0 < d <= 1 for d in density.values())
    assert sum(density[n] * size[n] for n in size) == pytest.approx((1 - sparsity) * sum(size.values()), rel=1e-9)


def test_uniform_is_uniform():
    assert uniform({"a": (2, 3), "b": (5, 5)}, 0.75) == {"a": 0.25, "b": 0.25}


@pytest.mark.parametrize("allocation", [erk, uniform])
def test_an_invalid_sparsity_is_rejected(allocation):
    for sparsity in (-0.1, 1.0, 95):
        with pytest.raises(ValueError, match="sparsity must be in"):
            allocation({"a": (2, 2)}, sparsity)
    with pytest.raises(ValueError, match="no weight"):
        allocation({}, 0.5)
