"""The processes that `gpu_startup.py` starts: each prints where its time goes."""

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from pathlib import Path

BATCH, LAST, FULL_BATCHES = 128, 80, 105  # the last batch is smaller, and masks change once before it
DEVICE = os.environ.get("MOON_STARTUP_DEVICE", "cuda")  # cpu: only to test this script
STEPS = 98 if DEVICE == "cuda" else 1
if DEVICE == "cpu":
    BATCH, LAST, FULL_BATCHES = 4, 3, 2
SETTINGS = {"batch_size": BATCH, "precision": "bfloat16" if DEVICE == "cuda" else "float32", "sparsity": 0.95}
STARTED = float(os.environ.get("MOON_STARTED", time.time()))


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
        import triton

        def heard(*, src, times, cache_hit, **_):
            stages = sum(microseconds for _, microseconds in times.lowering_stages)
            seconds = (times.ir_initialization + stages + times.store_results) / 1e6
            compiled_by_triton.append((src.name, seconds, cache_hit))

        triton.knobs.compilation.listener = heard
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


def switch_off_improvements():
    from moon.training import captured

    captured.CapturedSteps._compile_kernels = lambda self, x, y: None
    captured._search_kernels = lambda allowed: nullcontext()


def import_all():
    with part("import torch"):
        import torch
    with part("import moon"):
        import moon.run.watch
        import moon.timing  # noqa: F401
    with part("import triton"):
        import triton  # noqa: F401
    hook_triton()
    hook_launchers()
    with part("CUDA: initialise"):
        import torch

        torch.zeros(1, device=DEVICE)
    with part("cuDNN: load, one small convolution"):
        import torch

        x = torch.randn(1, 8, 8, 8, device=DEVICE, dtype=torch.bfloat16)
        torch.nn.functional.conv2d(x, torch.randn(8, 8, 3, 3, device=DEVICE, dtype=torch.bfloat16))
    with part("cuBLAS: load, one small product"):
        import torch

        torch.ones(8, 8, device=DEVICE) @ torch.ones(8, 8, device=DEVICE)


def import_compiler():
    with part("import torch._dynamo"):
        import torch._dynamo
    with part("import torch._inductor.compile_fx"):
        import torch._inductor.compile_fx  # noqa: F401


def fastest_kernels():
    import torch

    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = False, True


def new_training(objective="moon"):
    import torch

    from moon.data import BENCHMARKS
    from moon.recipe import build, make_recipe
    from moon.timing import noise

    benchmark = BENCHMARKS["cifar10"]
    recipe = make_recipe(benchmark, objective, topology="rigl", epochs=100, **SETTINGS)
    training = build.training(
        recipe, benchmark, noise(benchmark, BATCH * FULL_BATCHES + LAST), torch.device(DEVICE), None
    )
    training.captured = None if DEVICE == "cuda" else True
    training.begin()
    training.model.train()
    return training


def show_compile_times():
    """How dynamo and inductor divide their time."""
    if "torch._dynamo" not in sys.modules:
        return
    try:
        from torch._dynamo.utils import compilation_time_metrics as metrics

        rows = sorted(((sum(times), len(times), name) for name, times in metrics.items()), reverse=True)
        for seconds, count, name in rows[:14]:
            say(f"    inductor: {name[:44]}", seconds, f"{count} calls")
    except Exception as error:
        say(f"no times of inductor: {error}")


def child_start(options):
    say("start of the interpreter", time.time() - STARTED)
    import_all()
    import torch

    fastest_kernels()
    if options.before:
        switch_off_improvements()
    with part("import torch._dynamo, as torch.optim does"):
        import torch._dynamo
    if options.way is not None:
        import_compiler()
    hook_moon()
    if options.way is not None:
        use_losses(options.way)
    training = None
    with part("build: data on the GPU, network, masks"):
        training = new_training()
    batches = []
    with part("one epoch of batches"):
        batches = [(x.clone(), y.clone()) for x, y in training.batches.epoch(0)]
    (x, y), (small_x, small_y) = batches[0], batches[-1]
    first = time.perf_counter()
    with part(f"first step: batch {len(x)}, quiet phase"):
        training.step(x, y, 0, 1e-3)
    with part("second step"):
        training.step(x, y, 0, 1e-3)
    with part(f"{STEPS} steps"):
        for _ in range(STEPS):
            training.step(x, y, 0, 1e-3)
    with part("step with a mask update"):
        training.step(x, y, 0, 1e-3)
    with part(f"first step with batch {len(small_x)}"):
        training.step(small_x, small_y, 0, 1e-3)
    say("first step to here: the first epoch without its other steps", time.perf_counter() - first)
    with part(f"first step after the quiet phase, batch {len(x)}"):
        training.step(x, y, 50, 1e-3)
    with part(f"first step after the quiet phase, batch {len(small_x)}"):
        training.step(small_x, small_y, 50, 1e-3)
    for turn in ("first", "second"):
        with part(f"{turn} validation, 1000 and 1536 images"):
            validate(training)
    if training.capture_obstacle:
        say(f"NOT CAPTURED: {training.capture_obstacle}")
    with part(f"{3 * STEPS} steps"):
        for _ in range(3 * STEPS):
            training.step(x, y, 50, 1e-3)
    say("from the start of the process", time.time() - STARTED)
    show_compile_times()
    names = defaultdict(list)
    for name, seconds, _ in compiled_by_triton:
        names[name].append(seconds)
    for name, times in sorted(names.items(), key=lambda item: -sum(item[1])):
        say(f"    Triton: {name[:48]}", sum(times), f"{len(times)} variants")
    say(f"memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")


