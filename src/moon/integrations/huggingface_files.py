"""The files of a saved `OpenClassifier` beside those of the model: `moon.json` and `moon.safetensors`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from hashlib import sha256 as hash_of
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel

from moon import __version__
from moon.detect import Detector, Scaled
from moon.files import sha256, write_atomic
from moon.integrations.huggingface_answers import Classifier
from moon.recipe.registry import pick, table
from moon.records import read_record, write_record

FORMAT = 1
RECORD, TENSORS = "moon.json", "moon.safetensors"
_SCORES, _STATE = "calibration", "detector."  # names of tensors


def describe(classifier: Classifier) -> dict[str, Any]:
    """What `moon.json` records about a classifier, except its detector: classes, threshold, sparsity and metrics."""
    masks, parameters = classifier.masks, sum(weight.numel() for weight in classifier.model.parameters())
    return {
        "classes": classifier.classes,
        "threshold": asdict(classifier.threshold),
        "sparsity": classifier.sparsity,
        "density_of_layers": {layer: float(mask.float().mean()) for layer, mask in masks.items()},
        "parameters": parameters,
        "nonzero_parameters": parameters - sum(int((~mask).sum()) for mask in masks.values()),
        "metrics": classifier.metrics,
        "has_processor": classifier.processor is not None,
    }


def write_files(folder: Path, detector: Detector, scores: NDArray[np.float64], description: dict[str, Any]) -> None:
    """Write `moon.safetensors`, and `moon.json` last: a folder that has it is complete.

    The weights of the model are in the folder already. Raises a ValueError if the detector has no name.
    """
    (folder / RECORD).unlink(missing_ok=True)
    tensors = {f"{_STATE}{key}": value.detach().cpu().clone() for key, value in detector.state_dict().items()}
    tensors = {key: value.contiguous() for key, value in tensors.items()} | {_SCORES: torch.from_numpy(scores.copy())}
    write_atomic(folder / TENSORS, lambda partial: save_file(tensors, partial))
    inner = detector.inner if isinstance(detector, Scaled) else detector
    record = {
        "format": FORMAT,
        "moon": __version__,
        **description,
        "detector": {
            "name": detector_name(inner),
            "options": detector.options(),
            "is_scaled": isinstance(detector, Scaled),
        },
        "files": {path.name: sha256(path) for path in sorted(folder.glob("*.safetensors"))},
    }
    write_record(folder / RECORD, record)


def detector_name(detector: Detector) -> str:
    """The name of a detector, as `moon score` knows it. Raises a ValueError if it has none."""
    for name, entry in table("detector").items():
        if entry is type(detector):
            return name
    kind = type(detector).__name__
    raise ValueError(f"{kind} has no name, which is needed to load it again; moon.register('detector', NAME, {kind})")


def read_files(folder: Path) -> tuple[dict[str, Any], Detector, NDArray[np.float64]]:
    """Read what `write_files` wrote: the record, the detector and the scores behind its threshold.

    Raises a ValueError if a file is missing, damaged, of a later version, or does not belong to the others.
    """
    path = folder / RECORD
    try:
        record = read_record(path)
        if record.get("format") != FORMAT:
            raise ValueError(f"format is {record.get('format')}, expected {FORMAT}")
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; OpenClassifier.save_pretrained writes it") from None
    except ValueError as error:
        raise ValueError(f"{path}: is damaged or of another version: {error}") from error
    _check_files(folder, record["files"])
    try:
        tensors = load_file(folder / TENSORS)
        scores = tensors.pop(_SCORES).double().numpy()
    except (SafetensorError, KeyError, OSError) as error:
        raise ValueError(f"{folder / TENSORS}: is damaged: {error}") from error
    saved = record["detector"]
    try:
        detector: Detector = pick("detector", saved["name"])(**saved["options"])
    except TypeError as error:  # an option that this version does not have
        raise ValueError(f"{path}: the detector '{saved['name']}' cannot be built: {error}") from error
    detector = Scaled(detector) if saved["is_scaled"] else detector
    detector.load_state_dict({key.removeprefix(_STATE): value for key, value in tensors.items()})
    return record, detector, scores


def _check_files(folder: Path, digests: dict[str, str]) -> None:
    """Raise a ValueError if the weights are not those that the threshold was found for."""
    found = {path.name for path in folder.glob("*.safetensors")}
    for name in sorted(found | digests.keys()):
        if name not in found:
            raise ValueError(f"{folder / name}: is missing; copy the whole folder again")
        if digests.get(name) != sha256(folder / name):
            raise ValueError(
                f"{folder / name}: differs from what moon.json was written for, so detector and threshold belong to "
                "other weights; copy the whole folder again, or save the classifier again"
            )


def digests(model: nn.Module) -> dict[str, str]:
    """SHA-256 of each weight of a model, by name."""
    return {name: _digest(weight) for name, weight in model.named_parameters()}


def _digest(weight: Tensor) -> str:
    content = weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hash_of(content.numpy().data).hexdigest()


def check_weights(model: nn.Module, saved: Mapping[str, str], folder: Path) -> None:
    """Raise a ValueError if weights of a model are not those that were saved with the masks of a checkpoint."""
    weights = dict(model.named_parameters())
    for name, digest in saved.items():
        if name not in weights or _digest(weights[name]) != digest:
            raise ValueError(
                f"{folder}: its masks were saved with other weights than the trainer has loaded ('{name}' differs); "
                "with a plain Trainer name the folder in TrainingArguments(resume_from_checkpoint=...) as well, or use "
                "MoonTrainer"
            )


def load_renamed(model: nn.Module, folder: Path, saved: Mapping[str, str]) -> None:
    """Load the weights of a checkpoint whose names are not those of the model; the others are loaded already.

    `save_pretrained` gives some weights the names of earlier versions, those of a ViT for example, but a `Trainer` that
    resumes loads by name: it leaves these weights as they are and logs a warning (huggingface/transformers#43701).
    Raises a ValueError if the weights that are loaded already are those of another checkpoint.
    """
    names: set[str] = set()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            names |= set(file.keys())
    if isinstance(model, PreTrainedModel) and names - model.state_dict().keys():
        check_weights(model, {name: digest for name, digest in saved.items() if name in names}, folder)
        loaded = type(model).from_pretrained(folder, local_files_only=True)
        model.load_state_dict(loaded.state_dict())


def load_model(folder: Path) -> PreTrainedModel:
    """Load a model, but run no code from the folder: a class that is not part of transformers is a ValueError."""
    names = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False).architectures or ["?"]
    kind = getattr(transformers, names[0], None)
    if not (isinstance(kind, type) and issubclass(kind, PreTrainedModel)):
        raise ValueError(
            f"{folder}: its model is a {names[0]}, which transformers does not have; load it yourself: "
            "OpenClassifier.from_pretrained(folder, model=...)"
        )
    return kind.from_pretrained(folder, local_files_only=True)
