"""Writes networks with inputs and expected outputs for tests/compare.c: python tests/cases.py FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from files import encode, pack
from reference import run
from test_operations import small_resnet, sparse


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    graph, dense = small_resnet(rng)
    graph.append({"op": "linear", "in": [8], "out": 11, "weight": "few", "shape": [203, 40]})
    cases = [(graph, dense | {"few": sparse(rng, (203, 40), 0.15)}, (3, 14, 14))]
    for shape, outputs, kernel, stride, groups in (
        ((16, 16, 16), 24, 3, 2, 1), ((8, 9, 30), 8, 5, 1, 8), ((3, 40, 40), 5, 7, 2, 1), ((40, 4, 4), 40, 3, 1, 1),
    ):  # fmt: skip
        weight = sparse(rng, (outputs, shape[0] // groups, kernel, kernel), 0.3)
        conv = {"op": "conv2d", "in": [0], "out": 1, "weight": "w", "shape": list(weight.shape), "groups": groups,
                "stride": [stride] * 2, "padding": [kernel // 2] * 2, "act": "hardswish"}  # fmt: skip
        pool = {"op": "max_pool", "in": [1], "out": 2, "kernel": [3, 3], "stride": [2, 2], "padding": [1, 1]}
        cases.append(([conv, pool], {"w": weight}, shape))
    for number, (ops, tensors, shape) in enumerate(cases):
        images = rng.standard_normal((67, *shape)).astype("f")
        packed: dict[str, np.ndarray] = {}
        for name, array in tensors.items():
            packed |= {name: array} if array.ndim == 1 else encode(name, array)
        last = ops[-1]["out"]
        (folder / f"{number}.moon").write_bytes(pack(ops, packed, input=list(shape), outputs={"y": last}))
        images.tofile(folder / f"{number}.input")
        run(ops, tensors, images)[last].astype("f").tofile(folder / f"{number}.expected")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
