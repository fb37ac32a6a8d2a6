"""Keep scored runs: python results/keep.py FOLDER RUN [RUN ...] --near SET [SET ...]

Adds what the tables need of each run to FOLDER, in the form that `compact.py` describes: recipe, result, the metrics of
every set that was scored, of mirrored images, too, and the choice of a detector if there is one (`choose.py`). The near
sets are those that are named, the far sets those of the run.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
from compact import LEVELS, Summary, read, shared, write, write_digests
from numpy.typing import NDArray

from moon.data.archives import read_npz
from moon.files import own_folder, write_arrays
from moon.records import read_json, read_record
from moon.run.folder import load_result
from moon.score.files import MIRRORED, load_summary, read_scores

NUMBER_OF_LEVELS = 256


def levels(scores: dict[str, NDArray]) -> dict[str, NDArray]:
    """The scores of one detector by set, as levels of equal size."""
    edges = np.quantile(np.concatenate(list(scores.values())), np.arange(1, NUMBER_OF_LEVELS) / NUMBER_OF_LEVELS)
    return {name: np.searchsorted(edges, values, side="right").astype(np.uint8) for name, values in scores.items()}


def levels_of_run(run: Path, detectors: list[str]) -> dict[str, NDArray]:
    """The levels of every image with some detectors, and which known images are predicted correctly."""
    found = read_scores(run)
    if found is None or not {*detectors} <= found[1].keys():
        raise SystemExit(f"{run}: has no scores of single images with {', '.join(detectors)}; score it first")
    known, _ = read_npz(run / "known.npz")
    arrays = {"correct": np.packbits(known["prediction"] == known["labels"])}
    for detector in detectors:
        arrays |= {f"{detector}/{name}": values for name, values in levels(found[1][detector]).items()}
    return {f"{run.name}/{key}": array for key, array in arrays.items()}


def summary_of_run(run: Path, near: list[str], mirrored: bool = False) -> Summary:
    """What is kept of the `scores.json` of a run, with its data and the choice of a detector."""
    summary = load_summary(run / MIRRORED if mirrored else run)
    if missing := [name for name in near if name not in summary["sha256"]]:
        raise SystemExit(f"{run}: {missing[0]} was not scored; scored: {', '.join(summary['images'])}")
    choice = {"choice": read_json(run / "choice.json")} if not mirrored and (run / "choice.json").exists() else {}
    return summary | shared(summary, near) | {"data": read_record(run / "data.json")} | choice


def keep(runs: list[Path], folder: Path, near: list[str], images: list[str] | None = None, log: bool = False) -> None:
    """Keep runs of one benchmark, see `main` for the arguments."""
    summaries = read(folder) if folder.exists() else {}
    arrays = read_npz(folder / LEVELS)[0] if (folder / LEVELS).exists() else {}
    for run in runs:
        if not (run / "scores.json").exists():
            raise SystemExit(f"{run}: was not scored; score it first (moon score)")
        sha256, target = load_result(run)["model_sha256"], folder / run.name / "result.json"
        if target.exists() and read_record(target)["model_sha256"] != sha256:
            raise SystemExit(f"{target.parent}: is another run of this name; keep a repeated run in another folder")
        summaries[run.name] = summary_of_run(run, near)
        if (run / MIRRORED).exists():
            summaries[f"{run.name}/{MIRRORED}"] = summary_of_run(run, near, mirrored=True)
        if images:
            arrays |= levels_of_run(run, images)
    write(folder, summaries)  # or an error, before anything is copied
    for run in runs:
        for name in ("recipe.json", "result.json", *(["log.jsonl"] if log else [])):
            shutil.copyfile(run / name, own_folder(folder / run.name) / name)
    if arrays:
        write_arrays(folder / LEVELS, arrays)
    write_digests(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to keep them, such as results/cifar10")
    parser.add_argument("runs", type=Path, nargs="+", help="folders of scored runs")
    parser.add_argument("--near", nargs="+", required=True, help="the near sets; the far sets are those of the runs")
    parser.add_argument("--log", action="store_true", help="keep the log, too, if a table reads it")
    parser.add_argument(
        "--images", nargs="+", metavar="DETECTOR", help="keep the scores of single images, for errors over images"
    )
    arguments = parser.parse_args()
    try:
        keep(arguments.runs, arguments.folder, arguments.near, arguments.images, arguments.log)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    print(f"kept in {arguments.folder}: {', '.join(run.name for run in arguments.runs)}")


if __name__ == "__main__":
    main()
