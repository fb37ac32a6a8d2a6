"""A Hugging Face model with a detector and its threshold: it answers with a class or "unknown", and can be saved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from moon.deploy.threshold import Threshold, find_threshold, p_values
from moon.detect import Detector
from moon.evidence import Evidence, OpenHead, open_head, read
from moon.evidence.labels import UNKNOWN
from moon.integrations.huggingface_answers import Answers, Examples, check_several
from moon.integrations.huggingface_card import write_card
from moon.integrations.huggingface_files import describe, load_model, read_files, write_files
from moon.metrics import accuracy, auroc, fpr_at_tpr
from moon.seeds import generator
from moon.sparse import sparse_weights


class OpenClassifier:
    """A model, a detector and a threshold: a class for known inputs, "unknown" for others.

    Args:
        model: A Hugging Face classifier; its `config.id2label` names the classes.
        detector: A fitted detector.
        threshold: The threshold of its scores.
        known_scores: The scores of the known inputs that the threshold was found with.
        processor: What turns raw inputs into inputs of the model, a tokenizer or an image processor; it is saved with
            the model. None if `classifier(...)` is only given tensors.
        metrics: What was measured, see `evaluate`.

    Example:
        >>> import torch
        >>> from transformers import ViTConfig, ViTForImageClassification
        >>> from moon import Energy
        >>> from moon.integrations.huggingface import OpenClassifier
        >>> small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        >>> model = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, num_labels=3, **small))
        >>> batches = [{"pixel_values": torch.randn(20, 3, 8, 8)}]
        >>> classifier = OpenClassifier.fit(model, Energy(), calibration=batches)
        >>> len(classifier({"pixel_values": torch.randn(5, 3, 8, 8)}).labels)
        5
    """

    def __init__(
        self,
        model: PreTrainedModel,
        detector: Detector,
        threshold: Threshold,
        known_scores: NDArray[np.float64],
        processor: Any = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.detector, self.threshold = model, detector, threshold
        self.known_scores, self.processor, self.metrics = known_scores, processor, dict(metrics or {})

    @classmethod
    def fit(
        cls,
        model: PreTrainedModel,
        detector: Detector,
        calibration: Iterable,
        train: Iterable | None = None,
        *,
        accept: float = 0.95,
        confidence: float | None = None,
        processor: Any = None,
    ) -> OpenClassifier:
        """Fit a detector and find its threshold.

        A detector that is fitted on validation inputs gets one half of the calibration inputs, the threshold the other.

        Args:
            model: A Hugging Face classifier.
            detector: The detector.
            calibration: Batches of known inputs that were not trained on, as for `moon.read`.
            train: Batches of training inputs, for detectors that need them.
            accept: The share of known inputs to accept, see `moon.find_threshold`.
            confidence: With which probability this holds, see `moon.find_threshold`.
            processor: As for the constructor.

        Returns:
            The classifier.

        Raises:
            ValueError: If the detector needs training inputs and there are none, or rotated images, or if there are too
                few inputs for the threshold.
        """
        splits = detector.fits_on_splits
        if "train" in splits and train is None:
            raise ValueError(f"{type(detector).__name__} is fitted on training inputs; give train=...")
        if detector.rotates:
            raise ValueError(f"{type(detector).__name__} needs a rotation head, which a saved model would not have")
        held_out = read(model, calibration, layers=detector.layered, **detector.reading)
        fitting = held_out
        if "validation" in splits:
            order = torch.randperm(len(held_out), generator=generator("calibration"))
            first, second = order.tensor_split(2)
            fitting, held_out = held_out.take(first), held_out.take(second)
        if splits:
            known = {"validation": fitting}
            if train is not None and "train" in splits:
                known["train"] = read(model, train, layers=detector.layered)
            detector.fit(*(known[name] for name in splits))
        scores = np.sort(detector.score(held_out).double().cpu().numpy())
        return cls(model, detector, find_threshold(scores, accept, confidence), scores, processor)

    @property
    def classes(self) -> list[str]:
        """The names of the known classes."""
        names: Any = self.model.config.id2label
        return [names[index] for index in range(self.num_known)]

    @property
    def num_known(self) -> int:
        """K, the number of known classes."""
        config: Any = self.model.config
        return config.num_labels - (getattr(config, "num_known", None) == config.num_labels - 1)

    @property
    def masks(self) -> dict[str, Tensor]:
        """For each weight that can be sparse, where it is not zero."""
        return {name: weight.detach() != 0 for name, weight in sparse_weights(self.model).items()}

    @property
    def sparsity(self) -> float:
        """The share of zeros among the weights that can be sparse."""
        masks = self.masks.values()
        return 1 - sum(int(mask.sum()) for mask in masks) / max(sum(mask.numel() for mask in masks), 1)

    def __call__(self, inputs: Any) -> Answers:
        """Answer about a batch of inputs.

        Args:
            inputs: A mapping of the model's keyword arguments, such as `{"pixel_values": x}`; with a processor also raw
                inputs: a list of texts, or a list or an array of images.

        Returns:
            The answers.

        Raises:
            ValueError: If raw inputs are given, but there is no processor, or if this is one input instead of several.
        """
        how = {"layers": self.detector.layered, **self.detector.reading}
        return self.answer(read(self.model, [self.prepare(inputs)], **how))

    def prepare(self, inputs: Any) -> Mapping[str, Tensor]:
        """Turn raw inputs, as for a call, into inputs of the model. Mappings are returned as they are.

        Raises a ValueError if there is no processor, if there are no inputs, or if this is one input instead of
        several.
        """
        if isinstance(inputs, Mapping):
            return inputs
        if self.processor is None:
            raise ValueError(
                f"the classifier has no processor, so inputs must be a mapping of the model's keyword arguments, not a "
                f"{type(inputs).__name__}; give it one: OpenClassifier.fit(..., processor=tokenizer)"
            )
        is_text = isinstance(self.processor, PreTrainedTokenizerBase)
        check_several(inputs, dimensions=1 if is_text else 4)
        if not (inputs := list(inputs)):
            raise ValueError("there are no inputs; give a list of at least one")
        if is_text:
            encoded = self.processor(inputs, padding=True, truncation=True, return_tensors="pt")
            names = set(self.processor.model_input_names)
            return {name: value for name, value in encoded.items() if name in names}
        return dict(self.processor(inputs, return_tensors="pt"))

    def answer(self, evidence: Evidence) -> Answers:
        """Answer about inputs whose evidence is known (that of the changed inputs, if the detector changes them)."""
        scores = self.detector.score(evidence).double().cpu().numpy()
        is_known = self.threshold.accepts(scores)
        names = [self.classes[index] for index in evidence.prediction.tolist()]
        return Answers(
            [name if known else UNKNOWN for name, known in zip(names, is_known, strict=True)],
            names,
            evidence.confidence.float().cpu().numpy(),
            scores,
            p_values(scores, self.known_scores),
            is_known,
        )

    def evaluate(self, known: Iterable, unknown: Mapping[str, Iterable]) -> dict[str, Any]:
        """Measure the classifier on inputs that were not used so far. The result is kept, for the model card.

        Args:
            known: Batches of known inputs with labels.
            unknown: Batches of unknown inputs by the name of the set.

        Returns:
            `accuracy` (before rejection) and `accepted` (the share of known inputs that is accepted), and `unknown`:
            for each set AUROC, FPR-95 and `rejected`, the share of its inputs that is rejected.

        Raises:
            ValueError: If the known inputs have no labels.
        """
        how = {"layers": self.detector.layered, **self.detector.reading}
        evidence = read(self.model, known, **how)
        if evidence.labels is None:
            raise ValueError("the known batches have no labels; give (inputs, labels) or mappings with 'labels'")
        scores = self.detector.score(evidence)
        sets = {name: self.detector.score(read(self.model, loader, **how)) for name, loader in unknown.items()}
        self.metrics = {
            "accuracy": accuracy(evidence.prediction, evidence.labels),
            "accepted": float(self.threshold.accepts(scores).mean()),
            "known_inputs": len(evidence),
            "unknown": {
                name: {
                    "auroc": auroc(scores, others),
                    "fpr95": fpr_at_tpr(scores, others),
                    "rejected": float(1 - self.threshold.accepts(others).mean()),
                    "inputs": len(others),
                }
                for name, others in sets.items()
            },
        }
        return self.metrics

    def save_pretrained(
        self, folder: Path | str, *, name: str | None = None, examples: Sequence[Examples] = (), **settings: Any
    ) -> None:
        """Save model, processor, detector, threshold and a model card.

        The folder is an ordinary Hugging Face model: `AutoModelFor....from_pretrained(folder)` loads it, with "unknown"
        as its last label if it has that output. `moon.json` and `moon.safetensors` contain the rest.

        Args:
            folder: The folder; it is created.
            name: The name of the model in its card; None for that of the folder.
            examples: Inputs to show in the card with the answers to them.
            **settings: Further arguments of the model's `save_pretrained`.

        Raises:
            ValueError: If the detector has no name; `moon.register` gives it one.
        """
        folder = Path(folder)
        description = describe(self)
        self.model.save_pretrained(folder, **settings)
        if self.processor is not None:
            self.processor.save_pretrained(folder)
        write_card(folder, name or folder.resolve().name, self, description, examples)
        write_files(folder, self.detector, self.known_scores, description)

    @classmethod
    def from_pretrained(cls, folder: Path | str, model: PreTrainedModel | None = None) -> OpenClassifier:
        """Load what `save_pretrained` saved. Nothing is downloaded, and no code from the folder is run.

        Args:
            folder: The folder.
            model: The model, if its class is not part of transformers; load it from the same folder.

        Returns:
            The classifier, with its model in evaluation mode.

        Raises:
            ValueError: If the folder has no `moon.json`, or if a file is damaged or belongs to another model.
        """
        folder = Path(folder)
        description, detector, scores = read_files(folder)
        model = load_model(folder) if model is None else model
        is_open = any(isinstance(module, OpenHead) for module in model.modules())
        if getattr(model.config, "num_known", None) is not None and not is_open:
            open_head(model)  # it has the output already, in a Linear layer
        processor = None
        if description["has_processor"]:
            from transformers import AutoProcessor

            processor = AutoProcessor.from_pretrained(folder, local_files_only=True)
        threshold = Threshold(**description["threshold"])
        return cls(model.eval(), detector, threshold, scores, processor, description["metrics"])
