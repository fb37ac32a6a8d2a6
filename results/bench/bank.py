"""Measure memory and time of detectors that are fitted on a large bank of synthetic training features on disk.

    python results/bench/bank.py --inputs 1500000 --features 512 --classes 100 --folder /tmp --out bank.json

Linux only: the peak of the resident memory is reset before each detector (/proc/self/clear_refs).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from moon.detect import DETECTORS, Scaled
from moon.evidence import Evidence
from moon.evidence.disk import Rows

BATCH = 10_000


def batch(count: int, centres: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Features around the centre of a class, not negative, and their labels."""
    labels = torch.randint(len(centres), (count,), generator=generator)
    return (centres[labels] + torch.randn(count, centres.shape[1], generator=generator)).relu(), labels


def evidence(count: int, centres: torch.Tensor, seed: int, folder: Path | None) -> Evidence:
    """Evidence of synthetic inputs, in memory or on disk."""
    generator = torch.Generator().manual_seed(seed)
    parts = Rows(folder), Rows(folder), Rows(None)
    for start in range(0, count, BATCH):
        features, labels = batch(min(BATCH, count - start), centres, generator)
        for rows, part in zip(parts, ((features @ centres.T).double() / 10, features, labels), strict=True):
            rows.add(part)
    logits, features, labels = (rows.tensor() for rows in parts)
    return Evidence(logits, features, len(centres), labels, (centres / 10, torch.zeros(len(centres))))


def memory(name: str) -> float:
    """A line of /proc/self/status, in MiB."""
    text = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith(f"{name}:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_500_000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=Path(), help="where the temporary files are written")
    parser.add_argument("--in-memory", action="store_true", help="keep the bank in memory instead")
    parser.add_argument("--detector", nargs="+", help="in this order (default: all)")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    centres = torch.randn(arguments.classes, arguments.features, generator=torch.Generator().manual_seed(0)).relu()
    folder = None if arguments.in_memory else arguments.folder
    train = evidence(arguments.inputs, centres, 1, folder)
    validation, queries = evidence(1000, centres, 2, None), evidence(arguments.queries, centres, 3, None)
    record = {**vars(arguments), "folder": "", "out": "", "threads": torch.get_num_threads(), "detectors": {}}
    record["bank_mib"] = {k: getattr(train, k).nbytes / 2**20 for k in ("features", "logits")}
    record["before_mib"] = memory("VmRSS")
    print(f"bank: {record['bank_mib']}, resident before: {record['before_mib']:.0f} MiB", flush=True)
    made = {name: kind() for name, kind in DETECTORS.items() if kind.fits_on in ("train", "both")}
    made |= {f"{name}:scaled": Scaled(DETECTORS[name]()) for name in ("vim", "nnguide")}
    keep = []
    for name in arguments.detector or made:
        detector = made[name]
        Path("/proc/self/clear_refs").write_text("5")
        start, cpu = time.perf_counter(), time.process_time()
        given = {"train": train, "validation": validation}
        detector.fit(*(given[split] for split in detector.fits_on_splits))
        fitted = time.process_time() - cpu
        checksum = float(detector.score(queries).double().mean())
        record["detectors"][name] = row = {
            "peak_rss_mib": round(memory("VmHWM")), "seconds": round(time.perf_counter() - start, 1),
            "cpu_seconds": round(time.process_time() - cpu, 1), "cpu_seconds_fit": round(fitted, 1), "mean": checksum,
        }  # fmt: skip
        print(name, row, flush=True)
        if name in ("knn", "fisher"):
            keep.append(detector)  # they share a bank
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
