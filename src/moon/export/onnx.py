"""ONNX: one graph from pixels to class, probability, score, p-value and verdict, made from the content of a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from moon import __version__
from moon.errors import DataError
from moon.export.onnx_builder import Builder
from moon.export.onnx_network import add_network
from moon.export.onnx_program import Vector, add_program, counted, expanded

_OPSET, _IR = 17, 8  # old, so that many runtimes read it
PIXELS = ("uint8", "float")
_OUTPUTS = {
    "label": (TensorProto.INT64, "the most likely known class, a position in the list of classes"),
    "probability": (TensorProto.FLOAT, "the calibrated probability of this class"),
    "score": (TensorProto.DOUBLE, "how known the image is, by the detector; higher is more known"),
    "known": (TensorProto.BOOL, "whether the score reaches the threshold"),
    "p_value": (TensorProto.DOUBLE, "the share of known images with a score no higher than this one"),
}


def to_onnx(description: Mapping[str, Any], tensors: Mapping[str, NDArray], pixels: str = "uint8") -> ModelProto:
    """Translate the content of a `.moon` file to an ONNX model.

    The model takes `pixels` and, optionally, `threshold`, whose default is that of the file. Its outputs are `label`,
    `probability`, `score`, `known` and `p_value`, one of each per image. The batch size is dynamic. Sparse weights
    become dense ones. Class names, preprocessing, detector and provenance are in the model's metadata.

    `pixels` is "uint8" for images (N, H, W, C) of 0 to 255, or "float" for images (N, C, H, W) of 0 to 1. Raises a
    DataError if the file has no detector, or an operation that is not supported, or does not fit together.
    """
    if pixels not in PIXELS:
        raise ValueError(f"pixels must be {' or '.join(PIXELS)}, not '{pixels}'")
    if missing := [key for key in ("detector", "threshold", "classes", "preprocess") if key not in description]:
        raise DataError(f"the file has no {missing[0]}; write it with `moon pack`")
    try:
        return _model(description, tensors, pixels)
    except ValueError as error:
        raise DataError(f"the file cannot be exported: {error}") from error
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise DataError(f"the file is not as `moon pack` writes it ({type(error).__name__}: {error})") from error


def _model(description: Mapping[str, Any], tensors: Mapping[str, NDArray], pixels: str) -> ModelProto:
    builder = Builder()
    images = _normalised(builder, description["preprocess"], pixels)
    found = add_network(builder, description, tensors, images)
    logits, features = (Vector(builder.cast(x.name, np.float64), x.shape[0]) for x in found)
    classes = len(description["classes"])
    if logits.length not in (classes, classes + 1):
        raise ValueError(f"{logits.length} outputs do not fit {classes} classes")
    label = _add_class(builder, logits, classes, description["temperature"])
    detector = description["detector"]
    score = add_program(builder, detector["program"], tensors, logits, features)[detector["output"]]
    if score.length != 1:
        raise ValueError(f"the detector computes {score.length} scores per image, not one")
    # Shape (N,), as all outputs.
    name = builder.add("Squeeze", expanded(builder, score, 1, logits.name), builder.constant([1], np.int64))
    builder.named(name, "score")
    is_per_class = bool(description["threshold"]["per_class"])
    _add_verdict(builder, name, label, tensors, classes, is_per_class)
    return _finished(builder, description, pixels, classes if is_per_class else 1)


def _normalised(builder: Builder, preprocess: Mapping[str, Any], pixels: str) -> str:
    """The images as the network takes them, (N, C, H, W)."""
    mean, std = (
        builder.constant(np.reshape(preprocess[key], (1, -1, 1, 1)), np.float32, key) for key in ("mean", "std")
    )
    images = "pixels"
    if pixels == "uint8":
        images = builder.add("Transpose", builder.cast(images, np.float32), perm=[0, 3, 1, 2])
        images = builder.add("Div", images, builder.constant(255, np.float32))
    return builder.add("Div", builder.add("Sub", images, mean), std)


def _add_class(builder: Builder, logits: Vector, classes: int, temperature: float) -> str:
    """Add the most likely known class and its probability; return the name of the class, of shape (N,)."""
    known = logits.name
    if logits.length > classes:
        limits = [builder.constant([value], np.int64) for value in (0, classes, 1)]
        known = builder.add("Slice", known, *limits)
    label = builder.add("ArgMax", known, axis=1)
    scaled = builder.add("Div", logits.name, builder.constant(float(temperature), np.float64))
    every = builder.add("Softmax", scaled, axis=1)
    axis = builder.constant([1], np.int64)
    probability = builder.add("Squeeze", builder.add("GatherElements", every, label, axis=1), axis)
    builder.named(builder.cast(probability, np.float32), "probability")
    label = builder.add("Squeeze", label, axis)
    builder.named(label, "label")
    return label


def _add_verdict(
    builder: Builder, score: str, label: str, tensors: Mapping[str, NDArray], classes: int, is_per_class: bool
) -> None:
    """Add the p-value and the verdict."""
    threshold, calibration = tensors["threshold"], tensors["calibration"]
    if threshold.shape != (classes if is_per_class else 1,) or calibration.ndim != 1:
        raise ValueError("'threshold' and 'calibration' do not fit the number of classes")
    limit = builder.constant(threshold, np.float64, "threshold")
    axis = builder.constant([1], np.int64)
    entries = builder.constant(calibration[None], np.float64)
    is_no_higher = builder.add("GreaterOrEqual", builder.add("Unsqueeze", score, axis), entries)
    total = builder.constant(len(calibration) + 1.0, np.float64)
    if is_per_class:
        counts = tensors["calibration.counts"]
        if counts.shape != (classes,) or int(counts.sum(dtype=np.uint64)) != len(calibration):
            raise ValueError("'calibration.counts' does not fit 'calibration'")
        limit = builder.add("Gather", limit, label)
        groups = builder.constant(np.repeat(np.arange(classes), counts)[None], np.int64)
        is_same_class = builder.add("Equal", builder.add("Unsqueeze", label, axis), groups)
        is_no_higher = builder.add("And", is_no_higher, is_same_class)
        total = builder.add("Gather", builder.constant(counts + 1.0, np.float64), label)
    count = builder.add("Add", counted(builder, is_no_higher, 1), builder.constant(1.0, np.float64))
    builder.named(builder.add("Div", count, total), "p_value")
    builder.named(builder.add("GreaterOrEqual", score, limit), "known")


def _finished(builder: Builder, description: Mapping[str, Any], pixels: str, thresholds: int) -> ModelProto:
    channels, rows, columns = description["input"]
    info = helper.make_tensor_value_info
    if pixels == "uint8":
        images = info("pixels", TensorProto.UINT8, ["N", rows, columns, channels], "images, 0 to 255")
    else:
        images = info("pixels", TensorProto.FLOAT, ["N", channels, rows, columns], "images, 0 to 1, not normalised")
    what = f"the least score of a known image{', per predicted class' if thresholds > 1 else ''}"
    graph = helper.make_graph(
        builder.nodes,
        "open_set_classifier",
        [images, info("threshold", TensorProto.DOUBLE, [thresholds], what)],
        [info(name, kind, ["N"], text) for name, (kind, text) in _OUTPUTS.items()],
        builder.constants,
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR,
        producer_name="moon",
        producer_version=__version__,
    )
    detector, threshold = description["detector"], description["threshold"]
    facts = {
        "classes": description["classes"],
        "detector": detector["name"],
        "detector_options": detector.get("options", {}),
        "accept": threshold["accept"],
        "confidence": threshold.get("confidence"),
        "per_class": threshold["per_class"],
        "preprocess": description["preprocess"],
        "provenance": description.get("provenance", {}),
    }
    helper.set_model_props(
        model, {key: value if isinstance(value, str) else json.dumps(value) for key, value in facts.items()}
    )
    return model
