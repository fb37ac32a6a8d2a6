"""Every operation, alone and in random networks, against NumPy: one image, groups of images, several threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from files import encode, pack
from moon_runtime import Network
from reference import ACTIVATIONS, run

pytestmark = pytest.mark.usefixtures("instructions")


def check(
    graph: list[dict[str, Any]],
    tensors: dict[str, np.ndarray],
    shape: tuple[int, int, int],
    dense: dict[str, np.ndarray] | None = None,
    counts: tuple[int, ...] = (1, 2, 19),
) -> None:
    """Compare with NumPy. `dense` has the weights that `tensors` has as gaps and values."""
    last = graph[-1]["out"]
    file = pack(graph, tensors, input=list(shape), outputs={"y": last})
    for threads in (1, 3):
        network = Network(file, threads)
        for count in counts:
            images = np.random.default_rng(count).standard_normal((count, *shape)).astype("f")
            expected = run(graph, tensors | (dense or {}), images)[last]
            actual = network(images)["y"].reshape(expected.shape)
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def sparse(rng: np.random.Generator, shape: tuple[int, ...], density: float) -> np.ndarray:
    values = rng.standard_normal(shape) / max(1, density * np.prod(shape[1:])) ** 0.5
    return (values * (rng.random(shape) < density)).astype("f")


@pytest.mark.parametrize(
    ("shape", "outputs", "kernel", "stride", "padding", "dilation", "groups"),
    [
        ((3, 32, 32), 8, (3, 3), (1, 1), (1, 1), (1, 1), 1),
        ((16, 16, 16), 24, (3, 3), (2, 2), (1, 1), (1, 1), 1),
        ((16, 8, 8), 8, (1, 1), (2, 2), (0, 0), (1, 1), 1),
        ((40, 4, 4), 40, (3, 3), (1, 1), (1, 1), (1, 1), 1),
        ((24, 7, 7), 12, (1, 1), (1, 1), (0, 0), (1, 1), 1),
        ((6, 13, 29), 9, (5, 3), (1, 1), (2, 1), (1, 1), 3),
        ((6, 13, 29), 9, (5, 3), (2, 3), (0, 2), (1, 2), 3),
        ((4, 20, 20), 4, (3, 3), (1, 1), (2, 2), (2, 2), 4),
        ((12, 9, 9), 12, (7, 7), (1, 1), (3, 3), (1, 1), 12),
        ((2, 5, 5), 6, (5, 5), (1, 1), (0, 0), (1, 1), 1),
        ((2, 3, 600), 3, (3, 3), (1, 1), (1, 1), (1, 1), 1),
        ((3, 40, 40), 5, (7, 7), (2, 2), (3, 3), (1, 1), 1),
        ((1, 1, 1), 4, (3, 3), (1, 1), (1, 1), (1, 1), 1),
        ((32, 1, 1), 8, (1, 1), (1, 1), (0, 0), (1, 1), 1),
        ((4, 3, 3), 4, (1, 1), (5, 5), (4, 4), (1, 1), 1),
    ],
)
def test_conv2d(
    shape: tuple[int, int, int], outputs: int, kernel: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> None:
    rng = np.random.default_rng(0)
    for density, act in ((1.0, None), (0.3, "relu"), (0.05, "silu")):
        weight = sparse(rng, (outputs, shape[0] // groups, *kernel), density)
        bias = rng.standard_normal(outputs).astype("f")
        op = {"op": "conv2d", "in": [0], "out": 1, "weight": "w", "bias": "b", "stride": stride, "padding": padding,
              "dilation": dilation, "groups": groups, "act": act, "shape": list(weight.shape)}  # fmt: skip
        check([op], encode("w", weight) | {"b": bias}, shape, {"w": weight})
        check([op | {"bias": None}], {"w": weight}, shape)


def test_a_sum_is_fused_whatever_the_order() -> None:
    rng = np.random.default_rng(0)
    weights = {name: sparse(rng, (8, 8, 3, 3), 0.5) for name in "abc"}
    conv = {"op": "conv2d", "padding": [1, 1], "bias": None}
    for swap in (False, True):
        graph = [
            conv | {"in": [0], "out": 1, "weight": "a", "act": "relu"},
            conv | {"in": [1], "out": 2, "weight": "b"},
            conv | {"in": [0], "out": 3, "weight": "c"},
            {"op": "add", "in": [3, 2] if swap else [2, 3], "out": 4, "act": "relu"},
            conv | {"in": [4], "out": 5, "weight": "a"},
            {"op": "add", "in": [5, 4], "out": 6, "act": "gelu"},
            {"op": "add", "in": [6, 1], "out": 7},
        ]
        check(graph, weights, (8, 10, 10))


@pytest.mark.parametrize("density", [0.05, 0.5, 1.0])
def test_linear(density: float) -> None:
    rng = np.random.default_rng(0)
    weight, bias = sparse(rng, (11, 75), density), rng.standard_normal(11).astype("f")
    graph = [
        {"op": "flatten", "in": [0], "out": 1},
        {"op": "linear", "in": [1], "out": 2, "weight": "w", "bias": "b", "shape": [11, 75]},
        {"op": "softmax", "in": [2], "out": 3},
    ]
    check(graph, encode("w", weight) | {"b": bias}, (3, 5, 5), {"w": weight})


@pytest.mark.parametrize("act", [name for name in ACTIVATIONS if name])
def test_activations(act: str) -> None:
    check([{"op": "act", "in": [0], "out": 1, "act": act}], {}, (5, 3, 7))
    x = np.linspace(-100, 100, 1001, dtype="f")
    network = Network(pack([{"op": "act", "in": [0], "out": 1, "act": act}], {}, input=[1001, 1, 1], outputs={"y": 1}))
    with np.errstate(over="ignore"):
        expected = ACTIVATIONS[act](x.astype(np.float64))
    np.testing.assert_allclose(network(x[None, :, None, None])["y"][0], expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["max_pool", "avg_pool"])
def test_pools(kind: str) -> None:
    for kernel, stride, padding in (([2, 2], [2, 2], [0, 0]), ([3, 3], [2, 2], [1, 1]), ([3, 5], [1, 2], [1, 2])):
        op = {"op": kind, "in": [0], "out": 1, "kernel": kernel, "stride": stride, "padding": padding}
        check([op], {}, (5, 14, 13))
        check([op | {"count_include_pad": False}], {}, (5, 14, 13))
    check([{"op": "global_avg_pool", "in": [0], "out": 1, "act": "hardswish"}], {}, (5, 14, 13))
    check([{"op": "global_deviation", "in": [0], "out": 1}], {}, (5, 14, 13))


def test_pool_with_ceil_mode() -> None:
    op = {"op": "max_pool", "in": [0], "out": 1, "kernel": [2, 2], "stride": [2, 2], "ceil_mode": True}
    network = Network(pack([op], {}, input=[1, 3, 3], outputs={"y": 1}))
    x = np.arange(9, dtype="f").reshape(1, 1, 3, 3)
    assert network(x)["y"].tolist() == [[[[4, 5], [7, 8]]]]
    network = Network(pack([op | {"op": "avg_pool"}], {}, input=[1, 3, 3], outputs={"y": 1}))
    assert network(x)["y"].tolist() == [[[[2, 3.5], [6.5, 8]]]]


def test_other_operations() -> None:
    rng = np.random.default_rng(0)
    scale, shift = rng.standard_normal((2, 6)).astype("f")
    graph = [
        {"op": "affine", "in": [0], "out": 1, "scale": "s", "shift": "t", "act": "relu6"},
        {"op": "global_avg_pool", "in": [1], "out": 2},
        {"op": "act", "in": [2], "out": 3, "act": "sigmoid"},
        {"op": "mul", "in": [3, 1], "out": 4},
        {"op": "mul", "in": [4, 0], "out": 5},
        {"op": "concat", "in": [5, 0, 1], "out": 6},
        {"op": "softmax", "in": [6], "out": 7},
    ]
    for shape in ((6, 5, 5), (6, 20, 20), (6, 1, 1)):
        check(graph, {"s": scale, "t": shift}, shape)


@pytest.mark.parametrize("values", ["<f2", "|i1"])
def test_half_and_int8_weights(values: str) -> None:
    rng = np.random.default_rng(0)
    weight = sparse(rng, (4, 40, 3, 3), 0.02)
    weight[0, :, 0, 0] = 0.5  # no row is empty
    weight[1:, 39, 2, 2] = 0.25
    tensors = encode("w", weight, values)
    if values == "<f2":
        expected = weight.astype("f2").astype("f")
    else:
        scale = tensors["w.scale"][:, None, None, None]
        expected = (np.round(weight / scale) * scale).astype("f")
    op = {"op": "conv2d", "in": [0], "out": 1, "weight": "w", "shape": [4, 40, 3, 3], "padding": [1, 1]}
    check([op], tensors, (40, 6, 6), {"w": expected})


def small_resnet(rng: np.random.Generator) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """A residual network with maps of 14x14 (which no grid divides), 7x7 and 4x4, for images of 3x14x14."""
    shapes = [(24, 3, 3, 3), (24, 24, 3, 3), (48, 24, 3, 3), (48, 24, 1, 1), (40, 48, 3, 3)]
    weights = {f"w{i}": sparse(rng, shape, 0.3) for i, shape in enumerate(shapes)}
    conv = {"op": "conv2d", "padding": [1, 1], "act": "relu", "bias": None}
    graph = [
        conv | {"in": [0], "out": 1, "weight": "w0"},
        conv | {"in": [1], "out": 2, "weight": "w1", "act": None},
        {"op": "add", "in": [2, 1], "out": 3, "act": "silu"},
        conv | {"in": [3], "out": 4, "weight": "w2", "stride": [2, 2], "act": None},
        conv | {"in": [3], "out": 5, "weight": "w3", "stride": [2, 2], "padding": [0, 0], "act": None},
        {"op": "add", "in": [4, 5], "out": 6, "act": "relu"},
        conv | {"in": [6], "out": 7, "weight": "w4", "stride": [2, 2], "act": "gelu"},
        {"op": "global_avg_pool", "in": [7], "out": 8},
        {"op": "linear", "in": [8], "out": 9, "weight": "fc", "bias": "b", "shape": [10, 40]},
        {"op": "softmax", "in": [9], "out": 10},
    ]
    dense = weights | {"fc": sparse(rng, (10, 40), 0.9), "b": rng.standard_normal(10).astype("f")}
    return [op | ({"shape": list(dense[op["weight"]].shape)} if "weight" in op else {}) for op in graph], dense


@pytest.mark.parametrize(("threads", "values"), [(1, "<f4"), (2, "<f2"), (3, "|i1")])
def test_an_image_has_the_same_bits_in_every_batch(threads: int, values: str) -> None:
    rng = np.random.default_rng(0)
    graph, dense = small_resnet(rng)
    dense |= {"few": sparse(rng, (203, 40), 0.15), "rest": sparse(rng, (30, 203), 0.05)}
    linear = {"op": "linear", "act": "silu"}
    graph += [
        linear | {"in": [8], "out": 11, "weight": "few", "shape": [203, 40]},
        linear | {"in": [11], "out": 12, "weight": "rest", "shape": [30, 203]},
    ]
    tensors = {"b": dense.pop("b")}
    for name, weight in dense.items():
        tensors |= encode(name, weight, values)
    outputs = {"map": 6, "features": 8, "logits": 9, "shares": 10, "few": 11, "rest": 12}
    file = pack(graph, tensors, input=[3, 14, 14], outputs=outputs)
    images = rng.standard_normal((64, 3, 14, 14)).astype("f")
    one, many = Network(file), Network(file, threads)
    alone = [one(image[None]) for image in images]
    for count in range(1, 65):
        for name, found in many(images[-count:]).items():  # an image has another place in each batch
            expected = np.concatenate([answer[name] for answer in alone[-count:]])
            assert np.array_equal(found.view("u4"), expected.view("u4")), (name, count)


@pytest.mark.parametrize("values", ["<f4", "<f2", "|i1"])
def test_networks_with_stored_weights_of_each_type(values: str) -> None:
    graph, dense = small_resnet(np.random.default_rng(2))
    tensors, expected = {"b": dense["b"]}, {"b": dense["b"]}
    for name, weight in dense.items():
        if name == "b":
            continue
        tensors |= encode(name, weight, values)
        scale = np.abs(weight).reshape(len(weight), -1).max(1).reshape(-1, *[1] * (weight.ndim - 1)) / 127
        read = {"<f4": weight, "<f2": weight.astype("f2"), "|i1": np.round(weight / scale) * scale}[values]
        expected[name] = read.astype("f")
    check(graph, tensors, (3, 14, 14), expected)


def test_float16() -> None:
    graph, tensors = small_resnet(np.random.default_rng(3))
    file = pack(graph, tensors, input=[3, 14, 14], outputs={"features": 8, "logits": 9, "shares": 10})
    try:
        network = Network(file, 2, "float16")
    except ValueError:
        with pytest.raises(ValueError, match=r"^this CPU cannot compute in float16; that needs AVX512-FP16 or ARMv8.2"):
            Network(file, 2, "float16")
        return
    images = np.random.default_rng(1).standard_normal((67, 3, 14, 14)).astype("f")
    known = run(graph, tensors, images)
    for count in (1, 3, 67):
        for name, index in (("features", 8), ("logits", 9), ("shares", 10)):
            expected = known[index][:count, :, 0, 0]
            assert np.abs(network(images[:count])[name] - expected).max() < 0.005 * np.abs(expected).max()


def test_an_unknown_precision() -> None:
    graph = [{"op": "act", "in": [0], "out": 1, "act": "relu"}]
    file = pack(graph, {}, input=[1, 1, 1], outputs={"y": 1})
    with pytest.raises(ValueError, match='the precision must be float32 or float16, not "int4"'):
        Network(file, precision="int4")


@pytest.mark.parametrize("seed", range(12))
def test_random_networks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    channels, side, graph, tensors, dense = int(rng.integers(1, 9)), int(rng.integers(5, 40)), [], {}, {}
    shape = (channels, side, side)
    live = [(0, shape)]
    for out in range(1, 15):
        index, (c, h, w) = live[rng.integers(len(live))]
        same = [i for i, other in live if other == (c, h, w)]
        act = list(ACTIVATIONS)[rng.integers(len(ACTIVATIONS))]
        op: dict[str, Any] = {"in": [index], "out": out, "act": act}
        match rng.choice(["conv2d", "conv2d", "add", "concat", "max_pool", "act"]):
            case "conv2d":
                k, s, outputs = int(rng.choice([1, 3])), int(rng.choice([1, 1, 2])), int(rng.integers(1, 30))
                name = f"w{out}"
                dense[name] = sparse(rng, (outputs, c, k, k), float(rng.choice([0.05, 0.3, 1.0])))
                tensors |= encode(name, dense[name])
                op |= {"op": "conv2d", "weight": name, "shape": [outputs, c, k, k], "stride": [s, s],
                       "padding": [k // 2, k // 2]}  # fmt: skip
                c, h, w = outputs, (h - 1) // s + 1, (w - 1) // s + 1
            case "add":
                op |= {"op": "add", "in": [index, same[rng.integers(len(same))]]}
            case "concat":
                op |= {"op": "concat", "in": [index, *same]}
                c *= 1 + len(same)
            case "max_pool" if min(h, w) >= 2:
                op |= {"op": "max_pool", "kernel": [2, 2], "stride": [2, 2]}
                h, w = h // 2, w // 2
            case _:
                op |= {"op": "act", "act": "hardswish"}
        graph.append(op)
        live.append((out, (c, h, w)))
    check(graph, tensors, shape, dense, counts=(2, 18))
