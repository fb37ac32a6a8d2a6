"""Where does the time before the first captured training steps on a GPU go?

    python tests/gpu_startup.py [--parts cold warm steps before] [--limit 150] [--out FILE]

Each part runs in new processes and prints lines as soon as they are known. What fails is printed, and the rest goes on.

cold    trains MOON with RigL at 95% on noise, with empty caches of Triton, inductor and the CUDA driver
warm    the same again, with the caches that `cold` has filled
before  `cold`, with the loss compiled by torch, kernels one after another, cuDNN's search for every batch size
steps   the time of a step with MOON's loss as kernels and as written; the kernels of a step (uses the caches)
search  cuDNN's search and the time of a step with other limits of the search (not by default, uses the caches)
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpu_startup_hooks import say

CHILD = str(Path(__file__).with_name("gpu_startup_parts.py"))


class Processes:
    """New Python processes with caches in a folder of their own, until a time limit."""

    def __init__(self, folder, limit):
        self.folder, self.end = Path(folder), time.monotonic() + limit

    def start(self, title, arguments, caches):
        folder = self.folder / caches
        variables = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "CUDA_CACHE_PATH": "cuda"}
        places = {name: str(folder / sub) for name, sub in variables.items()}
        started = {"MOON_STARTED": str(time.time()), "PYTHONUNBUFFERED": "1"}
        print(f"\n{title}", flush=True)
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", CHILD, *arguments],
            env=os.environ | places | started,
            stderr=subprocess.STDOUT,
        )

    def finish(self, process):
        try:
            code = process.wait(max(1.0, self.end - time.monotonic()))
            if code:
                say(f"ended with {code}")
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            say("stopped: the time limit is reached")


def run_parts(parts, processes, out):
    one_by_one = {
        "cold": ("cold start", ["start"], "a"),
        "warm": ("warm start", ["start"], "a"),
        "before": ("cold start as before", ["start", "--before", "--way", "compiled"], "b"),
        "steps": ("steps", ["steps", *([] if out is None else ["--out", str(out)])], "a"),
    }
    for name in parts:
        if processes.end < time.monotonic():
            say(f"{name}: no time left")
        elif name in one_by_one:
            title, arguments, caches = one_by_one[name]
            processes.finish(processes.start(title, arguments, caches))
        elif name == "search":
            for limit in ("10", "4", "2"):
                arguments = ["search", "--search-limit", limit]
                processes.finish(processes.start(f"search limit {limit}", arguments, "a"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["cold", "warm", "before", "steps", "search"]
    parser.add_argument("--parts", nargs="+", choices=names, default=["cold", "warm", "steps", "before"])
    parser.add_argument("--limit", type=float, default=150, help="seconds after which the rest is stopped")
    parser.add_argument("--out", help="where to write the kernels as JSON")
    options = parser.parse_args()
    folder = tempfile.mkdtemp()
    try:
        run_parts(options.parts, Processes(folder, options.limit), options.out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
