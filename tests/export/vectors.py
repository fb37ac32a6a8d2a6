"""The operations of a detector's program in NumPy, as runtime/README.md lists them: a reference for tests."""

import numpy as np

_UNARY = {
    "neg": np.negative, "abs": np.abs, "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "square": np.square,
    "isnan": np.isnan, "not": np.logical_not,
}  # fmt: skip
_BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power, "minimum": np.minimum,
    "maximum": np.maximum, "gt": np.greater, "ge": np.greater_equal, "lt": np.less, "le": np.less_equal,
    "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
_REDUCTIONS = {
    "sum": np.sum, "mean": np.mean, "amax": np.max, "amin": np.min, "argmax": np.argmax, "norm": np.linalg.norm,
}  # fmt: skip


def score(program, logits, features):
    """The score of one image."""
    vectors = {0: np.asarray(logits, np.float64), 1: np.asarray(features, np.float64)}

    def operand(x):
        if isinstance(x, int):
            return vectors[x]
        return program.tensors[x["tensor"]].numpy() if "tensor" in x else np.array([float(x["value"])])

    for op in program.ops:
        with np.errstate(all="ignore"):
            result = _computed(op, [operand(x) for x in op["in"]])
        vectors[op["out"]] = np.atleast_1d(np.asarray(result, np.float64))
    (value,) = vectors[program.output]
    return value


def _computed(op, inputs):
    x = inputs[0]
    match op["op"]:
        case name if name in _UNARY:
            return _UNARY[name](x)
        case name if name in _BINARY:
            return _BINARY[name](*inputs)
        case name if name in _REDUCTIONS:
            return _REDUCTIONS[name](x)
        case "where":
            return np.where(x != 0, inputs[1], inputs[2])
        case "logsumexp":
            return x.max() + np.log(np.exp(x - x.max()).sum())
        case "softmax":
            return np.exp(x - x.max()) / np.exp(x - x.max()).sum()
        case "log_softmax":
            return x - x.max() - np.log(np.exp(x - x.max()).sum())
        case "topk":
            return x[np.argsort(-x, kind="stable")[: op["k"]]]
        case "topk_index":
            return np.argsort(-x, kind="stable")[: op["k"]]
        case "slice":
            return x[op["start"] : op["end"]]
        case "concat":
            return np.concatenate(inputs)
        case "matmul":
            table = inputs[1]
            return table @ x.astype(table.dtype)
        case "distances":
            return np.linalg.norm(inputs[1].astype(np.float64) - x, axis=1)
        case "row":
            return inputs[1][int(x[0])]
        case "scatter":
            result = np.zeros(op["size"])
            result[x.astype(int)] = inputs[1]
            return result
        case "rank":
            return np.searchsorted(inputs[1], x, side="right")
    raise AssertionError(op["op"])
