"""Times sparse networks against ONNX Runtime and OpenVINO, in one process, in turn.

    python benchmark.py [--network resnet18 resnet50 mobilenet_v2] [--sparsity 0.9 0.95 0.99] [--batch 1 32]
                        [--threads 1 2] [--precision float32 float16] [--rounds 30] [--cpu-time] [--json FILE]

Weights are random, with ERK masks; their values do not change the time. Contenders that are not installed are left
out. The ratio is the median over rounds of the time of a contender divided by ours in the same round.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "tests"))
from files import encode, pack
from moon_runtime import Network

Contender = Callable[[np.ndarray], np.ndarray]


@dataclass
class Architecture:
    """A network as a list of operations (see README.md), with the shapes of its weights."""

    name: str
    input: tuple[int, int, int]
    ops: list[dict[str, Any]] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def add(self, op: str, inputs: list[int], **rest: Any) -> int:
        self.ops.append({"op": op, "in": inputs, "out": len(self.ops) + 1} | rest)
        return len(self.ops)

    def conv(self, x: int, shape: tuple[int, int, int, int], stride: int = 1, act: str | None = "relu",
             groups: int = 1) -> int:  # fmt: skip
        name = f"conv{len(self.shapes)}"
        self.shapes[name] = shape
        return self.add("conv2d", [x], weight=name, bias=name + ".b", shape=list(shape), stride=[stride] * 2,
                        padding=[shape[2] // 2] * 2, groups=groups, act=act)  # fmt: skip

    def classify(self, x: int, channels: int, classes: int) -> None:
        features = self.add("flatten", [self.add("global_avg_pool", [x])])
        self.shapes["fc"] = (classes, channels)
        self.add("linear", [features], weight="fc", bias="fc.b", shape=[classes, channels])


def resnet18() -> Architecture:
    """ResNet-18 for images of 32x32, with BatchNorm folded."""
    net = Architecture("resnet18", (3, 32, 32))
    x, inputs = net.conv(0, (64, 3, 3, 3)), 64
    for width in (64, 128, 256, 512):
        for _ in range(2):
            stride = 1 if inputs == width else 2
            y = net.conv(x, (width, inputs, 3, 3), stride)
            y = net.conv(y, (width, width, 3, 3), act=None)
            shortcut = net.conv(x, (width, inputs, 1, 1), stride, None) if stride == 2 else x
            x, inputs = net.add("add", [y, shortcut], act="relu"), width
    net.classify(x, 512, 10)
    return net


def resnet50() -> Architecture:
    """ResNet-50 for images of 224x224."""
    net = Architecture("resnet50", (3, 224, 224))
    x = net.add("max_pool", [net.conv(0, (64, 3, 7, 7), 2)], kernel=[3, 3], stride=[2, 2], padding=[1, 1])
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            stride = 2 if block == 0 and width > 64 else 1
            y = net.conv(x, (width, inputs, 1, 1))
            y = net.conv(y, (width, width, 3, 3), stride)
            y = net.conv(y, (4 * width, width, 1, 1), act=None)
            shortcut = x if block else net.conv(x, (4 * width, inputs, 1, 1), stride, None)
            x, inputs = net.add("add", [y, shortcut], act="relu"), 4 * width
    net.classify(x, 2048, 1000)
    return net


def mobilenet_v2() -> Architecture:
    """MobileNetV2 for images of 224x224."""
    net = Architecture("mobilenet_v2", (3, 224, 224))
    x, inputs = net.conv(0, (32, 3, 3, 3), 2, "relu6"), 32
    for factor, width, blocks, first in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for block in range(blocks):
            stride, wide = 1 if block else first, inputs * factor
            y = x if factor == 1 else net.conv(x, (wide, inputs, 1, 1), act="relu6")
            y = net.conv(y, (wide, 1, 3, 3), stride, "relu6", groups=wide)
            y = net.conv(y, (width, wide, 1, 1), act=None)
            x, inputs = net.add("add", [y, x]) if stride == 1 and inputs == width else y, width
    net.classify(net.conv(x, (1280, 320, 1, 1), act="relu6"), 1280, 1000)
    return net


NETWORKS = {"resnet18": resnet18, "resnet50": resnet50, "mobilenet_v2": mobilenet_v2}


def erk(shapes: dict[str, tuple[int, ...]], sparsity: float) -> dict[str, float]:
    """The density of each weight: proportional to sum(shape) / prod(shape), at most 1."""
    sizes = {name: prod(shape) for name, shape in shapes.items()}
    raw = {name: sum(shape) / prod(shape) for name, shape in shapes.items()}
    dense: set[str] = set()
    while True:
        rest = (1 - sparsity) * sum(sizes.values()) - sum(sizes[name] for name in dense)
        factor = rest / sum(raw[name] * sizes[name] for name in sizes if name not in dense)
        above = {name for name in sizes if name not in dense and factor * raw[name] > 1}
        if not above:
            return {name: 1.0 if name in dense else factor * raw[name] for name in sizes}
        dense.add(max(above, key=raw.__getitem__))


def random_weights(net: Architecture, sparsity: float, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights and biases such that activations keep their size."""
    rng, result, density = np.random.default_rng(seed), {}, erk(net.shapes, sparsity)
    for name, shape in net.shapes.items():
        values = rng.standard_normal(shape) * (2 / (density[name] * prod(shape[1:]))) ** 0.5
        result[name] = (values * (rng.random(shape) < density[name])).astype("f")
        result[name + ".b"] = (rng.standard_normal(shape[0]) * 0.1).astype("f")
    return result


