"""The processes that `gpu_startup.py` starts: each prints where its time goes."""

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from gpu_startup_hooks import compiled_by_triton, hook_launchers, hook_moon, hook_triton, part, say, wait

BATCH, LAST, FULL_BATCHES = 128, 80, 105  # the last batch is smaller, and masks change once before it
DEVICE = os.environ.get("MOON_STARTUP_DEVICE", "cuda")  # cpu: only to test this script
STEPS = 98 if DEVICE == "cuda" else 1
if DEVICE == "cpu":
    BATCH, LAST, FULL_BATCHES = 4, 3, 2
SETTINGS = {"batch_size": BATCH, "precision": "bfloat16" if DEVICE == "cuda" else "float32", "sparsity": 0.95}
STARTED = float(os.environ.get("MOON_STARTED", time.time()))


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


written = {}  # the functions of MOON's loss as equations, by module and name


def use_losses(way):
    """Replace the functions of MOON's loss: by kernels, compiled by torch, or as they are written."""
    import torch

    from moon.objectives import auto_weight, moon

    if not written:
        places = ((moon, "moon_loss"), (moon, "_observation"), (auto_weight, "_updated"), (auto_weight, "_weight"))
        written.update({place: getattr(*place).__wrapped__ for place in places})
    from moon.fast import losses

    kernels = {
        "moon_loss": losses.unknown_aware_loss, "_observation": losses.observe_batch, "_updated": losses.move_average,
        "_weight": losses.schedule_weight,
    }  # fmt: skip
    for (module, name), function in written.items():
        if way == "kernels":
            function = kernels[name]
        elif way != "uncompiled":
            function = torch.compile(function, dynamic=False)
        setattr(module, name, function)


def child_steps(options):
    """Milliseconds per step with several losses, all taking turns, and the kernels of a step."""
    import torch

    hook_triton()
    fastest_kernels()
    replays = {}
    ways = ("cross-entropy", "kernels"), ("moon", "kernels"), ("moon", "uncompiled")
    for objective, way in ways:
        with part(f"capture {objective}, {way}"):
            use_losses(way)
            training = new_training(objective)
            x, y = next(iter(training.batches.epoch(0)))
            name = f"{objective}, {way}"
            first = [float(training.step(x, y, epoch, 1e-3)) for epoch in (0, 0, 0, 50, 50)]
            say(f"    losses of {name}", None, " ".join(f"{loss:.5f}" for loss in first))
            steps: Any = training._steps
            replays[name, "quiet"] = steps.replayed(x, y, 0, 1e-3)
            replays[name, "later"] = steps.replayed(x, y, 50, 1e-3)
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
    steps: Any = training._steps
    replay = steps.replayed(x, y, 50, 1e-3)
    times = []
    for _ in range(5):
        wait()
        started = time.perf_counter()
        for _ in range(100):
            replay()
        wait()
        times.append(10 * (time.perf_counter() - started))
    say(f"limit {options.search_limit}: graph alone", None, f"{sorted(times)[2]:.4f} ms, best {min(times):.4f}")


CHILDREN = {"start": child_start, "steps": child_steps, "search": child_search}


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
