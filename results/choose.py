"""Rank detectors on validation images: python results/choose.py DATA RUN [RUN ...] --near SET ... --far SET ...

Writes RUN/choice.json: the AUROC of every detector between the validation images of the known set and unknown images
that no test uses. Detectors that are fitted on validation images are fitted on one half of them and scored on the
other; both halves take turns. The train split of an unknown set is used if there is one, else its test split, so name
sets that are not scored (for CIFAR-10: --near cifar100-part --far notmnist fashionmnist).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from moon.data import AnySet, Benchmark, DataSet, fit_to, has_set, open_set
from moon.data.benchmarks import sides
from moon.detect import Detector
from moon.evidence import Evidence
from moon.files import write_json
from moon.recipe import Recipe
from moon.run.folder import load
from moon.run.images import BenchmarkImages
from moon.score.auto import rank


def unknown_images(root: Path, names: Iterable[str], benchmark: Benchmark) -> dict[str, AnySet]:
    """The images of unknown sets that detectors are ranked on."""
    found = {}
    for name in names:
        split = "train" if has_set(root, name, "train", benchmark) else "test"
        data = open_set(root, name, split, benchmark)
        is_array = isinstance(data, DataSet)  # images of a list are converted when they are read
        found[name] = fit_to(data, *sides(benchmark.size), benchmark.channels) if is_array else data
    return found


def choice(run: Path, images: BenchmarkImages, unknown: dict[str, AnySet], device: str) -> dict[str, Any]:
    """The AUROC of each detector on validation images, by unknown set, or the reason why it cannot be used."""
    recipe, benchmark, validation = Recipe.load(run / "recipe.json"), images.benchmark, images.splits["val"]
    model = load(run, device)
    kept: dict[str, Evidence] = {}

    def ordinary(key: str, data: AnySet) -> Evidence:
        if key not in kept:
            kept[key] = images.evidence(model, data)
        return kept[key]

    def evidence(detector: Detector, key: str, data: AnySet) -> Evidence:
        return images.evidence(model, data, **detector.reading) if detector.reading else ordinary(key, data)

    found = rank(
        recipe, benchmark, validation, unknown, evidence, lambda: ordinary("fit/train", images.splits["train"])
    )
    counts = {key: len(data.labels) for key, data in unknown.items()}
    return {"known": len(validation.labels), "images": counts, "auroc": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the data root")
    parser.add_argument("runs", type=Path, nargs="+", help="folders of finished runs of one benchmark")
    parser.add_argument("--near", nargs="+", required=True, help="near unknown sets to rank detectors on")
    parser.add_argument("--far", nargs="+", required=True, help="far unknown sets to rank detectors on")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    benchmarks = {Recipe.load(run / "recipe.json").benchmark: run for run in arguments.runs}
    if len(benchmarks) > 1:
        raise SystemExit(f"the runs have different benchmarks ({', '.join(benchmarks)}); rank those of one at a time")
    images = BenchmarkImages.open(arguments.data, next(iter(benchmarks)))
    unknown = unknown_images(arguments.data, [*arguments.near, *arguments.far], images.benchmark)
    for run in arguments.runs:
        found = choice(run, images, unknown, arguments.device)
        write_json(run / "choice.json", found | {"near": arguments.near, "far": arguments.far})
        print(f"written: {run / 'choice.json'}")


if __name__ == "__main__":
    main()
