"""Programs, thresholds and classes that cannot be right are one-line errors when a file is loaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from detectors import THRESHOLD, classifier
from files import with_text
from moon_runtime import Network, NetworkError

SUM = {"op": "sum", "in": [0], "out": 2}


def of(*steps: Any, output: Any = None, **tensors: np.ndarray) -> bytes:
    """A file with these steps; the last one is reduced to a score."""
    last = {"op": "sum", "in": [2], "out": 60}
    file = classifier([*steps, last], tensors)
    return file if output is None else with_text(file, '\\"output\\": 60', f'\\"output\\": {output}')


def step(op: str, *operands: Any, **settings: Any) -> bytes:
    tensors = {key: settings.pop(key) for key in list(settings) if isinstance(settings[key], np.ndarray)}
    return of({"op": op, "in": list(operands), "out": 2} | settings, **tensors)


TABLE = np.ones((3, 4))
BOMB = "[" * 33 + "]" * 33
PER_CLASS = THRESHOLD | {"per_class": True}
COUNTS = {"threshold": np.zeros(3), "calibration": np.zeros(4)}


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (step("matrix", 0), "\"matrix\" is not supported"),
        (step("sum"), "\"in\" must be a list"),
        (step("sum", 0, 0), "\"sum\" needs 1 operand"),
        (step("matmul", 0), "\"matmul\" needs 2 operand"),
        (step("neg", 2), "vector 2 is used before it is computed"),
        (of({"op": "neg", "in": [3], "out": 2}, {"op": "neg", "in": [2], "out": 3}), "used before"),
        (step("neg", 5000), "an operand must be"),
        (step("neg", None), "an operand must be"),
        (step("neg", {"value": "x"}), "a value must be a number"),
        (with_text(step("neg", {"value": 77}), "77", "1e999"), "a value must be a number"),
        (with_text(step("neg", {"value": 77}), "77", "NaN"), "not valid JSON"),
        (with_text(step("neg", {"value": 77}), "77", "1."), "not valid JSON"),
        (with_text(step("neg", {"value": 77}), "77", BOMB), "too many levels"),
        (step("neg", {"tensor": "x"}), "\"x\" is missing"),
        (step("neg", {"tensor": "x"}, x=np.ones((2, 2))), "must be a vector"),
        (step("neg", {"tensor": "x"}, x=np.ones(2**20 + 1, "<f2")), "must be a vector of 1 to 1048576"),
        (step("neg", {"tensor": "x"}, x=np.ones(3, "u1")), "not F64, F32 or F16"),
        (step("add", 0, 1), "lengths 3 and 4"),
        (step("where", 0, {"value": 1}, 1), "lengths 3 and 4"),
        (step("scatter", 0, 0, size=0), "\"size\" must be an integer from 1"),
        (step("scatter", 0, 0, size=2**20 + 1), "\"size\" must be an integer from 1 to 1048576"),
        (step("topk", 0, k=4), "\"k\" must be an integer from 1 to 3"),
        (step("slice", 0, start=0, end=4), "\"end\" must be an integer from 1 to 3"),
        (step("slice", 0, start=2, end=2), "\"end\" must be an integer from 3 to 3"),
        (step("matmul", 1, 0), "second operand of \"matmul\" must be a tensor"),
        (step("matmul", 1, {"tensor": "t"}, t=TABLE[0]), "table with two dimensions"),
        (step("matmul", 1, {"tensor": "t"}, t=np.ones((3, 4), "u1")), "not F64, F32 or F16"),
        (step("matmul", 0, {"tensor": "t"}, t=TABLE), "vector of length 4, not 3"),
        (step("distances", 0, {"tensor": "t"}, t=TABLE), "vector of length 4, not 3"),
        (step("row", 0, {"tensor": "t"}, t=TABLE), "vector of length 1, not 3"),
        (step("rank", 0, 0), "second operand of \"rank\" must be a tensor"),
        (step("rank", 0, {"tensor": "t"}, t=TABLE), "must be a vector"),
        (step("rank", 0, {"tensor": "t"}, t=np.array([1.0, 0.0])), "ascending"),
        (step("rank", 0, {"tensor": "t"}, t=np.array([0.0, np.nan])), "ascending"),
        (of({"op": "neg", "in": [0], "out": 1}), "\"out\" must be an integer from 2"),
        (of(SUM, SUM), "vector 2 is computed twice"),
        (of(SUM, output=59), "\"output\" of the detector"),
        (of(SUM, output=2**70), "\"output\" of the detector"),
        (of(*[{"op": "concat", "in": [i, i], "out": i + 1} for i in range(1, 24)]), "result is too long"),
        (of(*[{"op": "scatter", "in": [0, 0], "size": 2**20, "out": i} for i in range(2, 24)],
            {"op": "concat", "in": list(range(2, 24)), "out": 30}), "result is too long"),
        (of(*[{"op": "scatter", "in": [0, 0], "size": 2**20, "out": i} for i in range(2, 24)],
            *[{"op": "sum", "in": [i], "out": i + 30} for i in range(2, 24)]), "too much memory"),
        (classifier([{"op": "scatter", "in": [0, 0], "size": 2**20, "out": 2},
                     *[{"op": "topk", "in": [i], "k": 2**20, "out": i + 1} for i in range(2, 302)],
                     SUM | {"in": [302], "out": 303}]), "an image takes 12.. billion operations, more than the limit"),
        (classifier([SUM | {"in": [1]}], outputs={"logits": 1}), "no output \"features\""),
        (classifier([SUM], outputs={"features": 2}), "no output \"logits\""),
        (classifier([SUM], classes=["a"]), "3 logits, but the file names 1 classes"),
        (classifier([SUM], classes=["a", 3, "c"]), "\"classes\" must be a list of names"),
        (classifier([SUM], classes=None), "needs \"classes\""),
        (classifier([SUM], detector=None), "needs \"detector\""),
        (classifier([SUM], detector={"name": "x"}), "needs a \"program\""),
        (classifier([SUM], detector={"program": [], "output": 0}), "needs \"name\""),
        (classifier([SUM], detector={"name": "x", "program": [SUM] * 8193, "output": 2}), "at most 8192 steps"),
        (classifier([SUM], threshold=None), "needs \"threshold\""),
        (classifier([SUM], threshold={}), "\"accept\" of \"threshold\" must be a positive number"),
        (classifier([SUM], threshold=THRESHOLD | {"accept": 1}), "\"accept\" of \"threshold\" must be below 1"),
        (classifier([SUM], threshold=THRESHOLD | {"per_class": 1}), "\"per_class\" of \"threshold\""),
        (classifier([SUM], threshold=PER_CLASS), "1 thresholds, not 3"),
        (classifier([SUM], {"threshold": np.zeros(2)}), "2 thresholds, not 1"),
        (classifier([SUM], {"threshold": np.array([np.nan])}), "a threshold is not a finite number"),
        (classifier([SUM], {"threshold": np.zeros(1, "f")}), "\"threshold\" must be F64"),
        (classifier([SUM], {"calibration": np.zeros(0)}), "\"calibration\" must be a vector"),
        (classifier([SUM], {"calibration": np.array([1.0, 0.0])}), "not in ascending order"),
        (classifier([SUM], {"calibration": np.array([0.0, np.nan])}), "not in ascending order"),
        (classifier([SUM], COUNTS, threshold=PER_CLASS), "\"calibration.counts\" is missing"),
        (classifier([SUM], COUNTS | {"calibration.counts": np.array([1, 2], "<u4")}, threshold=PER_CLASS),
         "one number \\(U32\\) for each of the 3 classes"),
        (classifier([SUM], COUNTS | {"calibration.counts": np.array([1, 2, 1.0])}, threshold=PER_CLASS), "U32"),
        (classifier([SUM], COUNTS | {"calibration.counts": np.array([1, 2, 2], "<u4")}, threshold=PER_CLASS),
         "adds up to 5, but there are 4"),
        (classifier([SUM], COUNTS | {"calibration.counts": np.array([2**32 - 1] * 3, "<u4")}, threshold=PER_CLASS),
         "adds up to 12884901885"),
        (classifier([SUM], COUNTS | {"calibration": np.array([3.0, 1.0, 0.0, 2.0]),
                                     "calibration.counts": np.array([1, 2, 1], "<u4")}, threshold=PER_CLASS),
         "not in ascending order"),
        (classifier([SUM], temperature=0), "\"temperature\" must be a positive number"),
        (classifier([SUM], preprocess=None), "needs \"preprocess\""),
        (classifier([SUM], preprocess={"mean": [0] * 4}), "\"std\" of \"preprocess\" must have a number for each"),
        (classifier([SUM], preprocess={"mean": [0] * 3, "std": [1] * 4}), "for each of the 4 channels"),
        (classifier([SUM], preprocess={"mean": [0] * 4, "std": [1, 1, 0, 1]}), "\"std\" of \"preprocess\" must be"),
        (classifier([SUM], preprocess={"mean": [0] * 4, "std": [1] * 4, "resize": "fit"}), "must be \"cover\", not"),
        (classifier([SUM], preprocess={"mean": [0] * 4, "std": [1] * 4, "shorter_side": "8"}), "\"shorter_side\" of"),
    ],
)  # fmt: skip
def test_bad_programs_are_one_line_errors(file: bytes, message: str) -> None:
    with pytest.raises(NetworkError, match=message) as raised:
        Network(file)
    assert "\n" not in str(raised.value)


def test_line_ends_in_names_do_not_break_the_error() -> None:
    with pytest.raises(NetworkError, match=r'tensor "a\?b" is missing'):
        Network(step("neg", {"tensor": "a\nb"}))


def test_a_program_may_be_a_constant_or_empty() -> None:
    image = np.zeros((1, 1, 1, 4), np.uint8)
    assert Network(classifier([], logits=1, output=0)).predict(image)["score"] == pytest.approx(-2)
    assert Network(of({"op": "neg", "in": [{"value": "-inf"}], "out": 2})).predict(image)["score"] == np.inf
