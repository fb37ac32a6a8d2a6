"""Functions that are compiled in training steps on a GPU."""

from types import SimpleNamespace

import pytest
import torch

from moon.fast import compiled, fused


def double(x):
    return 2 * x


@pytest.fixture
def dynamo(monkeypatch):
    """The settings of torch._dynamo, with a step on a GPU active as far as `fused` can see."""
    from torch._dynamo import config

    buffers = SimpleNamespace(weight=SimpleNamespace(is_cuda=True))
    monkeypatch.setattr(compiled, "active_buffers", lambda: buffers)
    return config


def test_outside_of_a_step_a_function_is_not_compiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.fail("compiled"))
    assert fused(double)(torch.ones(2)).tolist() == [2, 2]


def test_the_settings_of_the_compiler_are_changed_only_inside_the_call(dynamo, monkeypatch):
    before = dynamo.recompile_limit, dynamo.accumulated_recompile_limit
    inside, calls = [], []

    def compile_function(function, dynamic):
        calls.append(dynamic)

        def run(x):
            inside.append((dynamo.recompile_limit, dynamo.accumulated_recompile_limit))
            return function(x)

        return run

    monkeypatch.setattr(torch, "compile", compile_function)
    function = fused(double)
    for _ in range(2):
        assert function(torch.ones(2)).tolist() == [2, 2]
    assert calls == [False]
    assert inside == [(10_000, 10_000)] * 2
    assert (dynamo.recompile_limit, dynamo.accumulated_recompile_limit) == before


def test_without_a_compiler_a_warning_is_shown_and_the_function_runs_as_it_is(dynamo, monkeypatch):
    from torch._dynamo.exc import BackendCompilerFailed

    def fail(x):
        raise BackendCompilerFailed(double, RuntimeError("no C compiler"), None)

    monkeypatch.setattr(torch, "compile", lambda *_, **__: fail)
    function = fused(double)
    with pytest.warns(UserWarning, match="double is not compiled"):
        assert function(torch.ones(2)).tolist() == [2, 2]
    assert function(torch.ones(2)).tolist() == [2, 2]  # warns only once
