"""The same damages and kills for three ways to save a checkpoint: torch.save, Lightning's, and moon's.

    python -m tests.torture.peers --damages 1000 --kills 200 --summary peers.json

A state (a network of 0.5 million weights with momentum, and the number of the epoch) is saved again and again to one
place. `torch.save` overwrites a file and `torch.load` reads it (`weights_only=True`); Lightning does so with
`TorchCheckpointIO`, as its Trainer does; moon with `Checkpoints`, which keeps two.

    damage   after two saves, a file of the newest checkpoint is changed, as in tests/torture/damage.py. Then loading is
             refused, or falls back to the checkpoint before it with a warning (said), or returns the state (identical),
             or returns other values without a word (silent).
    kill     a process that saves half of the time is killed at a random time after its first save. Then loading returns
             a complete state that is the newest one or newer (kept), or an older one (older), or fails (lost), or
             returns values that were never saved (silent).
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.torture import common  # sets the number of threads before torch is imported
from tests.torture.damage import CHANGES

import torch  # isort: skip

Save, Load = Callable[[Path, int, dict[str, Any]], object], Callable[[Path], dict[str, Any]]
warnings: list[str] = []


def state(epoch: int) -> dict[str, Any]:
    """The state after an epoch."""
    rng = torch.Generator().manual_seed(epoch)
    tensors = {name: torch.randn(500, 1000, generator=rng) for name in ("weight", "momentum")}
    return {"epoch": epoch, "lr": 0.1 / (1 + epoch), "model": tensors}


def is_same(found: Any, epoch: int) -> bool:
    expected = state(epoch)
    try:
        same = (found["epoch"], found["lr"], set(found["model"])) == (epoch, expected["lr"], set(expected["model"]))
        return same and all(torch.equal(found["model"][name], value) for name, value in expected["model"].items())
    except Exception:  # another structure, type or shape
        return False


def ways() -> dict[str, tuple[Save, Load]]:
    """How each program saves and loads; without those that are not installed."""
    from moon.training import Checkpoints

    def save_moon(folder: Path, epoch: int, value: dict[str, Any]) -> None:
        checkpoints = Checkpoints(folder)
        checkpoints.save(epoch, value)
        checkpoints.wait()

    def load_moon(folder: Path) -> dict[str, Any]:
        found = Checkpoints(folder).latest()
        if found is None:
            raise FileNotFoundError(folder)
        return found[1]

    found: dict[str, tuple[Save, Load]] = {
        f"torch.save {version('torch')}": (
            lambda folder, epoch, value: torch.save(value, folder / "last.ckpt"),
            lambda folder: torch.load(folder / "last.ckpt", weights_only=True),
        ),
        "moon": (save_moon, load_moon),
    }
    try:
        from lightning.fabric.plugins import TorchCheckpointIO
    except ImportError:
        print("Lightning is not tried: it is not installed")
    else:
        io = TorchCheckpointIO()
        found[f"Lightning {version('lightning')}"] = (
            lambda folder, epoch, value: io.save_checkpoint(value, folder / "last.ckpt"),
            lambda folder: io.load_checkpoint(folder / "last.ckpt"),
        )
    return found


def damage(save: Save, load: Load, place: Path, count: int, seed: int) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    saved = common.fresh(None, place / "saved")
    for epoch in (1, 2):
        save(saved, epoch, state(epoch))
    for number in range(count):
        rng, folder = random.Random(f"{seed} {number}"), common.fresh(saved, place / "damaged")
        newest = max((path.parent for path in folder.rglob("*") if path.is_file()), key=lambda path: path.name)
        path = rng.choice(sorted(path for path in newest.iterdir() if path.is_file()))
        before = path.read_bytes()
        path.write_bytes(changed := CHANGES[rng.choice([*CHANGES, "flipped"])](before, rng))
        if changed == before:
            continue
        warnings.clear()
        try:
            found = load(folder)
        except Exception:
            outcomes["refused"] += 1
            continue
        kind = "identical" if is_same(found, 2) else "said" if warnings and is_same(found, 1) else "silent"
        outcomes[kind] += 1
    return outcomes


def kill(save: Save, load: Load, place: Path, count: int, seed: int) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    done = mmap.mmap(-1, mmap.PAGESIZE)  # how many saves are complete, shared with the process that is killed
    states = {epoch: state(epoch) for epoch in range(1, 200)}
    for number in range(count):
        folder, rng = common.fresh(None, place / "killed"), random.Random(f"{seed} {number}")
        done[0] = 0
        pid = os.fork()
        if pid == 0:
            try:
                for epoch, value in states.items():
                    started = time.monotonic()
                    save(folder, epoch, value)
                    done[0] = epoch
                    time.sleep(time.monotonic() - started)
                signal.pause()
            finally:
                os._exit(1)
        while done[0] == 0:
            time.sleep(0.0005)
        time.sleep(rng.uniform(0, 0.3))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        warnings.clear()
        try:
            found = load(folder)
        except Exception:
            outcomes["lost"] += 1
            continue
        epoch = found.get("epoch") if isinstance(found, dict) else None
        if epoch not in states or not is_same(found, epoch):
            outcomes["silent"] += 1
        else:
            outcomes["kept" if epoch >= done[0] else "older"] += 1
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--damages", type=int, default=300)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--summary", type=Path, metavar="FILE", help="also write the counts as JSON")
    arguments = parser.parse_args()
    import logging

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warnings.append(record.getMessage())

    logging.getLogger("moon").addHandler(Heard())
    place, results = Path(tempfile.mkdtemp(prefix="moon-peers-")), {}
    try:
        for name, (save, load) in ways().items():
            results[name] = {
                "damage": damage(save, load, place, arguments.damages, arguments.seed),
                "kill": kill(save, load, place, arguments.kills, arguments.seed),
            }
            for what, counts in results[name].items():
                print(f"{name}, {what}: {', '.join(f'{n} {kind}' for kind, n in sorted(counts.items()))}", flush=True)
    finally:
        shutil.rmtree(place)
    if arguments.summary is not None:
        arguments.summary.write_text(json.dumps({"seed": arguments.seed, "results": results}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
