"""Every operation of a detector's program in ONNX Runtime against NumPy."""

import numpy as np
import pytest

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, checker, helper  # noqa: E402

from moon.export.onnx_builder import Builder  # noqa: E402
from moon.export.onnx_program import Vector, add_program  # noqa: E402

NAN, INF = np.nan, np.inf
LOGITS = np.array(
    [[1.0, 3.0, 3.0, -2.0], [0.5, 0.25, -0.5, 2.0], [NAN, 1.0, 7.0, 2.0], [-INF] * 4, [0.0, 5.0, INF, 1.0]]
)
FEATURES = np.array([[3.0, -4.0, 0.0], [0.0, 1.0, 2.0], [1.0, 1.0, 1.0], [2.5, 0.5, -1.0], [0.125, 1024.0, 0.0]])
TENSORS = {
    "vector": np.array([1.0, 2.0, 0.0, 2.0], np.float32),
    "table": np.array([[1.0, 0.5, -2.0], [0.25, 0.0, 3.0]], np.float16),
    "exact": np.array([[1.0, 1e-9, -2.0], [0.25, 0.0, 3.0]]),
    "sorted": np.array([-2.0, 1.0, 1.0, 3.0, 6.0]),
}


def computed(ops, logits=LOGITS, features=FEATURES, tensors=TENSORS):
    """The last tensor of a program."""
    builder = Builder()
    inputs = Vector("logits", logits.shape[1]), Vector("features", features.shape[1])
    last = add_program(builder, ops, tensors, *inputs)[ops[-1]["out"]]
    builder.named(last.name, "y")
    shapes = {"logits": ["N", logits.shape[1]], "features": ["N", features.shape[1]]}
    graph = helper.make_graph(
        builder.nodes,
        "program",
        [helper.make_tensor_value_info(name, TensorProto.DOUBLE, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [None, last.length])],
        builder.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"logits": logits, "features": features})
    return result


def one(name, *operands, **settings):
    return [{"op": name, "in": list(operands), "out": 2, **settings}]


def by_row(function):
    """A function of one image for all of them."""
    return np.stack([np.atleast_1d(function(row)) for row in LOGITS])


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def logsumexp(x):
    top = x.max() if np.isfinite(x.max()) else 0.0
    return np.log(np.exp(x - top).sum()) + top if not np.isnan(x).any() else NAN


VALUE, VECTOR = {"value": 1.0}, {"tensor": "vector"}
SINGLE = {
    "neg": (one("neg", 0), lambda: -LOGITS),
    "abs": (one("abs", 0), lambda: np.abs(LOGITS)),
    "exp": (one("exp", 0), lambda: np.exp(LOGITS)),
    "log": (one("log", 0), lambda: np.log(LOGITS)),
    "sqrt": (one("sqrt", 0), lambda: np.sqrt(LOGITS)),
    "square": (one("square", 0), lambda: LOGITS**2),
    "isnan": (one("isnan", 0), lambda: np.isnan(LOGITS) * 1.0),
    "not": (one("not", VECTOR), lambda: [[0, 0, 1, 0]]),
    "add": (one("add", 0, VECTOR), lambda: LOGITS + np.array([1, 2, 0, 2])),
    "sub": (one("sub", 0, VALUE), lambda: LOGITS - 1),
    "mul": (one("mul", 0, 0), lambda: LOGITS * LOGITS),
    "div": (one("div", 0, VECTOR), lambda: LOGITS / [1, 2, 0, 2]),
    "pow": (one("pow", {"value": 2.0}, 0), lambda: 2.0**LOGITS),
    "minimum": (one("minimum", 0, VALUE), lambda: np.minimum(LOGITS, 1)),
    "maximum": (one("maximum", VALUE, 0), lambda: np.maximum(LOGITS, 1)),
    "gt": (one("gt", 0, VALUE), lambda: (LOGITS > 1) * 1.0),
    "ge": (one("ge", 0, VALUE), lambda: (LOGITS >= 1) * 1.0),
    "lt": (one("lt", 0, VALUE), lambda: (LOGITS < 1) * 1.0),
    "le": (one("le", 0, VALUE), lambda: (LOGITS <= 1) * 1.0),
    "eq": (one("eq", 0, VALUE), lambda: (LOGITS == 1) * 1.0),
    "ne": (one("ne", 0, VALUE), lambda: (LOGITS != 1) * 1.0),
    "infinity": (one("minimum", {"value": "inf"}, 0), lambda: LOGITS),
    "where": (one("where", VECTOR, 0, {"value": "-inf"}), lambda: np.where([1, 1, 0, 1], LOGITS, -INF)),
    "sum": (one("sum", 0), lambda: by_row(np.sum)),
    "mean": (one("mean", 0), lambda: by_row(np.mean)),
    "amax": (one("amax", 0), lambda: by_row(np.max)),
    "amin": (one("amin", 0), lambda: by_row(np.min)),
    "argmax": (one("argmax", 0), lambda: [[1], [3], [0], [0], [2]]),
    "norm": (one("norm", 1), lambda: np.linalg.norm(FEATURES, axis=1)[:, None]),
    "softmax": (one("softmax", 0), lambda: by_row(softmax)),
    "log_softmax": (one("log_softmax", 0), lambda: LOGITS - by_row(logsumexp)),
    "logsumexp": (one("logsumexp", 0), lambda: by_row(logsumexp)),
    "topk": (one("topk", 0, k=2), lambda: [[3, 3], [2, 0.5], [NAN, 7], [-INF, -INF], [INF, 5]]),
    "topk_index": (one("topk_index", 0, k=2), lambda: [[1, 2], [3, 0], [0, 2], [0, 1], [2, 1]]),
    "slice": (one("slice", 0, start=1, end=3), lambda: LOGITS[:, 1:3]),
    "concat": (one("concat", 1, {"value": 4.0}, 0), lambda: np.hstack([FEATURES, np.full((5, 1), 4.0), LOGITS])),
    "matmul": (one("matmul", 1, {"tensor": "table"}), lambda: FEATURES @ TENSORS["table"].astype(float).T),
    "matmul in double": (one("matmul", 1, {"tensor": "exact"}), lambda: FEATURES @ TENSORS["exact"].T),
    "distances": (
        one("distances", 1, {"tensor": "exact"}),
        lambda: np.linalg.norm(FEATURES[:, None] - TENSORS["exact"], axis=2),
    ),
    "rank": (one("rank", 0, {"tensor": "sorted"}), lambda: [
        [3, 4, 4, 1], [1, 1, 1, 3], [NAN, 3, 5, 3], [0, 0, 0, 0], [1, 4, 5, 3]]),
    "constant": (one("softmax", {"tensor": "vector"}), lambda: softmax(TENSORS["vector"].astype(float))[None]),
}  # fmt: skip


