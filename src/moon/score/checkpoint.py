"""Score a checkpoint without a run folder: the weights come from a file, the network is given by its name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from moon.data import Benchmark
from moon.evidence import MEMORY_GIB, classifier_name
from moon.files import check_writable
from moon.recipe import Recipe, build, make_recipe
from moon.recipe.pretrained import load_pretrained, read_weights, weights_digest
from moon.run.images import BenchmarkImages
from moon.run.machine import usable_device
from moon.score.auto import Track
from moon.score.cache import EvidenceCache
from moon.score.files import MODEL, NET, Scores, read_summary, scores_folder
from moon.score.score import check_precision, check_unknown, named_detectors, need_layers, score_network
from moon.score.writing import check_same_model
from moon.training import locked


def score_checkpoint(
    path: Path | str,
    net: str,
    images: BenchmarkImages,
    detectors: Iterable[str] | None = None,
    *,
    out: Path | str,
    width: float = 1.0,
    device: torch.device | str = "cpu",
    keep_evidence: bool = False,
    precision: str = "float32",
    mirrored: bool = False,
    memory_gib: float = MEMORY_GIB,
    track: Track = lambda items, _: items,
) -> tuple[dict[str, Any], Scores]:
    """Score the network of a checkpoint and write the result into a folder, in the files that `score_run` writes.

    A network with K+1 outputs is taken for one whose last output is the unknown one. Logits are taken as they are: T is
    1 unless a detector is named with the suffix `:scaled`, and the rule of `auto` takes them for logits that were not
    normalised in training.

    Args:
        path: The weights: safetensors, or a state_dict that `torch.save` wrote. Nothing in the file is executed.
        net: The network, such as `torchvision:resnet18`, `openood:resnet18_32x32` or `package.module:make`.
        images: The images of the benchmark.
        detectors: Names of detectors, or `auto`, as for `score_run`.
        out: The folder to write to.
        width: The factor of the channels of a residual network of `moon`, as in a recipe.
        device: Where to run the model.
        keep_evidence: As for `score_run`.
        precision: As for `BenchmarkImages.evidence`.
        mirrored: As for `BenchmarkImages.evidence`.
        memory_gib: As for `EvidenceCache`.
        track: Wraps a list of names, with a description, for a progress bar.

    Returns:
        The content of `scores.json`, and the scores by detector and set.

    Raises:
        ValueError: If the weights do not fit the network, there is nothing to score, a named detector cannot be used,
            or the folder cannot be written or contains scores of another model.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from moon import BenchmarkImages, lenet, score_checkpoint
        >>> images = BenchmarkImages.open("data", "digits")  # embedded
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     torch.save(lenet(10).state_dict(), f"{folder}/lenet.pth")
        ...     summary, _ = score_checkpoint(f"{folder}/lenet.pth", "lenet", images, ["msp"], out=f"{folder}/scores")
        >>> summary["checkpoint"], summary["net"], list(summary["detectors"])
        ('lenet.pth', 'lenet', ['msp'])
    """
    path, out = Path(path), Path(out)
    check_writable(out, "give another folder for the scores (out)")
    check_unknown(images)
    digest = weights_digest(path)
    about = {MODEL: digest, "checkpoint": path.name, NET: net}
    check_same_model(out, "cross-entropy", about)
    check_precision(out, precision, read_summary(scores_folder(out, mirrored), "cross-entropy"))
    recipe, model = load_checkpoint(path, net, width, images.benchmark, device)
    chosen = named_detectors(detectors, recipe, images)
    with locked(out):  # fails before anything is computed
        pass
    # Two networks can have the same weights.
    both = hashlib.sha256(f"{digest} {net}".encode()).hexdigest()
    how = keep_evidence, precision, mirrored, memory_gib, need_layers(chosen)
    cache = EvidenceCache(images, model, both, out, *how)
    return score_network(recipe, images, model, cache, chosen, about, out, detectors is not None, track)


def load_checkpoint(
    path: Path, net: str, width: float, benchmark: Benchmark, device: torch.device | str
) -> tuple[Recipe, nn.Module]:
    """The network of a checkpoint, in evaluation mode, and a recipe of such a network; a ValueError if it does not fit.

    The arguments are those of `score_checkpoint`.
    """
    weights = read_weights(path, net)
    recipe = _recipe(net, width, benchmark, weights)
    model = build.network(recipe, benchmark, usable_device(device))
    if reasons := load_pretrained(model, weights, path, net):
        known = f"{benchmark.name} has {benchmark.num_known} known classes"
        raise ValueError(f"{reasons[0]}; {known}, so this network cannot be used with it")
    return recipe, model.eval()


def _recipe(net: str, width: float, benchmark: Benchmark, weights: dict[str, torch.Tensor]) -> Recipe:
    """A recipe of such a network: an objective with as many outputs, and logits that are not normalised."""
    plain = make_recipe(benchmark, "cross-entropy", topology="dense", net=net, width=width)
    model = build.network(plain, benchmark, "cpu")
    name = classifier_name(model)
    head = weights.get(f"{name}.weight" if name else "weight")
    is_open = head is not None and len(head) == benchmark.num_known + 1
    return make_recipe(benchmark, "moon", topology="dense", net=net, width=width) if is_open else plain
