"""Every kernel compiles for a GPU, also on a machine without one: the interpreter accepts more than the compiler."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

ARGUMENTS = {
    "*bf16": "x residual y grad second_grad grad_out x_grad low_precision",
    "*i64": "num_batches_tracked addresses blocks found epoch",
    "*i32": "counter histograms counters before",
    "*i1": "mask",
    "i32": "rows columns part first quiet_epochs steps",
    "fp32": "epsilon momentum decay smoothing init_factor final",
}
TYPES = {name: kind for kind, names in ARGUMENTS.items() for name in names.split()}  # all others are *fp32
RELU = {"RELU": True, "RESIDUAL": True}
SUM = {"PARTS": 128, "ROWS": 128, "COLUMNS": 32}
LOSS = {"ROWS": 128, "COLUMNS": 16}
KERNELS = {
    "moments": (SUM, 8),
    "normalise": (RELU | {"ROWS": 64, "COLUMNS": 64}, 4),
    "norm_grad_sums": (RELU | {"TWO": True, "ADD": True} | SUM, 8),
    "norm_grad_input": ({"RELU": True, "ROWS": 64, "COLUMNS": 64}, 4),
    "sgd": ({"NESTEROV": True, "LOW_PRECISION": True, "BLOCK": 2048}, 8),
    "select_digit": ({"SHIFT": 24, "BLOCK": 4096}, 8),
    "count_ties": ({"PARTS": 1024, "BLOCK": 4096}, 8),
    "write_masks": ({"BLOCK": 4096}, 8),
    "unknown_aware": (LOSS, 8),
    "observation": (LOSS, 8),
    "moving_average": ({"ROWS": 1024}, 4),
    "scheduled_weight": ({"RISES": True}, 4),
}


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_every_kernel_compiles_for_a_gpu():
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(KERNELS)


def compile_all() -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from moon.fast import kernels, loss_kernels

    found = {**vars(kernels), **vars(loss_kernels)}
    public = {name for name, value in found.items() if isinstance(value, triton.JITFunction) and name[0] != "_"}
    assert public == set(KERNELS), "a kernel is not listed here"
    for name, (constants, warps) in KERNELS.items():
        kernel = found[name]
        types = {key: "constexpr" if key in constants else TYPES.get(key, "*fp32") for key in kernel.arg_names}
        if name == "sgd":
            types["grad"] = "*fp32"
        if name in ("unknown_aware", "observation"):
            types["y"] = "*i64"
        source = ASTSource(kernel, types, constexprs=constants)
        triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
        print(name)


if __name__ == "__main__":
    compile_all()
