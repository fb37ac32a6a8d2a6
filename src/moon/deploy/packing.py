"""From a finished run to one file that answers: a class, or "unknown"."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from moon import __version__
from moon.deploy.bank import BANK, features_kept, reduced
from moon.deploy.calibration import Guarantee, calibrate
from moon.deploy.choice import named_or_chosen
from moon.deploy.measure import CHECKED, measure
from moon.deploy.packed import PackedNetwork, preprocessing
from moon.deploy.rejection import measure_rejection
from moon.detect import Detector, Scaled
from moon.evidence import Evidence, RotationHead
from moon.evidence.layers import has_convolutions
from moon.export.graph import Graph
from moon.export.program import trace_detector
from moon.export.runtime import checked_graph, runtime
from moon.files import check_output, write_atomic
from moon.recipe import Recipe, build
from moon.recipe.names import PACKED
from moon.recipe.pretrained import weights_digest
from moon.recipe.teachers import teacher_folders
from moon.run.folder import check_data, class_names, load, load_result
from moon.run.images import BenchmarkImages
from moon.run.learning import chance
from moon.score.auto import Track, halves
from moon.score.cache import TRAINING, EvidenceCache
from moon.score.checkpoint import load_checkpoint
from moon.score.scoring import warn_of_small_classes
from moon.score.temperatures import NO_OPTIMUM, assumed, fit_temperature, temperatures

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trained:
    """A trained network with what packing it needs.

    Args:
        model: The network.
        recipe: How it was trained; only the objective counts.
        images: Known images, of which `train` may be missing, and unknown ones.
        classes: The names of the classes.
        provenance: What the file says about the network.
        folder: The folder of its run; None: it is not known how it was trained.
        digest: The SHA-256 of its weights.
        training: A function that computes the evidence of the training images; None: those of `images` are used.
        count: How many training images there are, if `images` does not have them and it is known.
    """

    model: nn.Module
    recipe: Recipe
    images: BenchmarkImages
    classes: Sequence[str]
    provenance: Mapping[str, Any]
    folder: Path | None = None
    digest: str = ""
    training: Callable[[bool], Evidence] | None = None
    count: int | None = None

    @property
    def images_trained_on(self) -> int | None:
        train = self.images.splits.get("train")
        return self.count if train is None else len(train.labels)


def pack_run(
    folder: Path | str,
    images: BenchmarkImages,
    path: Path | str,
    detector: str = PACKED,
    guarantee: Guarantee | None = None,
    *,
    bank: int = BANK,
    precision: str = "float16",
    checked: int = CHECKED,
    force: bool = False,
    device: torch.device | str = "cpu",
    track: Track = lambda items, _: items,
) -> dict[str, Any]:
    """Pack a finished run into a `.moon` file: the network, class names, a detector and its threshold.

    The threshold is found with the packed network itself, on validation images. If the detector is fitted on validation
    images as well, or was chosen with them, one half is for this and the other half for the threshold.

    Args:
        folder: The folder of a finished run.
        images: The images of its benchmark.
        path: The file to write.
        detector: The name of the detector, as for `score_run`, with the same temperature. ODIN and RotPred cannot
            be packed. `auto` is the choice that `score_run` recorded in the folder, or else that of the rule.
        guarantee: What the threshold promises; None: a known image is accepted with a probability of 95% or more.
        bank: How many training images' features are kept, for detectors that keep any.
        precision: The type of stored weights: "float16", "float32" or "int8".
        checked: How many images of each test set are used to measure what the file does and what packing changes; 0
                measures only probes, see `rejection`.
        force: Whether to pack a network that has learned nothing, too.
        device: Where PyTorch runs the network.
        track: Wraps a list of names, with a description, for a progress bar.

    Returns:
        What was packed and measured, as the file has it under `provenance`, the `detector`, its `threshold`, `bytes`,
        the size of the file, and `detector_bytes`, how many of them are the detector's. For `auto`, the provenance says
        why this detector was chosen, and `measured` has `chosen_on: True` for sets that it was chosen on. `rejection`
        says what is rejected of generated images of no class, with a verdict in words; if the file accepts most images
        of any such kind or far set, there is a warning.

    Raises:
        ValueError: If the file cannot be written, the run is not finished, the network has learned nothing, the network
            or the detector cannot be packed, or there are too few validation images for the guarantee.
        MissingPackage: If the package moon-runtime is not installed.

    Example:
        >>> import tempfile
        >>> import moon
        >>> images = moon.BenchmarkImages.open("data", "digits")  # embedded
        >>> recipe = moon.make_recipe("digits", "cross-entropy", topology="static", epochs=2, batch_size=64)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = moon.train_run(recipe, folder, images)
        ...     facts = moon.pack_run(folder, images, f"{folder}/digits.moon", checked=0)
        ...     classifier = moon.load(f"{folder}/digits.moon")
        >>> len(classifier(images.splits["test"].images)), facts["calibration_images"]
        (1000, 250)
    """
    folder = Path(folder)
    check_output(path := Path(path))
    b, recipe, result = images.benchmark, Recipe.load(folder / "recipe.json"), load_result(folder)
    if recipe.benchmark != b.name:
        raise ValueError(f"{folder}: was trained on {recipe.benchmark}, not {b.name}")
    check_data(folder, images)
    about = {"recipe": recipe.to_json() | _without_paths(recipe), "model_sha256": result["model_sha256"]}
    model, classes = load(folder, device), class_names(folder, b.num_known)
    trained = Trained(model, recipe, images, classes, about, folder, result["model_sha256"])
    return pack_network(trained, path, detector, guarantee, bank, precision, checked, force, track)


def pack_checkpoint(
    path: Path,
    net: str,
    width: float,
    images: BenchmarkImages,
    out: Path,
    detector: str,
    guarantee: Guarantee,
    *,
    device: torch.device,
    **settings: Any,
) -> dict[str, Any]:
    """Pack the network of a checkpoint; the arguments are those of `score_checkpoint` and `pack_run`."""
    digest, b = weights_digest(path), images.benchmark
    recipe, model = load_checkpoint(path, net, width, b, device)
    classes = images.splits["train"].classes or tuple(map(str, range(b.num_known)))
    about = {"checkpoint": path.name, "net": net, "benchmark": b.name, "model_sha256": digest}
    trained = Trained(model, recipe, images, classes, about, digest=digest)
    return pack_network(trained, out, detector, guarantee, **settings)


def pack_network(
    trained: Trained,
    path: Path,
    detector: str,
    guarantee: Guarantee | None,
    bank: int,
    precision: str,
    checked: int,
    force: bool,
    track: Track,
) -> dict[str, Any]:
    """Pack a network in evaluation mode; arguments and result are those of `pack_run`."""
    runtime()  # says so if it is missing, before anything is computed
    guarantee, folder, recipe, model = guarantee or Guarantee(), trained.folder, trained.recipe, trained.model
    images, b, validation = trained.images, trained.images.benchmark, trained.images.splits["val"]
    detector, options, why, chosen_on, left = named_or_chosen(
        detector, folder, recipe, b, trained.images_trained_on if has_convolutions(model) else None
    )
    original = build.detector(detector, recipe, b, **options)
    is_chosen = bool(chosen_on and left)
    fitting, calibrating = _divide(len(validation.labels), original, detector, is_chosen)
    if chosen_on and not left:
        _log.warning(
            "%s was chosen with all validation images, also those that the threshold comes from, and the guarantee "
            "does not count this choice: with few of them slightly fewer known images are accepted than it says; "
            "moon score RUN --tune-on SET chooses again, with one half", detector
        )  # fmt: skip
    half = ", half of them for the choice of the detector" if is_chosen else ""
    if "validation" in original.fits_on_splits:
        half = ", half of them for the detector (--detector mls needs none)"
    _check_enough(len(validation.labels), half, b.num_known, guarantee)
    device = next(model.parameters()).device
    cache = EvidenceCache(images, model, trained.digest, folder, layers=original.layered)
    found = cache.get("fit/val", validation)
    _check_learned(found, force)
    known = {"validation": found.take(fitting)}
    if "train" in original.fits_on_splits:
        for _ in track(["training images"], "evaluating"):
            own = trained.training
            known["train"] = own(original.layered) if own else cache.get(TRAINING, images.splits["train"])
        if (labels := known["train"].labels) is not None:
            warn_of_small_classes({detector: original}, labels.cpu().numpy())
    made = build.detector(detector, recipe, b, **options)
    small = _fitted(reduced(made, bank, len(known.get("train", ()))), known)
    scaling = fit_temperature(known["validation"], folder or "the network")
    description = {
        "preprocess": preprocessing(b),
        "classes": list(trained.classes),
        "temperature": scaling.temperature,
        "detector": {"name": detector, "options": small.options()},
    }
    try:
        graph = _traced(model.cpu(), b.input_shape, original.layered)
    finally:
        model.to(device)
    packed = PackedNetwork(graph, trace_detector(small, known["validation"]), description, precision)
    calibration = validation.take(calibrating.numpy())
    answers = packed.answer(calibration, b)
    packed = packed.with_threshold(*calibrate(answers["score"], answers["label"], list(trained.classes), guarantee))
    measured = measure(packed, _fitted(original, known), cache, checked, track) if checked else {}
    for name in {*chosen_on} & {*measured}:
        measured[name]["chosen_on"] = True
    temperature = temperatures([detector], recipe.objective, scaling.temperature, scaling.no_optimum)
    provenance = {
        "moon": __version__,
        **trained.provenance,
        "precision": precision,
        **({"auto": why} if why else {}),
        "features_kept": features_kept(small),
        "detector_temperature": (temperature if folder else assumed(temperature)).get(detector),
        **({f"temperature_{NO_OPTIMUM}": True} if scaling.no_optimum else {}),
        "calibration_images": len(calibration.labels),
        "dense_bytes": sum(4 * parameter.numel() for parameter in model.parameters()),
        "measured": measured,
        "rejection": measure_rejection(packed, b, validation, measured),
    }
    content = packed.with_description(provenance=provenance).content()
    write_atomic(path, lambda partial: partial.write_bytes(content))
    sizes = {"bytes": len(content), "detector_bytes": packed.detector_bytes}
    return provenance | {"detector": detector, "threshold": _threshold(packed), **sizes}


def _without_paths(recipe: Recipe) -> dict[str, str]:
    """The names of the files and folders that a recipe refers to, without paths of this machine."""
    teachers = ",".join(folder.name for folder in teacher_folders(recipe.teachers))
    return {"pretrained": Path(recipe.pretrained).name, "teachers": teachers}


def _threshold(packed: PackedNetwork) -> dict[str, Any]:
    """The values of the threshold, one or one for each class, and what it promises."""
    assert packed.threshold is not None
    assert packed.tensors is not None
    return {"values": packed.tensors["threshold"].tolist(), **packed.threshold}


def _divide(images: int, detector: Detector, name: str, is_chosen: bool) -> tuple[Tensor, Tensor]:
    """The numbers of validation images to fit on and to calibrate on.

    These are all for both, unless the detector is fitted on them or chosen.
    """
    is_fitted = "validation" in detector.fits_on_splits
    if not (is_fitted or is_chosen):
        return torch.arange(images), torch.arange(images)
    fitting, calibration = halves(images)
    if is_chosen:
        name, how = f"{name} (or its options)", "was chosen with"
    else:
        name, how = f"the temperature of {name}" if isinstance(detector, Scaled) else name, "is fitted on"
    _log.info(
        "%s %s validation images: %d are used for it, the other %d for the threshold",
        name, how, len(fitting), len(calibration)
    )  # fmt: skip
    return fitting, calibration


def _check_learned(validation: Evidence, force: bool) -> None:
    """Raise a ValueError if a network is no better than always answering the most frequent class."""
    assert validation.labels is not None
    labels = validation.labels.cpu().numpy()
    accuracy = float((validation.prediction.cpu().numpy() == labels).mean())
    if (constant := chance(accuracy, labels)) is None:
        return
    nothing = (
        f"the network has learned nothing: its accuracy on {len(labels):,} validation images is {accuracy:.1%}, and "
        f"always predicting the most frequent class has {constant:.1%}"
    )
    if not force:
        raise ValueError(f"{nothing}; train it longer or with other settings, or pack it all the same (force)")
    _log.warning("%s", nothing)


def _check_enough(count: int, half: str, classes: int, guarantee: Guarantee) -> None:
    """Raise a ValueError if no threshold can have this guarantee; `half` says what the other half is for, if any."""
    needed = guarantee.needed * (classes if guarantee.per_class else 1)
    needed = 2 * needed - 1 if half else needed  # the threshold gets the larger half
    if count < needed:
        raise ValueError(
            f"{count:,} validation images are too few for a threshold that {guarantee.describe()}; at least {needed:,} "
            f"are needed{half}; give more, as the split val (moon data import, or hold-out --val-share), and train "
            "a new run, or accept a lower share (accept)"
        )


def _traced(model: nn.Module, shape: tuple[int, ...], layers: bool) -> Graph:
    if any(isinstance(module, RotationHead) for module in model.modules()):
        _log.info("the rotation head is not packed: only the detector rotpred uses it, which cannot be packed")
    try:
        return checked_graph(model, shape, layers)
    except ValueError as error:
        instead = "moon export RUN --onnx FILE --network-only writes any network, without a detector"
        raise ValueError(f"the network cannot be packed: {error}; {instead}") from error


def _fitted(detector: Detector, known: dict[str, Evidence]) -> Detector:
    splits = [known[name] for name in detector.fits_on_splits]
    return detector.fit(*splits) if splits else detector
