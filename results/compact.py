"""How scored runs are kept in a folder results/FOLDER. `keep.py` adds runs, `kept.py` reads them.

    RUN/recipe.json, RUN/result.json   as the run wrote them, and RUN/log.jsonl if something reads it
    metrics.csv.gz   a row for each run, detector and set: AUROC, FPR-95 and so on. Near and far means are computed from
                     the rows. RUN/mirrored is the same network, averaged over each image and its mirror image.
    scores.json      the near and far sets with the digests of their images, and the data that runs were trained on; for
                     each run the rest of its `scores.json` (accuracy, calibration, temperatures, p_unknown), and the
                     `choice` of a detector if they were ranked on validation images (`choose.py`)
    levels.npz       the scores of single images, only of runs whose error over images is in a table: RUN/DETECTOR/SET
                     has a byte for each image in order, the scores of the detector on all sets divided into 256 levels
                     of equal size; RUN/correct has a bit for each known image (`numpy.unpackbits`)
    SHA256SUMS       of these files; `make results-check` checks them, as does `sha256sum -c SHA256SUMS`

`moon report` and `moon paper` read run folders. This writes them, with the metrics but without arrays and most logs:

    python results/compact.py results/FOLDER OUT
"""

from __future__ import annotations

import csv
import gzip
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from moon.files import own_folder, sha256, write_atomic, write_json, write_text
from moon.records import json_digest, read_json, read_record, write_record
from moon.results.tables import csv_text
from moon.score.files import ARRAYS, KNOWN, MIRRORED, MODEL
from moon.score.tables import mean_metrics

METRICS, SCORES, LEVELS, SUMS = "metrics.csv.gz", "scores.json", "levels.npz", "SHA256SUMS"
SHARED = ("benchmark", "near", "far", "images", "sha256")  # keys of scores.json that all runs of a folder share
_ELSEWHERE = (*SHARED, "detectors", MODEL, ARRAYS, "run", "recipe_sha256", "data_sha256")
Summary = dict[str, Any]


def shared(summary: Mapping[str, Any], near: list[str]) -> Summary:
    """What all runs of a folder must share, if these are the near sets."""
    found: Summary = {key: summary[key] for key in SHARED} | {"near": near}
    tested = (KNOWN, *near, *found["far"])
    return found | {key: {name: found[key][name] for name in tested} for key in ("images", "sha256")}


def read(folder: Path) -> dict[str, Summary]:
    """The `scores.json` of each run of a folder by its name, with `data` (its data.json) and perhaps a `choice`."""
    if not folder.is_dir():
        raise ValueError(f"results/{folder.name} is missing; its tables cannot be made without it")
    if not (folder / SCORES).exists():
        return {}
    about = read_json(folder / SCORES)
    same = {key: about[key] for key in SHARED}
    found = {
        name: same | facts | {"data": about["data"][facts["data"]], "detectors": {}}
        for name, facts in about["runs"].items()
    }
    with gzip.open(folder / METRICS, "rt", encoding="utf-8", newline="") as file:
        headings, *rows = csv.reader(file)
    for run, detector, name, *values in rows:
        metrics = {key: float(text) for key, text in zip(headings[3:], values, strict=True) if text}
        found[run]["detectors"].setdefault(detector, {"sets": {}})["sets"][name] = metrics
    for summary in found.values():
        for entry in summary["detectors"].values():
            entry |= {part: mean_metrics([entry["sets"][name] for name in same[part]]) for part in ("near", "far")}
    return found


def write(folder: Path, summaries: Mapping[str, Summary]) -> None:
    """Write the metrics and the rest of what `read` returns; `write_digests` completes the folder."""
    same, *others = ({key: summary[key] for key in SHARED} for summary in summaries.values())
    if any(other != same for other in others):
        raise ValueError(f"{folder}: a run was scored on other images than the rest; keep it in another folder")
    own_folder(folder)
    data = {json_digest(summary["data"]): summary["data"] for summary in summaries.values()}
    runs, rows = {}, []
    for run, summary in sorted(summaries.items()):
        facts = {key: value for key, value in summary.items() if key not in _ELSEWHERE}
        runs[run] = facts | {"data": json_digest(summary["data"])}
        for detector, entry in summary["detectors"].items():
            rows += [{"run": run, "detector": detector, "set": name, **row} for name, row in entry["sets"].items()]
    write_json(folder / SCORES, same | {"data": data, "runs": runs})
    content = gzip.compress(csv_text(rows).encode(), mtime=0)
    write_atomic(folder / METRICS, lambda partial: partial.write_bytes(content))


def write_digests(folder: Path) -> None:
    """Write the digests of all files of a folder."""
    write_text(folder / SUMS, "".join(f"{digest}  {name}\n" for name, digest in digests(folder).items()))


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file of a folder that `SHA256SUMS` lists."""
    patterns = (METRICS, SCORES, LEVELS, "*/*.json", "*/*.jsonl")
    paths = sorted(path for pattern in patterns for path in folder.glob(pattern))
    return {str(path.relative_to(folder)): sha256(path) for path in paths}


def damaged(folder: Path) -> Iterator[str]:
    """What differs from `SHA256SUMS`, one line each."""
    if not (folder / SUMS).exists():
        yield f"results/{folder.name}/{SUMS} is missing; restore the folder: git restore results"
        return
    lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    there = digests(folder)
    for name in sorted(listed.keys() | there):
        if listed.get(name) != there.get(name):
            what = "is missing" if name not in there else "was changed" if name in listed else "was added by hand"
            advice = "restore it (git restore results)" if name in listed else "keep runs with results/keep.py"
            yield f"results/{folder.name}/{name} {what}; {advice}"


def unpack(folder: Path, out: Path) -> None:
    """Write run folders that `moon report` and `moon paper` read."""
    for name, summary in read(folder).items():
        scores = {key: value for key, value in summary.items() if key not in ("data", "choice")}
        run = own_folder(out / name)
        write_record(run / "scores.json", scores)
        if run.name == MIRRORED:
            continue
        shutil.copyfile(folder / name / "recipe.json", run / "recipe.json")
        write_record(run / "data.json", summary["data"])
        if "choice" in summary:
            write_json(run / "choice.json", summary["choice"])
        result = read_record(folder / name / "result.json")
        if (folder / name / "log.jsonl").exists():
            shutil.copyfile(folder / name / "log.jsonl", run / "log.jsonl")
        else:
            result.pop("log_sha256", None)
        write_record(run / "result.json", result)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
