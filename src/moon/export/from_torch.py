"""Networks in PyTorch's own formats, for those who stay in PyTorch, and ONNX for operators that our runtime lacks."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from moon.evidence import classifier_name
from moon.evidence.outputs import Recording
from moon.suggest import first_line

if TYPE_CHECKING:
    from onnx import ModelProto

_OPSET, _IR = 18, 8  # the oldest opset that PyTorch writes without converting it


def torch_program(model: nn.Module, shape: tuple[int, ...]) -> ExportedProgram:
    """Trace a network in evaluation mode with `torch.export`, for any number of images of shape (C, H, W).

    Raises a ValueError if it cannot be traced.
    """
    # Two images, because torch.export takes a size of 1 for a constant.
    inputs = (torch.zeros(2, *shape, device=next(model.parameters()).device),)
    try:
        with _quiet():
            return export(model, inputs, dynamic_shapes=({0: Dim("N")},))
    except Exception as error:  # tracing runs the model's own code, which may raise anything
        raise ValueError(f"{type(model).__name__} cannot be traced ({first_line(error)})") from error


def network_to_onnx(model: nn.Module, shape: tuple[int, ...]) -> ModelProto:
    """Translate a network of any operators, in evaluation mode, to ONNX with `torch.onnx`, without a detector.

    The model goes from `images` (normalised, float32, of shape (C, H, W) each) to `logits` and `features`. Raises a
    ValueError if the network cannot be traced or has an operator that ONNX lacks.
    """
    program = torch_program(_LogitsAndFeatures(model).eval(), shape)
    try:
        with _quiet():
            made = torch.onnx.export(
                program,
                input_names=["images"],
                output_names=["logits", "features"],
                opset_version=_OPSET,
                verbose=False,
            )
    except Exception as error:  # many kinds, none of them public
        cause = first_line(error.__cause__ or error)
        raise ValueError(f"{type(model).__name__} cannot be translated to ONNX ({cause})") from error
    assert made is not None
    result = made.model_proto
    result.ir_version = _IR
    return result


class _LogitsAndFeatures(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self._classifier = model, classifier_name(model)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        with Recording(self.model, self._classifier) as recording:
            output = self.model(images)
        return recording.logits(output), recording.features[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """Context without PyTorch's warnings about its own code and about torchvision, which is not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`isinstance.treespec, LeafSpec.", FutureWarning)
            yield
    finally:
        logger.setLevel(level)