def validate(training):
    import torch

    from moon.data import BENCHMARKS, evaluation_batches
    from moon.evidence import autocast, read
    from moon.timing import noise

    benchmark = BENCHMARKS["cifar10"]
    for count in (1000, 1536) if DEVICE == "cuda" else (2, 3):
        batches = evaluation_batches(noise(benchmark, count), benchmark, torch.device(DEVICE), 2000)
        with autocast(training.model, torch.device(DEVICE), getattr(torch, SETTINGS["precision"])):
            read(training.model, batches)
    training.model.train()


def use_losses(way):
    """Replace the functions of MOON's loss: by kernels, compiled by torch, or as they are written."""
    import torch

    from moon.objectives import auto_weight, moon

    if not hasattr(use_losses, "written"):
        places = ((moon, "moon_loss"), (moon, "_observation"), (auto_weight, "_updated"), (auto_weight, "_weight"))
        use_losses.written = {place: getattr(*place).__wrapped__ for place in places}
    from moon.fast import losses

    kernels = {
        "moon_loss": losses.unknown_aware_loss, "_observation": losses.observe_batch, "_updated": losses.move_average,
        "_weight": losses.schedule_weight,
    }  # fmt: skip
    for (module, name), function in use_losses.written.items():
        if way == "kernels":
            function = kernels[name]
        elif way != "uncompiled":
            function = torch.compile(function, dynamic=False)
        setattr(module, name, function)


def child_loss(options):
    """The loss of MOON on random logits, compiled as in a captured step."""
    say("start of the interpreter", time.time() - STARTED)
    import_all()
    import torch

    from moon.objectives import moon
    from moon.objectives.auto_weight import AutoWeight
    from moon.objectives.epoch import DeviceEpoch

    if options.way in ("compiled", "one thread"):
        import_compiler()
    use_losses("uncompiled" if options.way == "one function" else options.way)
    objective = moon.Moon(AutoWeight(epochs=100)).to(DEVICE)
    loss = torch.compile(objective.loss, dynamic=False) if options.way == "one function" else objective.loss
    hook_triton()
    epoch = DeviceEpoch(torch.zeros((), dtype=torch.int64, device=DEVICE), host=0)
    for count in (BATCH, LAST):
        for turn in ("first", "second"):
            with part(f"{options.way}: {turn} loss and gradient of {count} images"):
                logits = torch.randn(count, 11, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
                loss(logits, torch.arange(count, device=DEVICE) % 10, epoch=epoch).backward()
    show_compile_times()


def child_steps(options):
    """Milliseconds per step with several losses, all taking turns, and the kernels of a step."""
    import torch

    hook_triton()
    fastest_kernels()
    replays = {}
    ways = ("cross-entropy", "kernels"), ("moon", "kernels"), ("moon", "compiled"), ("moon", "uncompiled")
    for objective, way in ways:
        with part(f"capture {objective}, {way}"):
            use_losses(way)
            training = new_training(objective)
            x, y = next(iter(training.batches.epoch(0)))
            name = f"{objective}, {way}"
            first = [float(training.step(x, y, epoch, 1e-3)) for epoch in (0, 0, 0, 50, 50)]
            say(f"    losses of {name}", None, " ".join(f"{loss:.5f}" for loss in first))
            replays[name, "quiet"] = training._steps.replayed(x, y, 0, 1e-3)
            replays[name, "later"] = training._steps.replayed(x, y, 50, 1e-3)
            replays[name, "keep"] = training  # its buffers are those of the graph
    use_losses("kernels")
    times = defaultdict(list)
    for _ in range(5):
        for key, replay in replays.items():
            if key[1] != "keep":
                torch.cuda.synchronize()
                started = time.perf_counter()
                for _ in range(60):
                    replay()
                torch.cuda.synchronize()
                times[key].append(1000 / 60 * (time.perf_counter() - started))
    for (name, phase), each in times.items():
        say(f"graph alone: {name}, {phase} phase", None, f"{sorted(each)[len(each) // 2]:.4f} ms, best {min(each):.4f}")
    replays.clear()
    with part("kernels"):
        from moon.cli import bench_kernels
        from moon.data import BENCHMARKS

        device = torch.device(DEVICE)
        found = bench_kernels.profile([("moon", "rigl")], BENCHMARKS["cifar10"], device, {"net": None, **SETTINGS})
        for kernel in found[0]["kernels"]:
            print(f"    {kernel['microseconds']:8.1f} us  {kernel['count']:6.4g} x  {kernel['name'][:150]}", flush=True)
        if options.out:
            Path(options.out).write_text(json.dumps(found, indent=1))


def child_search(options):
    import torch

    fastest_kernels()
    torch.backends.cudnn.benchmark_limit = options.search_limit
    hook_moon()
    training = new_training()
    x, y = next(iter(training.batches.epoch(0)))
    with part(f"limit {options.search_limit}: first step"):
        training.step(x, y, 50, 1e-3)
    replay = training._steps.replayed(x, y, 50, 1e-3)
    times = []
    for _ in range(5):
        wait()
        started = time.perf_counter()
        for _ in range(100):
            replay()
        wait()
        times.append(10 * (time.perf_counter() - started))
    say(f"limit {options.search_limit}: graph alone", None, f"{sorted(times)[2]:.4f} ms, best {min(times):.4f}")


CHILDREN = {"start": child_start, "loss": child_loss, "steps": child_steps, "search": child_search}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("child", choices=CHILDREN)
    parser.add_argument("--before", action="store_true")
    for name in ("way", "out"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--search-limit", type=int)
    options = parser.parse_args()
    CHILDREN[options.child](options)


if __name__ == "__main__":
    main()
