"""Rank detectors on validation images: python results/choose.py DATA RUN [RUN ...] --near SET ... --far SET ...

Writes RUN/choice.json: the AUROC of every detector between the validation images of the known set and unknown images
that no test uses. Detectors that are fitted on validation images are fitted on one half of them and scored on the
other; both halves take turns. The train split of an unknown set is used if there is one, else its test split, so name
sets that are not scored (for CIFAR-10: --near cifar100-part --far notmnist fashionmnist).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moon.data import AnySet, Benchmark, DataSet, fit_to, has_set, open_set
from moon.evidence import Evidence
from moon.files import write_json
from moon.metrics import auroc
from moon.recipe import Recipe, build, table
from moon.recipe.variants import LOSS, temperature_from
from moon.run.folder import load
from moon.run.images import BenchmarkImages
from moon.seeds import derive


def unknown_images(root: Path, names: Iterable[str], benchmark: Benchmark) -> dict[str, AnySet]:
    """The images of unknown sets that detectors are ranked on."""
    found = {}
    for name in names:
        split = "train" if has_set(root, name, "train", benchmark) else "test"
        data = open_set(root, name, split, benchmark)
        is_array = isinstance(data, DataSet)  # images of a list are converted when they are read
        found[name] = fit_to(data, benchmark.size, benchmark.size, benchmark.channels) if is_array else data
    return found


def part(evidence: Evidence, chosen: Tensor) -> Evidence:
    """The evidence of some of the inputs."""
    assert evidence.labels is not None
    return replace(
        evidence, logits=evidence.logits[chosen], features=evidence.features[chosen], labels=evidence.labels[chosen]
    )


def choice(run: Path, images: BenchmarkImages, unknown: dict[str, AnySet], device: str) -> dict[str, Any]:
    """The AUROC of each detector on validation images, by unknown set, or the reason why it cannot be used."""
    recipe, benchmark = Recipe.load(run / "recipe.json"), images.benchmark
    model = load(run, device, benchmark)
    evidence: dict[tuple[bool, str], Evidence] = {}
    sets = {"train": images.splits["train"], "validation": images.splits["val"], **unknown}
    count = len(sets["validation"].labels)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(derive("choice"))).to(device)
    halves = order[: count // 2], order[count // 2 :]
    scaled = [name for name in table("detector") if temperature_from(name, recipe.objective) == LOSS]
    names = [*table("detector"), *(f"{name}:scaled" for name in scaled)]
    found: dict[str, Any] = {}
    for name in names:
        values = []
        try:
            for fitted_on, scored_on in (halves, halves[::-1]):
                detector = build.detector(name, recipe, benchmark)

                def of(key: str) -> Evidence:
                    perturb = detector.perturb if detector.perturbs and key != "train" else None  # noqa: B023
                    if (perturb is not None, key) not in evidence:
                        evidence[perturb is not None, key] = images.evidence(model, sets[key], perturb)
                    return evidence[perturb is not None, key]

                if splits := detector.fits_on_splits:
                    detector.fit(*(part(of(s), fitted_on) if s == "validation" else of(s) for s in splits))
                known = detector.score(part(of("validation"), scored_on)).cpu().numpy()
                values.append([auroc(known, detector.score(of(key)).cpu().numpy()) for key in unknown])
        except ValueError as error:
            found[name] = {"refused": str(error)}
            continue
        found[name] = {key: (a + b) / 2 for key, a, b in zip(unknown, *values, strict=True)}
    return {"known": count, "images": {key: len(data.labels) for key, data in unknown.items()}, "auroc": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the data root")
    parser.add_argument("runs", type=Path, nargs="+", help="folders of finished runs of one benchmark")
    parser.add_argument("--near", nargs="+", required=True, help="near unknown sets to rank detectors on")
    parser.add_argument("--far", nargs="+", required=True, help="far unknown sets to rank detectors on")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    images = BenchmarkImages.open(arguments.data, Recipe.load(arguments.runs[0] / "recipe.json").benchmark)
    unknown = unknown_images(arguments.data, [*arguments.near, *arguments.far], images.benchmark)
    for run in arguments.runs:
        found = choice(run, images, unknown, arguments.device)
        write_json(run / "choice.json", found | {"near": arguments.near, "far": arguments.far})
        print(f"written: {run / 'choice.json'}")


if __name__ == "__main__":
    main()
