"""Every operation of a detector's program against NumPy, alone and in random programs, also with NaN and infinity."""

from __future__ import annotations

from typing import Any

import detectors
import numpy as np
import pytest
from detectors import classifier, normalised
from moon_runtime import Network

SPECIAL = [0.0, -0.0, 1.0, 1.0, -2.5, np.inf, -np.inf, np.nan, 3.0, 1.0, np.nan]


def score_of(program: list[dict[str, Any]], tensors: dict[str, np.ndarray], pixels: np.ndarray, **sizes: int) -> Any:
    return Network(classifier(program, tensors, **sizes)).predict(pixels)["score"]


def value_of(op: dict[str, Any], tensors: dict[str, np.ndarray]) -> np.ndarray:
    """The result of an operation on constants, read one value at a time."""
    pixels = np.zeros((1, 1, 1, 4), np.uint8)
    length = len(detectors.run([op | {"out": 2}], tensors, *np.zeros((2, 4)))[2])
    result = []
    for i in range(length):
        program = [op | {"out": 2}, {"op": "slice", "in": [2], "out": 3, "start": i, "end": i + 1}]
        result += score_of(program, tensors, pixels).tolist()
    return np.array(result)


def check(op: dict[str, Any], tensors: dict[str, np.ndarray], rtol: float = 1e-12, atol: float = 0) -> None:
    expected = detectors.run([op | {"out": 2}], tensors, *np.zeros((2, 4)))[2]
    np.testing.assert_allclose(value_of(op, tensors), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("kind", ["<f8", "<f4", "<f2"])
@pytest.mark.parametrize("name", detectors.UNARY)
def test_unary(name: str, kind: str) -> None:
    check({"op": name, "in": [{"tensor": "x"}]}, {"x": np.array(SPECIAL, kind)})


@pytest.mark.parametrize("name", detectors.BINARY)
def test_binary(name: str) -> None:
    x, y = (a.ravel() for a in np.meshgrid(SPECIAL[1:9], SPECIAL[1:9]))
    check({"op": name, "in": [{"tensor": "x"}, {"tensor": "y"}]}, {"x": x, "y": y})
    check({"op": name, "in": [{"tensor": "x"}, {"value": 2.5e-1}]}, {"x": x})
    check({"op": name, "in": [{"value": "-inf"}, {"tensor": "x"}]}, {"x": x})
    check({"op": name, "in": [{"value": "nan"}, {"value": 7}]}, {})


def test_where() -> None:
    x = np.array(SPECIAL)
    check({"op": "where", "in": [{"tensor": "x"}, {"value": 1}, {"tensor": "y"}]}, {"x": x, "y": x[::-1].copy()})
    check({"op": "where", "in": [{"value": 0}, {"value": 1}, {"tensor": "y"}]}, {"y": x})


@pytest.mark.parametrize("name", [*detectors.REDUCTIONS, "softmax", "log_softmax"])
@pytest.mark.parametrize(
    "x",
    [
        SPECIAL, SPECIAL[:5], [3.0], [-np.inf, -np.inf], [np.inf, 0.0], [np.inf, -np.inf], [1.0, np.nan, 2.0, np.nan],
        [5.0, 7.0, 7.0], [1000.0, 1000.0], [-np.inf, 2.0], [float(i) for i in range(100)],
    ],
)  # fmt: skip
def test_reductions(name: str, x: list[float]) -> None:
    check({"op": name, "in": [{"tensor": "x"}]}, {"x": np.array(x)})


def test_logsumexp_of_nothing_is_minus_infinity() -> None:
    assert value_of({"op": "logsumexp", "in": [{"tensor": "x"}]}, {"x": np.array([-np.inf] * 3)}) == [-np.inf]


def test_largest_values_and_their_positions() -> None:
    x = {"tensor": "x"}
    tensors = {"x": np.array([2.0, 7.0, np.nan, 7.0, -np.inf, np.nan, 2.0])}
    assert value_of({"op": "topk_index", "in": [x], "k": 7}, tensors).tolist() == [2, 5, 1, 3, 0, 6, 4]
    assert value_of({"op": "topk_index", "in": [x], "k": 4}, tensors).tolist() == [2, 5, 1, 3]
    assert value_of({"op": "topk", "in": [x], "k": 5}, tensors).tolist()[2:] == [7, 7, 2]
    rng = np.random.default_rng(0)
    for length in (1, 2, 3, 10, 33):
        tensors = {"x": rng.integers(0, 8, length).astype("f8")}
        for k in {1, length // 2 or 1, length}:
            check({"op": "topk", "in": [x], "k": k}, tensors)
            check({"op": "topk_index", "in": [x], "k": k}, tensors)


def test_parts() -> None:
    x, y = np.arange(5.0), np.array([7.0, np.nan], "<f4")
    check({"op": "slice", "in": [{"tensor": "x"}], "start": 1, "end": 4}, {"x": x})
    check({"op": "concat", "in": [{"tensor": "x"}, {"value": 9}, {"tensor": "y"}]}, {"x": x, "y": y})
    check({"op": "concat", "in": [{"tensor": "x"}]}, {"x": x})


def test_scatter() -> None:
    positions, values = np.array([3.0, 0.0, 3.0, -1.0, 5.0, 1.5, np.nan, np.inf]), np.arange(1.0, 9.0)
    op = {"op": "scatter", "in": [{"tensor": "p"}, {"tensor": "v"}], "size": 5}
    assert value_of(op, {"p": positions, "v": values}).tolist() == [2, 0, 0, 3, 0]
    check(op, {"p": positions, "v": values})
    check({"op": "scatter", "in": [{"tensor": "p"}, {"value": 4}], "size": 9}, {"p": positions})


@pytest.mark.parametrize("kind", ["<f8", "<f4", "<f2"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 4), (5, 70), (2, 261)])
def test_tables(kind: str, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    tensors = {"t": rng.standard_normal(shape).astype(kind), "x": rng.standard_normal(shape[1])}
    check({"op": "matmul", "in": [{"tensor": "x"}, {"tensor": "t"}]}, tensors, rtol=1e-4, atol=1e-5)
    check({"op": "distances", "in": [{"tensor": "x"}, {"tensor": "t"}]}, tensors)
    for i in (0, shape[0] - 1, shape[0], -1, 0.5, "nan", "inf"):
        check({"op": "row", "in": [{"value": i}, {"tensor": "t"}]}, tensors)


def test_products_are_float32_unless_the_table_is_float64() -> None:
    op = {"op": "matmul", "in": [{"tensor": "x"}, {"tensor": "t"}]}
    x, table = np.array([1 + 1e-9, -1.0]), np.ones((1, 2))
    assert value_of(op, {"x": x, "t": table.astype("<f4")}).tolist() == [0]
    assert value_of(op, {"x": x, "t": table}) == pytest.approx(1e-9)
    assert value_of(op, {"x": x * [1e300, 0], "t": table.astype("<f2")}).tolist() == [np.inf]


def test_rank() -> None:
    tensors = {"x": np.array(SPECIAL), "t": np.array([-np.inf, -2.5, 1, 1, 2, 3])}
    op = {"op": "rank", "in": [{"tensor": "x"}, {"tensor": "t"}]}
    check(op, tensors)
    assert value_of(op, tensors)[:5].tolist() == [2, 2, 4, 4, 2]


def random_program(rng: np.random.Generator, logits: int, features: int) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Operations on whatever is there. Values stay moderate, so that rounding does not decide comparisons."""
    program: list[dict[str, Any]] = []
    lengths = {0: logits, 1: features}
    tensors: dict[str, np.ndarray] = {}

    def constant(*shape: int) -> dict[str, str]:
        tensors[f"c{len(tensors)}"] = rng.standard_normal(shape).astype(rng.choice(["<f8", "<f4", "<f2"]))
        return {"tensor": f"c{len(tensors) - 1}"}

    def other(length: int) -> Any:
        fitting = [i for i, n in lengths.items() if n in (1, length)]
        return [int(rng.choice(fitting)) if fitting else 0, constant(length), {"value": 0.5}][rng.integers(3)]

    for out in range(2, 30):
        x = int(rng.choice(list(lengths)))
        n = lengths[x]
        op: dict[str, Any] = {"op": "", "in": [x], "out": out}
        match rng.integers(8):
            case 0:
                op["op"], length = rng.choice(["neg", "abs", "isnan", "not"]), n
            case 1:
                op["op"], length = rng.choice(["add", "sub", "mul", "minimum", "maximum", "gt"]), n
                op["in"] = [x, other(n)]
            case 2:
                op["op"], length = rng.choice(["sum", "mean", "amax", "amin", "norm", "logsumexp"]), 1
            case 3:
                op["op"], length = rng.choice(["softmax", "log_softmax"]), n
            case 4:
                op["op"], op["k"] = "topk", (length := int(rng.integers(1, n + 1)))
            case 5:
                op["start"] = int(rng.integers(n))
                op["op"], op["end"] = "slice", int(rng.integers(op["start"], n)) + 1
                length = op["end"] - op["start"]
            case 6:
                op["op"], op["in"] = "concat", [x, other(n), x]
                length = sum(lengths[i] if isinstance(i, int) else n if "tensor" in i else 1 for i in op["in"])
            case _:
                length = int(rng.integers(1, 20))
                op["op"], op["in"] = rng.choice(["matmul", "distances"]), [x, constant(length, n)]
        op["op"] = str(op["op"])
        lengths[out] = length
        program.append(op)
    program.append({"op": "concat", "in": list(range(2, 30)), "out": 30})
    return [*program, {"op": "norm", "in": [30], "out": 31}], tensors


@pytest.mark.parametrize("seed", range(25))
def test_random_programs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits, features = int(rng.integers(1, 12)), int(rng.integers(1, 40))
    program, tensors = random_program(rng, logits, features)
    pixels = rng.integers(0, 256, (5, 1, 1, max(logits, features)), dtype=np.uint8)
    values = normalised(pixels).astype("f")
    expected = [detectors.run(program, tensors, v[:logits], v[:features])[31][0] for v in values]
    actual = score_of(program, tensors, pixels, logits=logits, features=features)
    np.testing.assert_allclose(actual, expected, rtol=1e-4)
