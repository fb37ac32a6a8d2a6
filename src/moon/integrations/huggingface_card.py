"""The model card of an `OpenClassifier`: README.md, with a picture of inputs and answers."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from moon.evidence.labels import UNKNOWN
from moon.files import write_text
from moon.integrations.huggingface_answers import Answers, Classifier, Examples

_log = logging.getLogger(__name__)
_PICTURE = "answers.png"
_LONGEST = 100  # characters of a text in the table


def write_card(
    folder: Path,
    name: str,
    classifier: Classifier,
    description: Mapping[str, Any],
    examples: Sequence[Examples],
) -> None:
    """Write README.md and, for images, the picture in it. `description` is what `moon.json` records."""
    answers = [classifier(each.inputs) for each in examples]
    text = "\n\n".join(
        [
            _front_matter(classifier),
            f"# {name}",
            _summary(classifier, description),
            "## Numbers\n\n" + _numbers(classifier, description),
            "## Use\n\n" + _use(name, classifier),
            *(["## Examples\n\n" + _shown(folder, examples, answers)] if examples else []),
            "## Limits\n\n" + _limits(description),
        ]
    )
    write_text(folder / "README.md", text + "\n")


def _front_matter(classifier: Classifier) -> str:
    kind = type(classifier.model).__name__
    tasks = {"ForImageClassification": "image-classification", "ForSequenceClassification": "text-classification"}
    task = next((task for suffix, task in tasks.items() if kind.endswith(suffix)), None)
    lines = ["library_name: transformers", *([f"pipeline_tag: {task}"] if task else [])]
    tags = ["moon", "sparse", "open-set-recognition", "out-of-distribution-detection"]
    return "\n".join(["---", *lines, "tags:", *(f"- {tag}" for tag in tags), "---"])


def _summary(classifier: Classifier, description: Mapping[str, Any]) -> str:
    kind, classes = type(classifier.model).__name__, classifier.classes
    shown = ", ".join(classes[:20]) + (", ..." if len(classes) > 20 else "")
    zeros = f"{100 * description['sparsity']:.1f}% of the weights of its linear and convolution layers are zero."
    return (
        f'A `{kind}` that answers with one of {len(classes)} classes or with "{UNKNOWN}". {zeros}\n\nClasses: {shown}.'
    )


def _numbers(classifier: Classifier, description: Mapping[str, Any]) -> str:
    threshold, metrics = classifier.threshold, classifier.metrics
    promise = f"accepts a known input with a probability of {threshold.accept:.4g} or more"
    if threshold.confidence is not None:
        promise = f"accepts a share of {threshold.accept:.4g} or more, with a confidence of {threshold.confidence:.4g}"
    rows = [
        ("sparsity", f"{100 * description['sparsity']:.1f}%"),
        ("non-zero parameters", f"{description['nonzero_parameters']:,} of {description['parameters']:,}"),
        ("detector", f"`{type(classifier.detector).__name__}` {_options(classifier)}".rstrip()),
        ("threshold", f"{threshold.value:.6g}; {promise} ({threshold.images:,} calibration inputs)"),
    ]
    if metrics:
        count = f"{metrics['known_inputs']:,} known test inputs"
        rows += [
            (f"accuracy on {count}", f"{100 * metrics['accuracy']:.1f}%"),
            ("known test inputs accepted", f"{100 * metrics['accepted']:.1f}%"),
        ]
        rows += [
            (
                f"unknown: {name} ({values['inputs']:,} inputs)",
                f"AUROC {values['auroc']:.3f}, FPR-95 {values['fpr95']:.3f}, {100 * values['rejected']:.1f}% rejected",
            )
            for name, values in metrics["unknown"].items()
        ]
    else:
        rows.append(("metrics", "not measured"))
    return _table(("", "value"), rows)


def _options(classifier: Classifier) -> str:
    options = classifier.detector.options()
    return f"({', '.join(f'{key}={value}' for key, value in options.items())})" if options else ""


def _use(name: str, classifier: Classifier) -> str:
    texts = [_LINES["ours"].format(name=json.dumps(name), inputs=_INPUTS[_kind(classifier)])]
    texts.append(
        "The weights are those of an ordinary Hugging Face model. Loaded without `moon` it has no threshold"
        + (f', and "{UNKNOWN}" is its last label:' if _is_open(classifier) else ":")
    )
    texts.append(_LINES["plain"].format(kind=type(classifier.model).__name__, name=json.dumps(name)))
    return "\n\n".join(texts)


_LINES = {
    "ours": """```python
from moon.integrations.huggingface import OpenClassifier

classifier = OpenClassifier.from_pretrained({name})  # a folder; nothing is downloaded
answers = classifier({inputs})
print(answers.labels)  # a class or "unknown" for each input
print(answers.p_value)  # low: such inputs are rare among known ones
```""",
    "plain": """```python
from transformers import {kind}

model = {kind}.from_pretrained({name})
```""",
}
_INPUTS = {"text": "texts", "image": "images", "tensors": '{"pixel_values": x}'}


def _kind(classifier: Classifier) -> str:
    if classifier.processor is None:
        return "tensors"
    return "text" if hasattr(classifier.processor, "vocab_size") else "image"


def _is_open(classifier: Classifier) -> bool:
    return classifier.model.config.num_labels == len(classifier.classes) + 1


def _shown(folder: Path, examples: Sequence[Examples], answers: Sequence[Answers]) -> str:
    """The examples: a picture of images, or a table."""
    if all(not each.is_text for each in examples) and _draw(folder / _PICTURE, examples, answers):
        alt = f"Inputs with the answers of the classifier: {'; '.join(each.heading for each in examples)}"
        return f'![{alt}]({_PICTURE})\n\np is the p-value of "this input is known".'
    rows = [
        (each.heading, _short(text) if isinstance(text, str) else f"image {index}", label, answer, f"{p:.3f}")
        for each, given in zip(examples, answers, strict=True)
        for index, (text, label, answer, p) in enumerate(
            zip(each.inputs, each.labels, given.labels, given.p_value, strict=True)
        )
    ]
    table = _table(("set", "input", "class", "answer", "p"), rows)
    return f'{table}\n\np is the p-value of "this input is known".'


def _draw(path: Path, examples: Sequence[Examples], answers: Sequence[Answers]) -> bool:
    """Draw the images; False if matplotlib is not installed."""
    from moon.results.answers import AnsweredImages, answered_images
    from moon.results.plotting import save

    rows = [
        AnsweredImages(
            each.heading,
            np.asarray(each.inputs),
            given.labels,
            given.p_value.tolist(),
            [label == answer for label, answer in zip(each.labels, given.labels, strict=True)],
        )
        for each, given in zip(examples, answers, strict=True)
    ]
    try:
        figure = answered_images(rows)
    except ImportError:
        _log.warning(
            "%s: matplotlib is not installed, so the card has no picture; pip install 'moon-sparse[report]'", path
        )
        return False
    save(figure, path)
    return True


def _limits(description: Mapping[str, Any]) -> str:
    images = description["threshold"]["images"]
    return (
        f"The threshold was found with {images:,} known inputs that were not trained on. It promises something about "
        "inputs that are drawn like these, and nothing about unknown ones. Accepted does not mean classified correctly."
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
