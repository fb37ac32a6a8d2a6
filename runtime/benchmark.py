"""Times ResNet-18 for 32x32 images with ERK masks against ONNX Runtime, in one process, in turn.

    python benchmark.py [--sparsity 0.9 0.95 0.99] [--batch 1 32] [--rounds 30] [--threads 1]

Needs onnx and onnxruntime. Values are random: they do not change the time. Prints the median of the ratios of
consecutive runs, and the shortest times.
"""

from __future__ import annotations

import argparse
import sys
import time
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parent / "tests"))
from files import encode, pack
from moon_runtime import Network


def shapes() -> dict[str, tuple[int, ...]]:
    """The weights of ResNet-18."""
    result, inputs = {"stem": (64, 3, 3, 3)}, 64
    for width in (64, 128, 256, 512):
        for block in "ab":
            result[f"{width}{block}1"] = (width, inputs, 3, 3)
            result[f"{width}{block}2"] = (width, width, 3, 3)
            if inputs != width:
                result[f"{width}{block}s"] = (width, inputs, 1, 1)
            inputs = width
    return result | {"fc": (10, 512)}


def densities(sparsity: float) -> dict[str, float]:
    """ERK: density proportional to sum(shape) / prod(shape), at most 1."""
    sizes = {name: prod(shape) for name, shape in shapes().items()}
    raw = {name: sum(shape) / prod(shape) for name, shape in shapes().items()}
    dense: set[str] = set()
    while True:
        rest = (1 - sparsity) * sum(sizes.values()) - sum(sizes[name] for name in dense)
        factor = rest / sum(raw[name] * sizes[name] for name in sizes if name not in dense)
        above = {name for name in sizes if name not in dense and factor * raw[name] > 1}
        if not above:
            return {name: 1.0 if name in dense else factor * raw[name] for name in sizes}
        dense.add(max(above, key=raw.__getitem__))


def weights(sparsity: float) -> dict[str, np.ndarray]:
    rng, result = np.random.default_rng(0), {}
    for name, shape in shapes().items():
        density = densities(sparsity)[name]
        values = rng.standard_normal(shape) * (2 / (density * prod(shape[1:]))) ** 0.5
        result[name] = (values * (rng.random(shape) < density)).astype("f")
        result[name + ".b"] = (rng.standard_normal(shape[0]) * 0.1).astype("f")
    return result


def graph() -> list[dict[str, Any]]:
    """ResNet-18 with BatchNorm folded."""
    ops: list[dict[str, Any]] = []

    def add(op: str, inputs: list[int], **rest: Any) -> int:
        ops.append({"op": op, "in": inputs, "out": len(ops) + 1} | rest)
        return len(ops)

    def conv(x: int, name: str, stride: int, act: str | None) -> int:
        shape = shapes()[name]
        return add("conv2d", [x], weight=name, bias=name + ".b", shape=list(shape), stride=[stride] * 2,
                   padding=[shape[2] // 2] * 2, act=act)  # fmt: skip

    x = conv(0, "stem", 1, "relu")
    for width in (64, 128, 256, 512):
        for block in "ab":
            stride = 2 if f"{width}{block}s" in shapes() else 1
            y = conv(conv(x, f"{width}{block}1", stride, "relu"), f"{width}{block}2", 1, None)
            shortcut = conv(x, f"{width}{block}s", stride, None) if stride == 2 else x
            x = add("add", [y, shortcut], act="relu")
    features = add("flatten", [add("global_avg_pool", [x])])
    add("linear", [features], weight="fc", bias="fc.b", shape=[10, 512])
    return ops


def to_onnx(ops: list[dict[str, Any]], tensors: dict[str, np.ndarray]) -> bytes:
    nodes = []
    for op in ops:
        inputs, out = [f"t{i}" for i in op["in"]], f"t{op['out']}"
        inner = out + "_" if op.get("act") else out
        match op["op"]:
            case "conv2d":
                pads, names = op["padding"] * 2, [op["weight"], op["bias"]]
                nodes.append(helper.make_node("Conv", inputs + names, [inner], strides=op["stride"], pads=pads))
            case "linear":
                nodes.append(helper.make_node("Gemm", [*inputs, op["weight"], op["bias"]], [inner], transB=1))
            case other:
                kind = {"add": "Add", "flatten": "Flatten", "global_avg_pool": "GlobalAveragePool"}[other]
                nodes.append(helper.make_node(kind, inputs, [inner]))
        if op.get("act"):
            nodes.append(helper.make_node("Relu", [inner], [out]))
    value, last = helper.make_tensor_value_info, f"t{ops[-1]['out']}"
    inputs = [value("t0", onnx.TensorProto.FLOAT, ["n", 3, 32, 32])]
    outputs = [value(last, onnx.TensorProto.FLOAT, ["n", 10])]
    constants = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    network = helper.make_graph(nodes, "resnet18", inputs, outputs, constants)
    model = helper.make_model(network, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString()


def to_moon(ops: list[dict[str, Any]], tensors: dict[str, np.ndarray], values: str = "<f4") -> bytes:
    packed: dict[str, np.ndarray] = {}
    for name, array in tensors.items():
        packed |= {name: array} if array.ndim == 1 else encode(name, array, values)
    return pack(ops, packed, input=[3, 32, 32], outputs={"features": ops[-2]["out"], "logits": ops[-1]["out"]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.9, 0.95, 0.99])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    for sparsity in arguments.sparsity:
        tensors = weights(sparsity)
        ours = Network(to_moon(graph(), tensors), arguments.threads)
        session = onnxruntime.InferenceSession(to_onnx(graph(), tensors), options, ["CPUExecutionProvider"])
        for batch in arguments.batch:
            images = np.random.default_rng(1).standard_normal((batch, 3, 32, 32)).astype("f")
            difference = np.abs(session.run(None, {"t0": images})[0] - ours(images)["logits"]).max()
            rounds, times = max(3, arguments.rounds // (1 if batch == 1 else 6)), []
            for _ in range(rounds):
                start = time.perf_counter()
                session.run(None, {"t0": images})
                middle = time.perf_counter()
                ours(images)
                times.append((middle - start, time.perf_counter() - middle))
            theirs, mine = np.array(times).T * 1e3
            print(f"{ours.instructions} {sparsity:.0%} batch {batch} threads {arguments.threads}: "
                  f"ONNX Runtime {theirs.min():.2f} ms, moon {mine.min():.2f} ms; ratio of minima "
                  f"{theirs.min() / mine.min():.2f}, median ratio {np.median(theirs / mine):.2f}; "
                  f"largest difference {difference:.1e}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
