"""Networks as programs of `torch.export`, for those who stay in PyTorch and on the way to ONNX."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from moon.suggest import first_line


def torch_program(model: nn.Module, shape: tuple[int, ...]) -> ExportedProgram:
    """Trace a network in evaluation mode with `torch.export`, for any number of images of shape (C, H, W).

    Raises a ValueError if it cannot be traced.
    """
    try:
        # Two images, because torch.export takes a size of 1 for a constant.
        return traced(model, torch.zeros(2, *shape, device=next(model.parameters()).device))
    except Exception as error:  # tracing runs the model's own code, which may raise anything
        raise ValueError(f"{type(model).__name__} cannot be traced ({first_line(error)})") from error


def traced(module: nn.Module, *inputs: Tensor, is_dynamic: bool = True) -> ExportedProgram:
    """Trace a module for any number of rows of its first input, or for exactly as many."""
    shapes = ({0: Dim("N")}, *[None] * (len(inputs) - 1)) if is_dynamic else None
    with quiet():
        return export(module, inputs, dynamic_shapes=shapes)


@contextmanager
def quiet() -> Iterator[None]:
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
