"""Keep scored runs: python results/keep.py FOLDER RUN [RUN ...] --near SET [SET ...]

Copies what the tables need of each run, without weights, into FOLDER: recipe, data, result, log, metrics of the far
sets and of the near sets that are named, and the choice of a detector if there is one (`choose.py`). The scores of the
images go to scores/RUN.npz beside FOLDER, once for all folders that keep the run, in a compact form: an array of bytes
`DETECTOR/SET` in the order of the images, the scores of one detector on all sets divided into 256 levels of equal size
(also of sets that are not named as near), `correct`, a bit for each known image, and `model_sha256`, which tells a
repeated run from the first one.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moon.data.archives import read_npz
from moon.files import write_arrays
from moon.records import write_record
from moon.run.folder import load_result
from moon.score.files import KNOWN, read_scores
from moon.score.tables import mean_metrics

DETECTORS = ("msp", "ebo", "knn", "fisher", "unknown")
COPIED = ("recipe.json", "data.json", "result.json", "log.jsonl", "choice.json")
LEVELS = 256


def restricted(summary: dict[str, Any], near: list[str]) -> dict[str, Any]:
    """A summary with these near sets only."""
    far = summary["far"]
    if missing := [name for name in near if name not in summary["sha256"]]:
        raise SystemExit(f"{missing[0]} was not scored; scored: {', '.join(summary['images'])}")

    def of_sets(values: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name in (KNOWN, *near, *far)}

    tables = {}
    for name, entry in summary["detectors"].items():
        sets = of_sets(entry["sets"])
        groups = {"near": near, "far": far}
        tables[name] = {"sets": sets} | {g: mean_metrics([sets[s] for s in members]) for g, members in groups.items()}
    by_set = {key: of_sets(summary[key]) for key in ("images", "sha256", "p_unknown")}
    by_set |= {key: of_sets(summary[key]) for key in ("p_unknown_unscaled",) if key in summary}
    return summary | by_set | {"near": near, "detectors": tables}


def levels(scores: dict[str, NDArray]) -> dict[str, NDArray]:
    """The scores of one detector by set, as levels of equal size."""
    edges = np.quantile(np.concatenate(list(scores.values())), np.arange(1, LEVELS) / LEVELS)
    return {name: np.searchsorted(edges, values, side="right").astype(np.uint8) for name, values in scores.items()}


def keep(run: Path, folder: Path, near: list[str]) -> None:
    """Keep one run."""
    if (found := read_scores(run)) is None:
        raise SystemExit(f"{run}: has no readable scores; score it first (moon score)")
    summary, scores = found
    shown = restricted(summary, near)
    sha256 = load_result(run)["model_sha256"]
    target = folder / run.name
    if (target / "result.json").exists() and load_result(target)["model_sha256"] != sha256:
        raise SystemExit(f"{target}: is another run of this name; keep a repeated run in another folder")
    model = np.frombuffer(bytes.fromhex(sha256), np.uint8)
    path = folder.parent / "scores" / f"{run.name}.npz"
    if path.exists():
        kept = read_npz(path)[0].get("model_sha256")
        if kept is None:
            raise SystemExit(f"{path}: does not say whose scores it has, as all older files; delete it to replace it")
        if kept.tobytes() != model.tobytes():
            raise SystemExit(f"{path}: has the scores of another run of this name; delete it if they are not needed")
    target.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        if (run / name).exists():
            shutil.copyfile(run / name, target / name)
    write_record(target / "scores.json", shown)
    arrays = {"model_sha256": model}
    for detector in DETECTORS:
        if by_set := scores.get(detector):
            arrays |= {f"{detector}/{name}": values for name, values in levels(by_set).items()}
    known, _ = read_npz(run / "known.npz")
    arrays["correct"] = np.packbits(known["prediction"] == known["labels"])
    path.parent.mkdir(exist_ok=True)
    write_arrays(path, arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to keep them, such as results/cifar10")
    parser.add_argument("runs", type=Path, nargs="+", help="folders of scored runs")
    parser.add_argument("--near", nargs="+", required=True, help="the near sets; the far sets are those of the runs")
    arguments = parser.parse_args()
    for run in arguments.runs:
        keep(run, arguments.folder, arguments.near)
        print(f"kept: {arguments.folder / run.name}")


if __name__ == "__main__":
    main()
