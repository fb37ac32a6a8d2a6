"""ONNX models, written by `torch.onnx`: of the content of a `.moon` file, and of a network without a detector."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from onnx import ModelProto, helper, numpy_helper
from torch import Tensor, nn

from moon import __version__
from moon.errors import DataError
from moon.evidence import classifier_name
from moon.evidence.outputs import Recording
from moon.export.content import answer
from moon.export.from_torch import quiet, traced
from moon.suggest import first_line

_OPSET, _IR = 18, 8  # the oldest opset that PyTorch writes without converting it
PIXELS = ("uint8", "float")
_OUTPUTS = {
    "label": "the most likely known class, a position in the list of classes",
    "probability": "the calibrated probability of this class",
    "score": "how known the image is, by the detector; higher is more known",
    "known": "whether the score reaches the threshold",
    "p_value": "the share of known images with a score no higher than this one",
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
        images = torch.zeros(2, *description["input"])
        if pixels == "uint8":
            images = images.permute(0, 2, 3, 1).byte()

        def answered(images: Tensor, threshold: Tensor) -> list[Tensor]:
            images = images.permute(0, 3, 1, 2).float() / 255 if pixels == "uint8" else images
            answers = answer(description, tensors, images, threshold)
            return [answers[name] for name in _OUTPUTS]

        inputs = {"pixels": images, "threshold": torch.from_numpy(tensors["threshold"])}
        model = translated(answered, inputs, _OUTPUTS)
    except Exception as error:  # many kinds, where an operation or a tensor does not fit
        cause = first_line(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {first_line(error)}"
        raise DataError(f"the file cannot be exported: {cause}") from error
    model.graph.initializer.append(numpy_helper.from_array(tensors["threshold"], "threshold"))  # the default
    images_are = "images, 0 to 255" if pixels == "uint8" else "images, 0 to 1, not normalised"
    texts = {"pixels": images_are, "threshold": "the least score of a known image", **_OUTPUTS}
    for value in (*model.graph.input, *model.graph.output):
        value.doc_string = texts[value.name]
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


def network_to_onnx(model: nn.Module, shape: tuple[int, ...]) -> ModelProto:
    """Translate a network of any operators, in evaluation mode, to ONNX, without a detector.

    The model goes from `images` (normalised, float32, of shape (C, H, W) each) to `logits` and `features`. Raises a
    ValueError if the network cannot be traced or has an operator that ONNX lacks.
    """

    def compute(images: Tensor) -> tuple[Tensor, Tensor]:
        with Recording(model, classifier_name(model)) as recording:
            output = model(images)
        return recording.logits(output), recording.features[0]

    try:
        return translated(compute, {"images": torch.zeros(2, *shape)}, ["logits", "features"], model)
    except Exception as error:  # tracing runs the model's own code; the errors of torch.onnx are not public
        cause = first_line(error.__cause__ or error)
        raise ValueError(f"{type(model).__name__} cannot be translated to ONNX ({cause})") from error


def translated(
    function: Callable[..., Any],
    inputs: Mapping[str, Tensor],
    outputs: Iterable[str],
    model: nn.Module | None = None,
    is_dynamic: bool = True,
) -> ModelProto:
    """A function of tensors as an ONNX model, for any number of rows of its first input, or for exactly as many.

    Weights of a `model` that it calls keep their names.
    """
    with quiet():
        made = torch.onnx.export(
            traced(_Module(function, model), *inputs.values(), is_dynamic=is_dynamic),
            input_names=list(inputs),
            output_names=list(outputs),
            opset_version=_OPSET,
            verbose=False,
        )
    assert made is not None
    result = made.model_proto
    result.ir_version, result.producer_name, result.producer_version = _IR, "moon", __version__
    graph = result.graph
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]  # stack traces with paths of this machine
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        for side in value.type.tensor_type.shape.dim:
            if side.dim_param:  # the only one; torch.export invents a name
                side.dim_param = "N"
    return result


class _Module(nn.Module):
    def __init__(self, function: Callable[..., Any], model: nn.Module | None) -> None:
        super().__init__()
        self.forward, self.model = function, model
