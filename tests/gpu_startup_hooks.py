"""Where the time of a process goes: blocks, calls, and kernels that Triton compiles."""

import sys
import time
from collections import defaultdict
from contextlib import contextmanager


class Clock:
    """Seconds by name; those of an inner block do not count for the outer one."""

    def __init__(self):
        self.seconds, self.counts, self._open = defaultdict(float), defaultdict(int), []

    @contextmanager
    def __call__(self, name):
        self._pause()
        self._open.append([name, time.perf_counter()])
        self.counts[name] += 1
        try:
            yield
        finally:
            self._pause()
            self._open.pop()
            if self._open:
                self._open[-1][1] = time.perf_counter()

    def _pause(self):
        if self._open:
            name, since = self._open[-1]
            self.seconds[name] += time.perf_counter() - since

    def take(self):
        found = {name: (self.counts[name], seconds) for name, seconds in self.seconds.items()}
        self.seconds.clear()
        self.counts.clear()
        return found


clock = Clock()
compiled_by_triton = []  # (name, seconds, whether it was cached), from any thread


def say(what, seconds=None, note=""):
    print(f"    {what:58} {'' if seconds is None else f'{seconds:8.2f} s'}  {note}".rstrip(), flush=True)


@contextmanager
def part(what, note=""):
    """A line with the time of a block and, indented, where it went; an error is printed instead."""
    clock.take()
    before, started = len(compiled_by_triton), time.perf_counter()
    try:
        yield
        wait()
    except Exception as error:
        say(f"{what} FAILED", time.perf_counter() - started, f"{type(error).__name__}: {error}"[:300])
        return
    say(what, time.perf_counter() - started, note)
    for name, (count, seconds) in sorted(clock.take().items(), key=lambda item: -item[1][1]):
        if seconds > 0.02:
            say(f"    {name}", seconds, f"{count} calls")
    new = compiled_by_triton[before:]
    if new:
        cached = sum(is_cached for _, _, is_cached in new)
        total = sum(seconds for _, seconds, _ in new)
        say(f"    (Triton: {len(new) - cached} compiled, {cached} cached; sum over threads", total, ")")


def wait():
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def timed(owner, name, label):
    """Count the time of a function under a label."""
    try:
        function = getattr(owner, name)
    except AttributeError as error:
        say(f"no hook for {label}: {error}")
        return

    def call(*values, **named):
        with clock(label() if callable(label) else label):
            return function(*values, **named)

    setattr(owner, name, call)


def hook_triton():
    try:
        from triton import knobs

        def heard(*, src, times, cache_hit, **_):
            stages = sum(microseconds for _, microseconds in times.lowering_stages)
            seconds = (times.ir_initialization + stages + times.store_results) / 1e6
            compiled_by_triton.append((src.name, seconds, cache_hit))

        knobs.compilation.listener = heard
    except Exception as error:
        say(f"no hook for Triton: {type(error).__name__}: {error}")


def hook_launchers():
    """Record how long the C compiler takes for Triton's launchers, as if they were kernels."""
    try:
        from triton.runtime import build

        make = build._build

        def timed_make(name, *values, **named):
            started = time.perf_counter()
            try:
                return make(name, *values, **named)
            finally:
                compiled_by_triton.append((f"C: {name}", time.perf_counter() - started, False))

        build._build = timed_make
    except Exception as error:
        say(f"no hook for launchers: {type(error).__name__}: {error}")


def hook_moon():
    """Count the time of convolutions, passes and compiled losses."""
    import torch

    from moon.fast import layers
    from moon.training import captured

    timed(layers, "convolution", "cuDNN, forward")
    timed(layers, "convolution_backward", "cuDNN, backward")
    timed(captured.CapturedSteps, "_compile_kernels", "dry run")
    passes = []

    def new_capture():
        passes.clear()
        return "capture, rest"

    def next_pass():
        passes.append(None)
        return f"pass {len(passes)} (1: dry run, last: captured), rest"

    timed(captured.CapturedSteps, "_capture", new_capture)
    timed(captured.CapturedSteps, "_forward_backward", next_pass)
    compile_function = torch.compile

    def timed_compile(function, **options):
        compiled = compile_function(function, **options)

        def call(*values, **named):
            with clock(f"torch.compile: {function.__name__}"):
                return compiled(*values, **named)

        return call

    torch.compile = timed_compile
