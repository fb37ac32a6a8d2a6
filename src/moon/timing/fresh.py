"""A new process that answers one image: the time from the first import to the answer, and its memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import median

# On Linux, the resource usage of a process includes that of the process it was forked from, so that its own peak is
# read from /proc.
_PROGRAM = """
import sys, time
start, start_cpu = time.perf_counter(), time.process_time()
import numpy
import moon_runtime
model = moon_runtime.load(sys.argv[1])
channels, rows, columns = model.input_shape
model(numpy.zeros((1, rows, columns, channels), "u1"))
seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
try:
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
except OSError:
    import resource
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(seconds, cpu, peak)
"""


def time_first_answer(path: Path, processes: int = 5) -> dict[str, float]:
    """Start a new Python process, load a packed network with moon-runtime and answer one image, without PyTorch.

    Returns medians over processes: `seconds` from the first import to the answer, `cpu_seconds` of these on the CPU,
    and `bytes`, the peak of the resident memory.
    """
    results = []
    for _ in range(processes):
        done = subprocess.run([sys.executable, "-c", _PROGRAM, str(path)], check=True, capture_output=True, text=True)
        results.append([float(word) for word in done.stdout.split()])
    return dict(zip(("seconds", "cpu_seconds", "bytes"), map(median, zip(*results, strict=True)), strict=True))