@pytest.mark.parametrize("case", SINGLE)
def test_operation(case):
    ops, expected = SINGLE[case]
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(computed(ops), expected(), rtol=1e-12, atol=0 if case != "distances" else 1e-9)


def test_row_of_positions_in_and_out_of_range():
    logits = np.array([[1.0], [0.0], [2.0], [-1.0], [0.5], [NAN]])
    found = computed(one("row", 0, {"tensor": "exact"}), logits, np.zeros((6, 1)))
    first, second = TENSORS["exact"]
    np.testing.assert_array_equal(found, [second, first, *[[NAN] * 3] * 4])


def test_scatter_ignores_positions_out_of_range_and_later_values_win():
    positions = np.array([[0.0, 2.0], [1.0, 1.0], [-1.0, 3.0], [NAN, 2.0]])
    values = np.array([[5.0, 6.0], [7.0, 8.0], [1.0, 2.0], [3.0, 4.0]])
    found = computed(one("scatter", 0, 1, size=3), positions, values)
    np.testing.assert_array_equal(found, [[5, 0, 6], [0, 8, 0], [0, 0, 0], [0, 0, 4]])
    found = computed(one("scatter", 0, {"value": 9.0}, size=3), positions, values)
    np.testing.assert_array_equal(found, [[9, 0, 9], [0, 9, 0], [0, 0, 0], [0, 0, 9]])


def test_matmul_with_float32_table_rounds_to_float32():
    tensors = {"t": np.array([[1.0, 1.0]], np.float32)}
    found = computed(one("matmul", 1, {"tensor": "t"}), np.zeros((1, 1)), np.array([[1.0, 1e-9]]), tensors)
    assert found == [[1.0]]


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        (one("fly", 0), r"operation 0 of the detector \(fly\): is not supported"),
        (one("add", 0, 1), "vectors of 3 and 4 values do not fit together"),
        (one("add", 0, 7), "there is no 7"),
        (one("add", 0), "needs 2 operands, not 1"),
        (one("topk", 0, k=5), "k must be an integer from 1 to 4"),
        (one("slice", 0, start=2, end=5), "2 to 5 is not a part of 4 values"),
        (one("matmul", 0, {"tensor": "table"}), "a table with rows of 3 values does not fit 4"),
        (one("matmul", 0, {"tensor": "missing"}), "there is no 'missing'"),
        (one("rank", 0, {"tensor": "table"}), "needs a vector"),
        (one("scatter", 0, 1, size=3), "3 values do not fit 4 positions"),
        (one("scatter", 0, 0, size=2**40), "size must be an integer"),
        ([{"op": "neg", "in": [0], "out": 1}], "tensor 1 is computed twice"),
    ],
)
def test_programs_that_do_not_fit_together(ops, message):
    with pytest.raises(ValueError, match=message):
        computed(ops)
