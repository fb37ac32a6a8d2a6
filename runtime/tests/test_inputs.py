"""What the network alone accepts: float images of its shape that are finite."""

from __future__ import annotations

import numpy as np
import pytest
from files import pack
from moon_runtime import Network

SHAPE = (2, 3, 5)
LARGEST = float(np.finfo("f").max)


@pytest.fixture
def network() -> Network:
    graph = [{"op": "act", "in": [0], "out": 1, "act": "relu"}]
    return Network(pack(graph, {}, input=list(SHAPE), outputs={"y": 1}), threads=2)


@pytest.mark.parametrize(
    ("value", "name"), [(np.nan, "NaN"), (-np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")]
)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_values_that_are_not_finite_are_an_error(network: Network, value: float, name: str, dtype: str) -> None:
    for count in (1, 2, 40):
        for place in {(0, 0, 0, 0), (count - 1, 1, 2, 4), (count // 2, 1, 0, 3)}:
            images = np.ones((count, *SHAPE), dtype)
            images[place] = value
            image, channel, row, column = place
            expected = f"image {image} has {name} in channel {channel}, row {row}, column {column}; images must be "
            with pytest.raises(ValueError, match=f"^{expected}finite numbers$"):
                network(images)
    assert network(np.ones((1, *SHAPE), dtype))["y"].all()  # it can be used as before


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, -1e-38, LARGEST, -LARGEST])
def test_all_finite_values_are_accepted(network: Network, value: float) -> None:
    assert (network(np.full((3, *SHAPE), value, "f"))["y"] == max(np.float32(value), 0)).all()


@pytest.mark.parametrize("dtype", ["uint8", "int64", "bool", "complex64", "object"])
def test_other_types_are_an_error(network: Network, dtype: str) -> None:
    with pytest.raises(ValueError, match=f"images must be normalised floats, not {dtype}; pixels are for Classifier"):
        network(np.ones((1, *SHAPE), dtype))
