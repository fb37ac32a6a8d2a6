"""Every operation of a detector's program against NumPy, in PyTorch and in ONNX Runtime."""

import numpy as np
import pytest
import torch

from moon.export.content import run_program

NAN, INF = np.nan, np.inf
LOGITS = np.array(
    [[1.0, 3.0, 3.0, -2.0], [0.5, 0.25, -0.5, 2.0], [NAN, 1.0, 7.0, 2.0], [-INF] * 4, [0.0, 5.0, INF, 1.0]]
)
FEATURES = np.array([[3.0, -4.0, 0.0], [0.0, 1.0, 2.0], [1.0, 1.0, 1.0], [2.5, 0.5, -1.0], [0.125, 1024.0, 0.0]])
POSITIONS = np.array([[0.0, 2.0], [1.0, 1.0], [-1.0, 3.0], [NAN, 2.0], [0.5, 0.0]])
VALUES = np.array([[5.0, 6.0], [7.0, 8.0], [1.0, 2.0], [3.0, 4.0], [9.0, 9.0]])
INPUTS = [LOGITS, FEATURES, POSITIONS, VALUES, np.array([[1.0], [0.0], [2.0], [-1.0], [0.5]])]
TENSORS = {
    "vector": np.array([1.0, 2.0, 0.0, 2.0], np.float32),
    "table": np.array([[1.0, 0.5, -2.0], [0.25, 0.0, 3.0]], np.float16),
    "exact": np.array([[1.0, 1e-9, -2.0], [0.25, 0.0, 3.0]]),
    "sorted": np.array([-2.0, 1.0, 1.0, 3.0, 6.0]),
    "tiny": np.array([1.0, 1e-9]),
    "ones": np.array([[1.0, 1.0]], np.float32),
}


def one(name, *operands, **settings):
    return {"op": name, "in": list(operands), **settings}


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
    "matmul with a float32 table rounds": (one("matmul", {"tensor": "tiny"}, {"tensor": "ones"}), lambda: [[1.0]]),
    "row, NaN out of range": (one("row", 4, {"tensor": "exact"}), lambda: [
        TENSORS["exact"][1], TENSORS["exact"][0], *[[NAN] * 3] * 3]),
    "scatter ignores positions out of range, later values win": (one("scatter", 2, 3, size=3), lambda: [
        [5, 0, 6], [0, 8, 0], [0, 0, 0], [0, 0, 4], [9, 0, 0]]),
    "scatter one value": (one("scatter", 2, {"value": 9.0}, size=3), lambda: [
        [9, 0, 9], [0, 9, 0], [0, 0, 0], [0, 0, 9], [9, 0, 0]]),
    "constant": (one("softmax", {"tensor": "vector"}), lambda: softmax(TENSORS["vector"].astype(float))[None]),
}  # fmt: skip


PROGRAM = [{**ops, "out": number} for number, (ops, _) in enumerate(SINGLE.values(), len(INPUTS))]


def computed(*inputs):
    """The result of each operation."""
    return list(run_program(PROGRAM, TENSORS, inputs).values())[len(INPUTS) :]


@pytest.fixture(scope="module", params=["PyTorch", "ONNX Runtime"])
def found(request):
    """The results by name."""
    inputs = [torch.from_numpy(each) for each in INPUTS]
    if request.param == "PyTorch":
        return dict(zip(SINGLE, (x.numpy() for x in computed(*inputs)), strict=True))
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    from moon.export.onnx import translated

    names = [f"input{number}" for number in range(len(INPUTS))]
    model = translated(computed, dict(zip(names, inputs, strict=True)), map(str, range(len(SINGLE))), is_dynamic=False)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip(SINGLE, session.run(None, dict(zip(names, INPUTS, strict=True))), strict=True))


@pytest.mark.parametrize("case", SINGLE)
def test_operation(found, case, request):
    with np.errstate(all="ignore"):
        actual, expected = found[case], SINGLE[case][1]()
    if case == "topk_index" and request.node.callspec.params["found"] == "PyTorch":  # does not order equal values
        actual, expected = (np.take_along_axis(LOGITS, np.asarray(x, int), 1) for x in (actual, expected))
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=0 if case != "distances" else 1e-9)
