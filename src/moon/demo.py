"""What `moon demo` does: it trains sparse networks on images that ship inside Python packages, and uses one of them.

Heavy packages are imported inside functions, because the command line needs the names of this module before torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moon.recipe import Recipe
    from moon.results.answers import AnsweredImages
    from moon.run.images import BenchmarkImages

BENCHMARK, SPARSITY = "digits", 0.95
NEAR, FAR, OUTLIERS = ("letters",), ("textures",), "photos"
PLAIN, PACKED = "plain RigL", "RigL + outliers"
METHODS = {PLAIN: {"objective": "cross-entropy"}, PACKED: {"objective": "outlier-exposure", "outliers": OUTLIERS}}
PAPER_DETECTORS = ("msp", "odin", "ebo", "knn", "klm")
DETECTOR = "ebo"  # of the packed network; chosen with other seeds, see docs/LOG.md
SHOWN = 8  # images per row of the picture
PICTURE_TITLE = f"What a {SPARSITY:.0%}-sparse LeNet answers about {3 * SHOWN} images it never saw"


def recipes(epochs: int, seeds: int) -> dict[str, list[Recipe]]:
    """Return the runs of each method, paired by seed. Batches are smaller than the paper's because the set is small."""
    from moon.recipe import make_recipe

    common = {"sparsity": SPARSITY, "epochs": epochs, "batch_size": 64}
    return {
        name: [make_recipe(BENCHMARK, seed=seed, **method, **common) for seed in range(seeds)]
        for name, method in METHODS.items()
    }


def seconds_per_image(file: Path, run: Path, images: BenchmarkImages, rounds: int = 300) -> dict[str, float]:
    """Median seconds of a packed network's answer about one image, in one thread, beside another runtime; ours first.

    The other one is ONNX Runtime, which also computes the detector; if it is not installed, PyTorch, which computes the
    network only. Both take turns, so that other work on the machine slows down both.
    """
    import torch

    from moon.data import DataSet
    from moon.deploy import load

    test = images.splits["test"]
    assert isinstance(test, DataSet)
    pixels = test.images
    classifier, threads = load(file), torch.get_num_threads()
    acts: dict[str, Callable[[int], object]] = {"moon-runtime": lambda i: classifier(pixels[i : i + 1])}
    acts |= _in_onnx_runtime(file, pixels) or _in_pytorch(run, images)
    times: dict[str, list[float]] = {name: [] for name in acts}
    torch.set_num_threads(1)
    try:
        for i in range(rounds):
            for name, act in acts.items():
                started = perf_counter()
                act(i % len(pixels))
                times[name].append(perf_counter() - started)
    finally:
        torch.set_num_threads(threads)
    return {name: median(measured) for name, measured in times.items()}


def _in_onnx_runtime(file: Path, pixels: NDArray) -> dict[str, Callable[[int], object]]:
    """The same network with its detector in ONNX Runtime, by name; nothing if that is not installed."""
    if any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")):
        return {}
    import onnxruntime

    from moon.deploy.formats import write_onnx

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # it warns that the threshold is an input with a default, which is intended
    with TemporaryDirectory() as folder:
        path = Path(folder) / "packed.onnx"
        write_onnx(file, path)
        session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    return {"ONNX Runtime": lambda i: session.run(None, {"pixels": pixels[i : i + 1]})}


def _in_pytorch(run: Path, images: BenchmarkImages) -> dict[str, Callable[[int], object]]:
    """The network in PyTorch, by name."""
    import torch

    from moon.data import evaluation_batches
    from moon.deploy import load

    model = load(run)
    ((x, _),) = evaluation_batches(images.splits["test"], images.benchmark, "cpu", len(images.splits["test"].labels))

    def answer(i: int) -> object:
        with torch.inference_mode():
            return model(x[i : i + 1])

    return {"PyTorch without detector": answer}


def answered(file: Path, images: BenchmarkImages, measured: Mapping[str, Mapping[str, float]]) -> list[AnsweredImages]:
    """Let a packed network answer about test images: a row of known ones, one of near and one of far unknown ones.

    The images are evenly spaced in their sets, not selected by hand. `measured` has the shares
    of all images of each set, for the headings.
    """
    import numpy as np

    from moon.deploy import load
    from moon.results.answers import AnsweredImages

    classifier, rows = load(file), []
    sets = {"known": images.splits["test"], **images.unknown}
    for names in (("known",), images.benchmark.near, images.benchmark.far):
        names = [name for name in names if name in sets]
        pixels, labels = (
            np.concatenate([getattr(sets[name], part) for name in names]) for part in ("images", "labels")
        )
        chosen = np.linspace(0, len(pixels) - 1, SHOWN).round().astype(int)
        answers = classifier(pixels[chosen])
        right = answers.is_known & (answers.label == labels[chosen]) if "known" in names else ~answers.is_known
        rows.append(AnsweredImages(_heading(names, measured), pixels[chosen], answers.verdicts, answers.p_value, right))
    return rows


def _heading(names: Sequence[str], measured: Mapping[str, Mapping[str, float]]) -> str:
    """What the images of a row are, and what happened to all images of these sets."""
    total = sum(measured[name]["images"] for name in names)
    what, verb = (BENCHMARK, "accepted") if "known" in names else (" and ".join(names), "rejected")
    share = sum(measured[name]["images"] * measured[name][verb] for name in names) / total
    return f"{what.capitalize()}, {'' if verb == 'accepted' else 'un'}known: {share:.1%} of {total:,} {verb}"
