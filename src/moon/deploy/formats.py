"""Write trained networks in formats of others: ONNX, a program of `torch.export`, a plain state_dict.

Each function checks what it is about to write and returns a sentence that says how.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moon.errors import DataError
from moon.files import check_output, write_atomic
from moon.suggest import first_line

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch import nn

_IMAGES = 64  # random images to compare on
_TOLERANCE = 1e-4


def write_onnx(source: Path | str, path: Path | str, pixels: str = "uint8") -> str:
    """Write the content of a `.moon` file as an ONNX model, from pixels to class, probability, score and verdict.

    Nothing is written if a check fails: the ONNX checker and, if they are installed, ONNX Runtime and a comparison with
    moon_runtime. `pixels` is "uint8" for images (N, H, W, C) of 0 to 255, or "float" for images (N, C, H, W) of 0 to 1.
    A DataError if the source has no detector or cannot be expressed.
    """
    from moon.export.onnx import to_onnx
    from moon.export.reading import read_file

    description, tensors = read_file(source)
    try:
        model = to_onnx(description, tensors, pixels)
        _check(model)
    except DataError as error:
        raise DataError(f"{source}: {error}") from error
    channels, rows, columns = description["input"]
    images = np.random.default_rng(0).integers(0, 256, (_IMAGES, rows, columns, channels), np.uint8)
    fed = images if pixels == "uint8" else images.transpose(0, 3, 1, 2).astype(np.float32) / 255
    if find_spec("onnxruntime") is None:
        checked = "accepted by the ONNX checker; not run, because onnxruntime is not installed"
    else:
        found = _run(model, {"pixels": fed})
        checked = "accepted by the ONNX checker, runs in ONNX Runtime"
        if find_spec("moon_runtime") is None:
            checked += "; not compared with moon_runtime, which is not installed"
        else:
            answers = import_module("moon_runtime").load(source)(images)
            ranks = any(op["op"] == "rank" for op in description["detector"]["program"])
            checked += f", {compared(found, answers, tensors['calibration'], ranks)}"
    _write(path, model.SerializeToString())
    return checked


def write_network_onnx(folder: Path | str, path: Path | str) -> str:
    """Write the network of a run as an ONNX model of normalised images, with logits and features and no detector.

    PyTorch translates it, so that it may have operators that our runtime lacks.
    """
    import torch
    from onnx import helper

    from moon.export.onnx import network_to_onnx

    model, facts = _trained(folder)
    made = network_to_onnx(model, facts["input"])
    helper.set_model_props(made, {key: json.dumps(value) for key, value in facts.items()})
    _check(made)
    checked = "accepted by the ONNX checker; not run, because onnxruntime is not installed"
    if find_spec("onnxruntime") is not None:
        images = np.random.default_rng(0).normal(size=(3, *facts["input"])).astype(np.float32)
        with torch.no_grad():
            expected = model(torch.from_numpy(images)).numpy()
        difference = _largest_difference(_run(made, {"images": images})["logits"], expected)
        checked = f"accepted by the ONNX checker, logits in ONNX Runtime within {difference:.0e} of PyTorch's"
    _write(path, made.SerializeToString())
    return checked


def write_torch(folder: Path | str, path: Path | str) -> str:
    """Write the network of a run as a program of `torch.export`, which `torch.export.load` reads without `moon`.

    Class names and preprocessing are in its extra file "moon.json".
    """
    import torch

    from moon.export.from_torch import torch_program

    model, facts = _trained(folder)
    file = BytesIO()
    torch.export.save(torch_program(model, facts["input"]), file, extra_files={"moon.json": json.dumps(facts)})
    file.seek(0)
    images = torch.randn(3, *facts["input"], generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, expected = torch.export.load(file).module()(images), model(images)
    difference = _largest_difference(found.numpy(), expected.numpy())
    _write(path, file.getvalue())
    return f"read again, logits within {difference:.0e}"


def write_state_dict(folder: Path | str, path: Path | str) -> str:
    """Write the weights of a run as dense tensors with the network's own names, in a safetensors file.

    Class names and preprocessing are in its metadata.
    """
    from safetensors.torch import save

    from moon.export.file import in_order

    model, facts = _trained(folder)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    zeros = sum(int((weight == 0).sum()) for weight in weights) / sum(weight.numel() for weight in weights)
    _write(path, in_order(save(state, {key: json.dumps(value) for key, value in facts.items()})))
    return f"{len(state)} dense tensors; {zeros:.1%} of the weights are zero, which are the masks"


def compared(found: Mapping[str, NDArray], answers: Any, calibration: NDArray, ranks: bool = False) -> str:
    """Compare the outputs of an ONNX model with moon_runtime's; a ValueError if they differ by more than rounding.

    If the detector `ranks` scores, a score moves by a step where one of these is passed: one image in 32 may.
    """
    mine, theirs = found["score"], np.asarray(answers.score)
    error = np.abs(mine - theirs) / np.maximum(1, np.abs(theirs))
    error[np.isnan(mine) & np.isnan(theirs)] = 0
    close = error <= _TOLERANCE
    differs = [] if close.mean() >= (31 / 32 if ranks else 1) else ["score"]
    # A p-value and a verdict may differ only where the score lies next to a score of the calibration.
    clear = close & (np.abs(calibration - theirs[:, None]) > _TOLERANCE * np.maximum(1, np.abs(theirs[:, None]))).all(1)
    differs += ["label"] * bool((found["label"] != answers.label).any())
    differs += ["probability"] * bool((np.abs(found["probability"] - answers.probability) > _TOLERANCE).any())
    differs += ["known"] * bool((found["known"] != answers.is_known)[clear].any())
    differs += ["p_value"] * bool((np.abs(found["p_value"] - answers.p_value) > 1e-9)[clear].any())
    if differs:
        raise ValueError(
            f"ONNX Runtime and moon_runtime disagree on random images ({', '.join(differs)}); nothing was written"
        )
    largest = error[close].max()
    return f"agrees with moon_runtime on {len(mine)} random images (scores within {max(largest, 1e-15):.0e})"


def _trained(folder: Path | str) -> tuple[nn.Module, dict[str, Any]]:
    """The network of a finished run, and what its users must know."""
    from moon.deploy.packed import preprocessing
    from moon.run.folder import class_names, load, trained_on

    model, benchmark = load(folder), trained_on(folder)
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()  # convolutions are stored with the channels last
    facts = {
        "input": benchmark.input_shape,
        "preprocess": preprocessing(benchmark),
        "classes": list(class_names(folder, benchmark.num_known)),
    }
    return model, facts


def _check(model: ModelProto) -> None:
    from onnx import checker, shape_inference

    try:
        checker.check_model(model, full_check=True)
    except (checker.ValidationError, shape_inference.InferenceError) as error:
        raise DataError(f"the ONNX checker rejects it ({first_line(error)})") from error


def _run(model: ModelProto, inputs: dict[str, NDArray]) -> dict[str, NDArray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns that the threshold is an input with a default, which is intended
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    # Versions 1.17 and 1.18 plan their memory after the first run, and with some graphs later runs are then wrong.
    first, second = ([np.array(value) for value in session.run(names, inputs)] for _ in range(2))
    if not all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(first, second, strict=True)):
        raise ValueError(
            f"ONNX Runtime {onnxruntime.__version__} gives other answers when the model runs again; install version "
            "1.19.2 or later; nothing was written"
        )
    return dict(zip(names, second, strict=True))


def _largest_difference(found: NDArray, expected: NDArray) -> float:
    difference = float(np.abs(found - expected).max())
    if not difference <= _TOLERANCE * max(1.0, float(np.abs(expected).max())):
        raise ValueError(f"the logits of the written network differ by {difference:.2g}; nothing was written")
    return max(difference, 1e-9)


def _write(path: Path | str, content: bytes) -> None:
    check_output(path := Path(path))
    write_atomic(path, lambda partial: partial.write_bytes(content))
