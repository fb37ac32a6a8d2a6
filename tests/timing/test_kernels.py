"""What the kernels of a profile are for, and how their times add up."""

import pytest

from moon.cli import bench_kernels
from moon.timing.kernels import GROUPS, Event, group_of, summarise

NAMES = {
    "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1": (
        "forward convolution"
    ),
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_128x128_32x5_nhwc_align8>": (
        "forward convolution"
    ),
    "sm80_xmma_dgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x64x32": "input gradient",
    "sm90_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64": "weight gradient",
    "void cudnn::cnn::wgrad2d_grouped_direct_kernel<__nv_bfloat16>": "weight gradient",
    "moments": "BatchNorm",
    "normalise": "BatchNorm",
    "norm_grad_sums": "BatchNorm",
    "norm_grad_input": "BatchNorm",
    "void at::native::batch_norm_transform_input_kernel<float>": "BatchNorm",
    "sgd": "update",
    "select_digit": "mask update",
    "unknown_aware": "loss",
    "scheduled_weight": "loss",
    "triton_per_fused__log_softmax_0": "loss",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 4, true, false>": "loss",
    "nvjet_tst_64x8_64x16_4x1_v_bz_TNN": "matrix product",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float>": "matrix product",
    "Memcpy DtoD (Device -> Device)": "copies",
    "Memset (Device)": "copies",
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIterator)>": "copies",
    "void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float>": "copies",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>": "other",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_is_grouped_by_its_name(name):
    assert group_of(name) == NAMES[name]
    assert group_of(name) in GROUPS


def two_steps(gap):
    """Each step: BatchNorm for 10 us; 2 us later the update for 8 us, of which a gradient overlaps 5 and adds 1."""
    starts = (0.0, 21.0 + gap)
    return [
        event
        for t in starts
        for event in (
            Event("sgd", t + 12, t + 20),
            Event("moments", t, t + 10),
            Event("xmma_wgrad", t + 15, t + 21),
        )
    ]


def test_times_are_per_step_and_overlapping_kernels_count_once_as_busy():
    found = summarise(two_steps(gap=3.0), steps=2)
    assert found["sum"] == 24
    assert found["busy"] == 19
    assert found["span"] == 21
    assert (found["idle_within"], found["idle_between"]) == (2, 3)
    assert [(k["name"], k["count"], k["microseconds"]) for k in found["kernels"]] == [
        ("moments", 1, 10), ("sgd", 1, 8), ("xmma_wgrad", 1, 6),
    ]  # fmt: skip
    assert [g["group"] for g in found["groups"]] == ["BatchNorm", "update", "weight gradient"]
    assert sum(g["share"] for g in found["groups"]) == pytest.approx(1)


def test_steps_with_different_kernels_are_not_told_apart():
    found = summarise([*two_steps(gap=3.0), Event("moments", 50.0, 51.0)], steps=2)
    assert found["idle_between"] is None
    assert found["span"] == 51 / 2
    assert found["busy"] == (19 + 19 + 1) / 2


def test_a_profile_without_kernels_is_an_error():
    with pytest.raises(ValueError, match="contains no kernels"):
        summarise([], steps=2)


def test_the_table_shows_groups_kernels_and_idle_times(capsys):
    events = two_steps(gap=3.0) + [Event(f"small_{i}", 60.0 + i, 60.5 + i) for i in range(40)]
    bench_kernels.show("a step", summarise(events, steps=2))
    text = capsys.readouterr().out
    assert "weight gradient" in text
    assert "norm" not in text
    assert "13 other kernels" in text
    assert "sum of all kernels 34 us, at least one running 29 us" in text
