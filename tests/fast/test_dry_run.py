"""A dry run compiles the kernels of a step, also on a machine without a GPU, and computes nothing."""

import os
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from moon.fast import FlatBuffers, batch_norm, dry_run, layers_on_buffers, norm_relu, second_use, top_masks
from moon.fast.compiling import convolution, convolution_backward, is_dry_run, kernel_search

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
GEOMETRY = None, [2, 1], [1, 1], [1, 1], False, [0, 0], 1


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_convolutions_are_zeros_of_the_right_shape_and_layout(layout):
    x = torch.randn(2, 8, 6, 6).to(memory_format=layout)
    weight = torch.randn(4, 8, 3, 3).to(memory_format=layout)
    right = convolution(x, weight, *GEOMETRY)
    masks = [True, True, False]
    right_grads = convolution_backward(right, x, weight, *GEOMETRY, masks)
    with dry_run():
        assert is_dry_run()
        dry = convolution(x, weight, *GEOMETRY)
        dry_grads = convolution_backward(dry, x, weight, *GEOMETRY, masks)
    assert not is_dry_run()
    for zeros, like in ((dry, right), (dry_grads[0], right_grads[0]), (dry_grads[1], right_grads[1])):
        assert not zeros.any()
        assert (zeros.shape, zeros.dtype) == (like.shape, like.dtype)
    assert dry.is_contiguous(memory_format=layout)
    assert convolution(x, weight, *GEOMETRY).any()


@pytest.mark.parametrize("enabled", [False, True])
def test_cudnn_searches_only_where_it_is_enabled_and_allowed(enabled, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", enabled)
    with kernel_search(False):
        assert not torch.backends.cudnn.benchmark
    with kernel_search(True):
        assert torch.backends.cudnn.benchmark == enabled
    assert torch.backends.cudnn.benchmark == enabled


def test_a_dry_run_ends_with_an_error_inside():
    with pytest.raises(ZeroDivisionError), dry_run():
        raise ZeroDivisionError
    assert not is_dry_run()
    with dry_run():  # and another one can follow
        pass


def test_a_cache_that_cannot_be_written_is_replaced_by_a_temporary_one(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match="file/cache is not writable"), dry_run():
        pass
    assert os.access(os.environ["TRITON_CACHE_DIR"], os.W_OK)
    with dry_run():  # warns only once
        pass


@pytest.mark.slow
def test_all_kernels_of_a_step_are_compiled_in_parallel_and_none_is_launched(tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-W", "ignore", __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ok"]


class Block(nn.Module):
    """A residual block with all variants of BatchNorm."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Conv2d(64, 64, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(64) for _ in range(2))

    def forward(self, x):
        x = norm_relu(self.norms[0], self.first(x))
        return norm_relu(self.norms[1], self.second(x), second_use(x)).sum()


def compile_without_a_gpu() -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    from moon.fast import kernels, selection

    target, loaded = GPUTarget("cuda", 90, 32), []

    def launcher(source, metadata):
        loaded.append(source.name)
        raise NotImplementedError("there is no GPU")

    driver.set_active(
        SimpleNamespace(  # pyright: ignore[reportArgumentType]
            get_current_device=lambda: 0,
            get_current_stream=lambda _: 0,
            get_current_target=lambda: target,
            launcher_cls=launcher,
        )
    )
    compiled = []
    triton.knobs.compilation.listener = lambda *, src, **_: compiled.append(src.name)
    batch_norm._has_kernels = selection._has_kernels = lambda x: True
    model = Block().to(memory_format=torch.channels_last)
    buffers = FlatBuffers(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), {}, None)
    x = torch.randn(4, 64, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    before = [tensor.clone() for tensor in model.state_dict().values()]

    def step():
        top_masks([torch.randn(100)], [3])
        with layers_on_buffers(model), buffers.step():
            loss = model(x)
            with buffers.collect_gradients():
                loss.backward()

    with dry_run():
        step()
    names = {"moments", "normalise", "norm_grad_sums", "norm_grad_input", "select_digit", "count_ties", "write_masks"}
    assert set(compiled) == names, compiled
    assert compiled.count("norm_grad_sums") == 2
    assert sorted(loaded) == sorted(compiled)
    for now, old in zip(model.state_dict().values(), before, strict=True):
        assert torch.equal(now, old)
    count, launched = len(compiled), []

    def launch(kernel, grid, *values, **options):
        launched.append(kernel.warmup(*values, grid=grid, **options))

    kernels.launch = launch
    step()
    assert len(launched) == 14
    assert all(isinstance(kernel, triton.compiler.CompiledKernel) for kernel in launched)
    assert len(compiled) == count, compiled[count:]  # nothing was left to compile
    print("ok")


if __name__ == "__main__":
    compile_without_a_gpu()
