"""Print the kept results of `moon bench predict` as the tables of docs/speed.md.

python results/bench/predict_table.py results/bench/predict-NAME.json
"""

import json
import sys
from pathlib import Path

OURS = "moon-runtime"
GOALS = {  # of ResNet-18 with one thread, by batch size and sparsity
    (1, 0.9): 2, (1, 0.95): 3, (1, 0.99): 7, (32, 0.9): 2.5, (32, 0.95): 4, (32, 0.99): 10,
}  # fmt: skip


def times(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.1f}x"


def milliseconds(row: dict) -> str:
    found = row["milliseconds"]
    return f"{found:.2f}" if found < 100 else f"{found:.0f}"


def lines(cells: list[list[str]]) -> list[str]:
    """A table in Markdown; the first row is the heading."""
    heading, *rest = (f"| {' | '.join(row)} |" for row in cells)
    return [heading, "|---" * len(cells[0]) + "|", *rest, ""]


def answers(records: list[dict]) -> list[list[str]]:
    names = list(dict.fromkeys(row["contender"] for record in records for row in record["times"]))
    ratios = [f"speed-up over {records[0]['base']}", "by CPU time", "over one thread"]
    found = [["network", "sparsity", "batch", "threads", *(f"{name}, ms" for name in names), *ratios, "goal", "limit"]]
    for record in records:
        for batch, threads in dict.fromkeys((row["batch"], row["threads"]) for row in record["times"]):
            rows = {
                row["contender"]: row for row in record["times"] if (row["batch"], row["threads"]) == (batch, threads)
            }
            ours = rows[OURS]
            ratios = [times(ours[key]) if key in ours else "" for key in ("speedup", "cpu_speedup", "over_one_thread")]
            shown = [milliseconds(rows[name]) if name in rows else "" for name in names]
            cells = [record["net"], f"{record['sparsity']:.4g}", str(batch), str(threads), *shown, *ratios]
            goal = GOALS.get((batch, record["sparsity"])) if (record["net"], threads) == ("resnet18", 1) else None
            found.append([*cells, "" if goal is None else f"{goal}x", times(record["limit"])])
    return found


def files(records: list[dict]) -> list[list[str]]:
    found = [["network", "sparsity", "file, float16", "float32", "dense float32", "first answer", "CPU time", "memory"]]
    for record in records:
        size, first = record["bytes"], record["first_answer"]
        sizes = [f"{size[name] / 1e6:.2f} MB" for name in ("float16", "float32", "dense")]
        seconds = [f"{first[name]:.2f} s" for name in ("seconds", "cpu_seconds")]
        found.append([record["net"], f"{record['sparsity']:.4g}", *sizes, *seconds, f"{first['bytes'] / 1e6:.0f} MB"])
    return found


kept = json.loads(Path(sys.argv[1]).read_text())["predict"]
print("\n".join([*lines(answers(kept)), *lines(files(kept))]), end="")
