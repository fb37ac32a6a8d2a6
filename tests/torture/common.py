"""What the torture tools share: tiny data, real commands in processes of their own, and what a run has written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# Before numpy and torch are imported. A GPU would only be slower here, and a forked process cannot use it.
os.environ |= ONE_THREAD | {"COLUMNS": "200", "MPLBACKEND": "Agg", "CUDA_VISIBLE_DEVICES": ""}
if path := os.environ.get("PYTHONPATH"):  # the commands run in other folders
    os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, path.split(os.pathsep)))

import numpy as np  # noqa: E402

LONGEST = 300.0  # seconds; a command that takes longer hangs
RUN = "tiny"  # the run folder of every command
# Three epochs of three steps: masks change in epochs 0 and 1, the last epoch votes, and each writes a checkpoint.
RECIPE = ["mnist", "--net", "lenet-norm", "--batch-size", "32", "--epochs", "3", "--delta-t", "2"]
TRAIN = ["train", *RECIPE, "--checkpoint-seconds", "0", "--out", RUN]
SCORE = ["score", RUN, "--detector", "msp", "ebo", "knn"]
PACK = ["pack", RUN, "-o", "packed.moon", "--detector", "ebo", "--check", "0", "--force"]
REPORT = ["report", RUN]
# What commands need besides moon's dependencies. Without matplotlib, `moon score` writes no figure.
NEEDS = {
    "pack": ["moon_runtime"],
    "report": ["jinja2", "matplotlib"],
    "serve": ["moon_runtime", "starlette", "uvicorn", "python_multipart"],
}
# Values that differ between two undisturbed runs.
VARYING = {"seconds", "elapsed_seconds", "software", "hardware", "log_sha256", "content_sha256"}  # digests cover times


def make_data(root: Path) -> Path:
    """Write a few small images as `mnist`, and two unknown sets."""
    rng = np.random.default_rng(0)
    for name, split, count in (("mnist", "train", 96), ("mnist", "val", 40), ("mnist", "test", 40),
                               ("notmnist", "test", 30), ("dtd", "test", 30)):  # fmt: skip
        labels = np.arange(count) % 10
        images = rng.integers(0, 120, (count, 28, 28, 1))
        if name == "mnist":
            for image, label in zip(images, labels, strict=True):
                image[2 * label : 2 * label + 8, 4:24] += 130
        (root / name).mkdir(parents=True, exist_ok=True)
        np.savez(root / name / f"{split}.npz", images=images.astype(np.uint8), labels=labels)
    return root


def import_everything() -> None:
    """Import what the commands need, so that forked processes start at once. Nothing is computed here."""
    for name in ("matplotlib.pyplot", "scipy.special", "torch.export._trace", "torch._functorch.aot_autograd",
                 "torch.utils.tensorboard", "moon.cli.scoring", "moon.cli.screen", "moon.deploy.packing",
                 "moon.export.runtime", "moon.report.page", "moon.run.train",
                 "moon_runtime.serve.listening"):  # fmt: skip
        with suppress(ImportError):  # some packages are optional
            import_module(name)
    import_module("moon.cli.main").parser()  # imports every command
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        sys.exit(f"{threads} threads are running after the imports; a fork would not copy them")


LIVE: list[Process] = []  # the last one that was started is the one that may still run


@dataclass
class Process:
    """A command that runs in a process of its own, with its output in a file."""

    pid: int
    output: Path
    started: float = field(default_factory=time.monotonic)
    code: int | None = None  # negative: the signal that ended it

    def __post_init__(self) -> None:
        LIVE[:] = [self]

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def wait(self, seconds: float = LONGEST) -> int | None:
        """The exit code, or None if it still runs after this time."""
        end = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        return self.code

    def kill(self) -> None:
        """Kill it and all processes that it has started."""
        for pid in [self.pid, *family(self.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait()

    def text(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")


def fork(argv: list[str], folder: Path, prepare: Callable[[], object] = lambda: None) -> Process:
    """Run a command in a forked process: without the seconds that Python and torch need to start."""
    output = folder.with_suffix(".txt")
    pid = os.fork()
    if pid:
        return Process(pid, output)
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        to = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(to, 1)
        os.dup2(to, 2)
        from moon.cli import main

        prepare()
        main(argv)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def spawn(argv: list[str], folder: Path, ranks: int = 1) -> Process:
    """Run a command as a user does, in a new Python process, or in several that torchrun starts."""
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    output = folder.with_suffix(".txt")
    with output.open("wb") as file:
        popen = subprocess.Popen(
            [sys.executable, *several, "-m", "moon", *argv],
            cwd=folder,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    popen.returncode = 0  # `Process` waits for it
    return Process(popen.pid, output)


def family(pid: int) -> list[int]:
    """The running processes that a process has started, and those that they have started."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            state, parent = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            children.setdefault(int(parent), []).append(int(name))
    found = children.get(pid, [])
    return found + [later for child in found for later in family(child)]


def missing(command: str) -> str:
    """Why a command cannot be tried here; "" if it can."""
    packages = [name for name in NEEDS.get(command, ()) if find_spec(name) is None]
    return f"needs {' and '.join(packages)}, which this Python does not have" if packages else ""


def contents(folder: Path) -> dict[str, Any]:
    """What a command has written, by file: values of JSON files and arrays without times, digests of other files."""
    found: dict[str, Any] = {}
    newest = max((path.name for path in folder.rglob("checkpoints/[0-9]*")), default="")
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if path.parent.parent.name == "checkpoints" and path.parent.name != newest:
            continue  # a process that is killed before it removes an old checkpoint leaves it
        name = str(path.relative_to(folder))
        try:
            if path.name in ("result.json", "scores.json", "recipe.json", "data.json"):
                found[name] = _without_times(json.loads(path.read_bytes()))
            elif path.name == "log.jsonl":
                found[name] = [_without_times(json.loads(line)) for line in path.read_bytes().splitlines()]
            elif path.suffix == ".npz":
                with np.load(path) as file:
                    found[name] = {key: (file[key].dtype.str, file[key].tobytes()) for key in sorted(file.files)}
            elif path.suffix in (".safetensors", ".moon", ".csv", ".tex", ".html") or path.name == "tree.json":
                found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        except Exception as error:
            found[name] = f"cannot be read: {error}"
    return found


def _without_times(value: Any) -> Any:
    return {key: item for key, item in value.items() if key not in VARYING}


def differing(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The files that differ between two contents; "(missing)" or "(new)" if only one of them has it."""
    names = {name: "" for name in before if name in after and before[name] != after[name]}
    names |= dict.fromkeys(before.keys() - after.keys(), " (missing)")
    names |= dict.fromkeys(after.keys() - before.keys(), " (new)")
    return [f"{name}{note}" for name, note in sorted(names.items())]


def leftovers(folder: Path) -> list[str]:
    """Temporary files that no later command has removed. Their empty folders are removed by the next that writes."""
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    return [name for name in names if ".part" in name]


def fresh(source: Path | None, target: Path) -> Path:
    """An empty folder, or a copy of another one."""
    shutil.rmtree(target, ignore_errors=True)
    if source is None:
        target.mkdir(parents=True)
        return target
    return Path(shutil.copytree(source, target, symlinks=True))
