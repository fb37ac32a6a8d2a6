"""Score a finished run: every detector on every unknown set, from one forward pass over each set."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from moon.detect import Detector, TemperatureScaling
from moon.detect.knn import usual_k
from moon.evidence import MEMORY_GIB
from moon.files import check_writable, own_folder
from moon.recipe import Recipe, build, table
from moon.recipe.variants import normalises_logits
from moon.run.folder import check_data, load, load_result
from moon.run.identity import identity
from moon.run.images import BenchmarkImages
from moon.run.watch import known_metrics, p_unknown
from moon.score.auto import AUTO, Track, check_names
from moon.score.cache import EvidenceCache
from moon.score.examples import examples, known_values
from moon.score.files import KNOWN, MODEL, NET, USUAL_K, Scores, digests, read_summary, scores_folder
from moon.score.scoring import Scoring
from moon.score.tables import tables
from moon.score.temperatures import (
    NO_OPTIMUM,
    P_UNKNOWN,
    UNSCALED,
    assumed,
    fit_temperature,
    p_unknown_temperature,
    temperatures,
)
from moon.score.writing import check_same_model, write_scores
from moon.suggest import as_names
from moon.training import locked

_log = logging.getLogger(__name__)


def score_run(
    folder: Path | str,
    images: BenchmarkImages,
    detectors: Iterable[str] | None = None,
    *,
    device: torch.device | str = "cpu",
    skip_unfit: bool = False,
    keep_evidence: bool = False,
    precision: str = "float32",
    mirrored: bool = False,
    memory_gib: float = MEMORY_GIB,
    out: Path | str | None = None,
    track: Track = lambda items, _: items,
) -> tuple[dict[str, Any], Scores]:
    """Score a run and write the result into its folder, or into another one.

    Args:
        folder: The folder of a finished run.
        images: The images of its benchmark. If there are `tuning` sets, the detectors' options are tuned on them
            first, and the search is recorded.
        detectors: One name of a detector, or several; None means all that can be used with the model and the data.
            `auto` means one that is chosen: the one with the highest mean AUROC of validation images against the
            `tuning` sets, or, without these, the one that a rule names for such networks. The choice is recorded as
            `auto`.
        device: Where to run the model.
        skip_unfit: Whether to leave out named detectors that cannot be used instead of raising an error.
        keep_evidence: Whether to keep the evidence next to the scores, so that scoring again needs no forward pass.
        precision: As for `BenchmarkImages.evidence`.
        mirrored: As for `BenchmarkImages.evidence`; these scores are written to the subfolder `mirrored`.
        memory_gib: As for `EvidenceCache`.
        out: A folder to write to instead of the run folder, which may then be read-only.
        track: Wraps a list of names, with a description, for a progress bar.

    Returns:
        The content of `scores.json`, and the scores by detector and set.

    Raises:
        ValueError: If there is nothing to score, a named detector cannot be used, or the folder cannot be written or
            contains scores of another model.
        DataError: If the images are not those that the run was trained on.

    Example:
        >>> import tempfile
        >>> from moon import BenchmarkImages, make_recipe, score_run, train_run
        >>> images = BenchmarkImages.open("data", "digits")  # embedded
        >>> recipe = make_recipe("digits", "cross-entropy", topology="static", epochs=1, batch_size=512)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = train_run(recipe, folder, images)
        ...     summary, scores = score_run(folder, images, ["msp"])
        >>> list(summary["detectors"]["msp"]["sets"]), scores["msp"]["known"].shape
        (['letters', 'textures', 'photos'], (1000,))
    """
    folder = Path(folder)
    recipe = Recipe.load(folder / "recipe.json")
    home = folder if out is None else Path(out)
    check_writable(home, "give another folder for the scores (out)")
    old = read_summary(scores_folder(home, mirrored), recipe.objective)
    _check_request(folder, recipe, images, precision, old)
    chosen = named_detectors(detectors, recipe, images)
    with locked(home):  # fails before anything is computed
        pass
    digest = load_result(folder)["model_sha256"]
    about = identity(folder) | {MODEL: digest}
    check_same_model(home, recipe.objective, about)
    model = load(folder, device)
    how = keep_evidence, precision, mirrored, memory_gib, need_layers(chosen)
    cache = EvidenceCache(images, model, digest, home, *how)
    must_fit = detectors is not None and not skip_unfit
    return score_network(recipe, images, model, cache, chosen, about, home, must_fit, track)


def named_detectors(names: Iterable[str] | None, recipe: Recipe, images: BenchmarkImages) -> dict[str, Detector | None]:
    """The detectors by name: all for None, and None for `auto`, which is chosen when there is evidence."""
    names = list(table("detector")) if names is None else list(as_names(names))
    if not names:
        raise ValueError("no detector was given; name at least one")
    return {
        name: None if name == AUTO else build.detector(name, recipe, images.benchmark) for name in check_names(names)
    }


def need_layers(detectors: Mapping[str, Detector | None]) -> bool:
    """Whether one of these detectors, or one that `auto` may choose, scores inner layers."""
    return any(detector is None or detector.layered for detector in detectors.values())


def score_network(
    recipe: Recipe,
    images: BenchmarkImages,
    model: nn.Module,
    cache: EvidenceCache,
    detectors: dict[str, Detector | None],
    about: dict[str, Any],
    home: Path,
    must_fit: bool,
    track: Track,
) -> tuple[dict[str, Any], Scores]:
    """Score a network and write the result.

    Args:
        recipe: The run; its objective determines temperatures.
        images: The images of the benchmark.
        model: The network.
        cache: Its evidence.
        detectors: The detectors by name, see `named_detectors`.
        about: What `scores.json` says about the network.
        home: The folder to write to.
        must_fit: Whether a detector that cannot be used is an error; otherwise it is left out.
        track: As for `score_run`.

    Returns:
        The content of `scores.json`, and the scores by detector and set.
    """
    scored = Scoring(recipe, images, model, cache, must_fit, is_run=NET not in about)
    if AUTO in detectors:
        scored.choose(track)
    scored.run(detectors, track)
    result = about | _summary(scored, home) | {"detectors": tables(scored.scores, images)}
    target = scores_folder(home, cache.mirrored)
    with locked(home):
        if cache.mirrored:
            own_folder(target)
        others = {"known.npz": known_values(cache[KNOWN])}
        if scored.scores:
            ranked_by = "msp" if "msp" in scored.scores else next(iter(scored.scores))
            others["examples.npz"] = examples(scored.sets, scored.scores[ranked_by], cache[KNOWN])
        write_scores(target, result, scored.scores, recipe.objective, others)
    return result, scored.scores


def _check_request(
    folder: Path, recipe: Recipe, images: BenchmarkImages, precision: str, old: dict[str, Any] | None
) -> None:
    """Check, before the model runs, that the run can be scored."""
    name = images.benchmark.name
    if recipe.benchmark != name:
        raise ValueError(f"{folder}: was trained on {recipe.benchmark}, not {name}")
    check_unknown(images)
    check_data(folder, images)
    check_precision(folder, precision, old)


def check_precision(folder: Path, precision: str, old: dict[str, Any] | None) -> None:
    """Raise a ValueError if scores would be replaced by less exact ones."""
    if precision != "float32" and old is not None and "precision" not in old:
        raise ValueError(
            f"{folder}: already has float32 scores, which are more exact; use float32, or another folder for the "
            "scores (out)"
        )


def check_unknown(images: BenchmarkImages) -> None:
    """Raise a ValueError if there is no unknown set to score."""
    name = images.benchmark.name
    if not images.unknown:
        if images.tuning or images.outliers is not None:
            raise ValueError("no unknown set is left to score: all were used for training or tuning; name others")
        raise ValueError(
            f"no unknown set was found for {name} (looked for {', '.join(images.missing) or 'none'}); name sets under "
            "the data root when the images are opened (near, far), or declare them in benchmarks.toml in the data root"
        )


def _summary(scored: Scoring, home: Path) -> dict[str, Any]:
    """The content of `scores.json`, except the metrics of the detectors."""
    images, cache, sets = scored.images, scored.cache, scored.sets
    benchmark, known = images.benchmark, cache[KNOWN]
    scaling = fit_temperature(cache.get("fit/val", images.splits["val"]), home)
    sha256 = digests(images)
    for name in sets:
        if name != KNOWN and sha256[name] == sha256[KNOWN]:
            _log.warning("%s: has the images of the known test set, so it says nothing about unknown ones", name)
    fitted = (scored.recipe.objective, scaling.temperature, scaling.no_optimum)
    found = temperatures(scored.scores, *fitted) | (p_unknown_temperature(*fitted) if known.is_open else {})
    return {
        "benchmark": benchmark.name,
        "lists": benchmark.lists or "the sets as they are under the root",
        "images": {name: len(data.labels) for name, data in sets.items()},
        "sha256": sha256,  # of the images after resizing
        "near": [name for name in benchmark.near if name in sets],
        "far": [name for name in benchmark.far if name in sets],
        "missing": list(images.missing),
        "left_out": scored.left_out,
        "search": scored.searches,
        USUAL_K: usual_k(len(images.splits["train"].labels)),
        "known": known_metrics(known),
        "known_scaled": known_metrics(scaling(known))
        | {"temperature": scaling.temperature, **({NO_OPTIMUM: True} if scaling.no_optimum else {})},
        "temperatures": found if scored.is_run else assumed(found),
        **_p_unknown(scored, scaling),
        **({} if cache.precision == "float32" else {"precision": cache.precision}),
        **({"mirrored": True} if cache.mirrored else {}),
        **({AUTO: scored.choice} if scored.choice else {}),
    }


def _p_unknown(scored: Scoring, scaling: TemperatureScaling) -> dict[str, Any]:
    """Mean p_{K+1} for each unknown set at the temperature of the run, and at T = 1 where that is another one."""
    cache, known = scored.cache, scored.cache[KNOWN]
    names = scored.images.unknown if known.is_open else ()
    found = {name: p_unknown(known, cache[name]) for name in names}
    if not (found and normalises_logits(scored.recipe.objective)):
        return {P_UNKNOWN: found}
    return {P_UNKNOWN: {name: p_unknown(scaling(known), scaling(cache[name])) for name in names}, UNSCALED: found}