def to_moon(net: Architecture, tensors: dict[str, np.ndarray], values: str = "<f4") -> bytes:
    packed: dict[str, np.ndarray] = {}
    for name, array in tensors.items():
        packed |= {name: array} if array.ndim == 1 else encode(name, array, values)
    outputs = {"features": net.ops[-2]["out"], "logits": net.ops[-1]["out"]}
    return pack(net.ops, packed, input=list(net.input), outputs=outputs)


def to_onnx(net: Architecture, tensors: dict[str, np.ndarray]) -> bytes:
    import onnx
    from onnx import helper, numpy_helper

    nodes = []
    for op in net.ops:
        inputs, out = [f"t{i}" for i in op["in"]], f"t{op['out']}"
        inner = out + "_" if op.get("act") else out
        match op["op"]:
            case "conv2d":
                nodes.append(helper.make_node("Conv", [*inputs, op["weight"], op["bias"]], [inner], group=op["groups"],
                                              strides=op["stride"], pads=op["padding"] * 2))  # fmt: skip
            case "linear":
                nodes.append(helper.make_node("Gemm", [*inputs, op["weight"], op["bias"]], [inner], transB=1))
            case "max_pool":
                nodes.append(helper.make_node("MaxPool", inputs, [inner], kernel_shape=op["kernel"],
                                              strides=op["stride"], pads=op["padding"] * 2))  # fmt: skip
            case other:
                kind = {"add": "Add", "flatten": "Flatten", "global_avg_pool": "GlobalAveragePool"}[other]
                nodes.append(helper.make_node(kind, inputs, [inner]))
        if op.get("act") == "relu6":
            nodes.append(helper.make_node("Clip", [inner, "zero", "six"], [out]))
        elif op.get("act"):
            nodes.append(helper.make_node("Relu", [inner], [out]))
    value, last = helper.make_tensor_value_info, f"t{net.ops[-1]['out']}"
    bounds = {"zero": np.array(0, "f"), "six": np.array(6, "f")}
    constants = tensors | (bounds if any(node.op_type == "Clip" for node in nodes) else {})
    graph = helper.make_graph(
        nodes,
        net.name,
        [value("t0", onnx.TensorProto.FLOAT, ["n", *net.input])],
        [value(last, onnx.TensorProto.FLOAT, ["n", net.shapes["fc"][0]])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def moon(net: Architecture, tensors: dict[str, np.ndarray], threads: int, precision: str = "float32") -> Contender:
    network = Network(to_moon(net, tensors), threads, precision)
    return lambda images: network(images)["logits"]


def onnx_runtime(net: Architecture, tensors: dict[str, np.ndarray], threads: int) -> Contender:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(to_onnx(net, tensors), options, ["CPUExecutionProvider"])
    return lambda images: session.run(None, {"t0": images})[0]


def open_vino(net: Architecture, tensors: dict[str, np.ndarray], threads: int) -> Contender:
    import openvino

    core = openvino.Core()
    options = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    compiled = core.compile_model(core.read_model(to_onnx(net, tensors), b""), "CPU", options)
    request = compiled.create_infer_request()
    return lambda images: request.infer([images])[compiled.output(0)]


def contenders(net: Architecture, tensors: dict[str, np.ndarray], threads: int, precisions: list[str],
               ) -> dict[str, Contender]:  # fmt: skip
    """All that can be measured here, by name. The first is the one that others are compared with."""
    result = {f"moon {precision}": moon(net, tensors, threads, precision) for precision in precisions}
    if find_spec("onnx") and find_spec("onnxruntime"):
        result["onnxruntime"] = onnx_runtime(net, tensors, threads)
    if find_spec("onnx") and find_spec("openvino"):
        result["openvino"] = open_vino(net, tensors, threads)
    return result


def time_in_turn(
    candidates: dict[str, Contender], images: np.ndarray, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, np.ndarray]:
    """The seconds of each round, after one that does not count."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(rounds + 1):
        for name, compute in candidates.items():
            start = clock()
            compute(images)
            if turn:
                times[name].append(clock() - start)
    return {name: np.array(values) for name, values in times.items()}


def measure(
    net: Architecture, sparsity: float, batch: int, threads: int, rounds: int, precisions: list[str],
    clock: Callable[[], float] = time.perf_counter,
) -> list[dict[str, Any]]:  # fmt: skip
    """One row for each contender: the shortest time, and the ratios to the first contender."""
    candidates = contenders(net, random_weights(net, sparsity), threads, precisions)
    images = np.random.default_rng(1).standard_normal((batch, *net.input)).astype("f")
    first = next(iter(candidates))
    expected = candidates[first](images)
    times = time_in_turn(candidates, images, rounds, clock)
    return [
        {"network": net.name, "sparsity": sparsity, "batch": batch, "threads": threads, "contender": name,
         "milliseconds": float(seconds.min() * 1e3), "median_ratio": float(np.median(seconds / times[first])),
         "ratio_of_minima": float(seconds.min() / times[first].min()),
         "difference": float(np.abs(candidates[name](images) - expected).max() / np.abs(expected).max())}
        for name, seconds in times.items()
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=["resnet18"])
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.9, 0.95, 0.99])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--precision", nargs="+", choices=["float32", "float16"], default=["float32"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--cpu-time", action="store_true", help="time of the process on the CPU, for busy machines")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    clock, rows = time.process_time if arguments.cpu_time else time.perf_counter, []
    print("network       sparsity batch threads contender        ms  ratio (median, of minima)  difference")
    for name in arguments.network:
        for sparsity in arguments.sparsity:
            for batch in arguments.batch:
                for threads in arguments.threads:
                    rounds = max(3, arguments.rounds // (1 if batch == 1 else 4))
                    found = measure(NETWORKS[name](), sparsity, batch, threads, rounds, arguments.precision, clock)
                    for row in found:
                        print(f"{name:13} {sparsity:8.0%} {batch:5} {threads:7} {row['contender']:13} "
                              f"{row['milliseconds']:8.2f}  {row['median_ratio']:5.2f} {row['ratio_of_minima']:5.2f}"
                              f"  {row['difference']:27.1e}", flush=True)  # fmt: skip
                    rows += found
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
