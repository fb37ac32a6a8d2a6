import json
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from moon.export.file import write_network
from moon.export.graph import Graph

onnx = pytest.importorskip("onnx")

DESCRIPTION = {
    "preprocess": {"mean": [0.5], "std": [0.25], "resize": "cover"},
    "classes": ["no", "yes"],
    "temperature": 1.0,
    "detector": {"name": "mls", "options": {}, "program": [{"op": "amax", "in": [0], "out": 2}], "output": 2},
    "threshold": {"accept": 0.5, "confidence": None, "per_class": False},
}
TENSORS = {"threshold": np.array([0.0]), "calibration": np.array([-1.0, 0.0, 1.0])}


def pack(path, description=DESCRIPTION, ops=()):
    """Write a file whose network is one Linear layer of 2x2 pixels."""
    ops = [
        *ops,
        {"op": "flatten", "in": [0], "out": 8},
        {"op": "linear", "in": [8], "out": 9, "weight": "fc", "act": None},
    ]
    graph = Graph((1, 2, 2), ops, {"fc": torch.tensor([[1.0, 0, 0, 0], [0, 1, 1, 1]])}, features=8, logits=9)
    write_network(path, graph, description, "float32", TENSORS)


@pytest.fixture
def runtime(monkeypatch):
    """A function that installs a moon_runtime with the scores of a function of the pixels; None removes it."""

    def install(score):
        fake = ModuleType("moon_runtime")
        fake.__spec__ = ModuleSpec("moon_runtime", None)

        def answer(images):
            x = ((images.reshape(len(images), 4) / 255 - 0.5) / 0.25).astype(np.float32)
            logits = np.stack([x[:, 0], x[:, 1:].sum(1)], 1)
            top, each = logits.max(1), np.exp(logits)
            p_value = (1 + (top[:, None] >= TENSORS["calibration"]).sum(1)) / 4
            return SimpleNamespace(
                label=logits.argmax(1), probability=np.exp(top) / each.sum(1), score=score(top), p_value=p_value,
                is_known=top >= 0,
            )  # fmt: skip

        fake.load = lambda path: answer
        monkeypatch.setitem(sys.modules, "moon_runtime", fake)

    return install


@pytest.fixture
def no_package(monkeypatch):
    """A function after whose call packages cannot be found."""
    from moon.cli import export
    from moon.deploy import formats

    def hide(*names):
        for module in (export, formats):
            monkeypatch.setattr(module, "find_spec", lambda name: None if name in names else find_spec(name))

    return hide


def test_a_file_becomes_onnx_and_is_compared(moon, runtime):
    pytest.importorskip("onnxruntime")
    runtime(lambda score: score)
    pack("a.moon")
    code, out, err = moon("export", "a.moon", "--onnx", "a.onnx")
    assert (code, err) == (0, "")
    assert "a.onnx: 0.00 MB; accepted by the ONNX checker, runs in ONNX Runtime, agrees with moon_runtime on 64 " in out
    model = onnx.load("a.onnx")
    shape = [side.dim_param or side.dim_value for side in model.graph.input[0].type.tensor_type.shape.dim]
    assert shape == ["N", 2, 2, 1]
    code, *_ = moon("export", "a.moon", "--onnx", "b.onnx", "--pixels", "float")
    assert code == 0
    assert onnx.load("b.onnx").graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def test_nothing_is_written_if_the_runtimes_disagree(moon, runtime, tmp_path):
    pytest.importorskip("onnxruntime")
    runtime(lambda score: score + 1)
    pack("a.moon")
    code, _, err = moon("export", "a.moon", "--onnx", "a.onnx")
    assert code == 2
    assert err.startswith("moon export: ONNX Runtime and moon_runtime disagree on random images (score")
    assert not (tmp_path / "a.onnx").exists()


def test_what_was_not_checked_is_said(moon, no_package):
    pack("a.moon")
    pytest.importorskip("onnxruntime")
    no_package("moon_runtime")
    _, out, _ = moon("export", "a.moon", "--onnx", "a.onnx")
    assert out.endswith("runs in ONNX Runtime; not compared with moon_runtime, which is not installed\n")
    no_package("onnxruntime")
    _, out, _ = moon("export", "a.moon", "--onnx", "a.onnx")
    assert out.endswith("accepted by the ONNX checker; not run, because onnxruntime is not installed\n")


def test_onnx_is_named_if_it_is_missing(moon, no_package):
    pack("a.moon")
    no_package("onnx")
    assert moon("export", "a.moon", "--onnx", "a.onnx") == (2, "", "moon export: --onnx needs onnx; pip install onnx\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["a.moon"], 2, "nothing to write; give --onnx, --torch or --state-dict"),
        (["a.moon", "--torch", "b"], 2, "a.moon: is a file; --torch needs the folder of a run"),
        (["gone.moon", "--onnx", "b"], 3, "gone.moon: no such file or folder"),
        (["begun", "--onnx", "b"], 2, "begun: the run is not finished; start it again with the same command"),
        (["foreign.moon", "--onnx", "b"], 3, "foreign.moon: is not a .moon file; `moon pack` writes one"),
        (["short.moon", "--onnx", "b"], 4,
         "short.moon: is damaged or incomplete; copy it again, or write it again with `moon pack`"),
        (["plain.moon", "--onnx", "b"], 3, "plain.moon: the file has no detector; write it with `moon pack`"),
        (["odd.moon", "--onnx", "b"], 3,
         "odd.moon: the file cannot be exported: operation 0 (fft): is not supported"),
        (["begun", "--onnx", "b", "--torch", "gone/b"], 2, "gone: there is no such folder; create it first"),
        (["a.moon", "--onnx", "a.moon"], 2, "a.moon: is also the source; choose another file (--onnx)"),
        (["begun", "--onnx", "b", "--torch", "begun/../b"], 2,
         "begun/../b: is also --onnx; choose another file (--torch)"),
        (["a.moon", "--onnx", "/dev/zero"], 2,
         "/dev/zero: is not a regular file, and would be replaced by one; choose another file (--onnx)"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(moon, tmp_path, data_root, arguments, code, message):
    from moon.recipe import make_recipe

    pack("a.moon")
    pack("plain.moon", {})
    pack("odd.moon", ops=[{"op": "fft", "in": [0], "out": 1}])
    (tmp_path / "foreign.moon").write_bytes(b"\x89PNG not a file of ours")
    (tmp_path / "short.moon").write_bytes((tmp_path / "a.moon").read_bytes()[:-10])
    for name in ("empty", "begun"):
        (tmp_path / name).mkdir()
    (tmp_path / "begun" / "recipe.json").write_text(json.dumps(make_recipe("mnist", root=data_root).to_json()))
    assert moon("export", *arguments) == (code, "", f"moon export: {message}\n")
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
def test_a_run_is_packed_first(moon):
    pytest.importorskip("moon_runtime")
    pytest.importorskip("onnxruntime")
    moon("train", "digits", "--epochs", "1", "--topology", "static", "--sparsity", "0.9", "--out", "run")
    code, out, err = moon("export", "run", "--onnx", "a.onnx")
    assert code == 0, err
    assert err.count("\n") == err.count('so "unknown" is not reliable') <= 1  # after one epoch
    assert "accepted by the ONNX checker, runs in ONNX Runtime, agrees with moon_runtime on 64 random images" in out
    facts = {entry.key: entry.value for entry in onnx.load("a.onnx").metadata_props}
    assert (facts["detector"], facts["accept"]) == ("layers", "0.95")


@pytest.mark.slow
def test_a_run_in_the_formats_of_pytorch_needs_no_data(moon, monkeypatch, trained_runs):
    folder = trained_runs(topology="static", sparsity=0.5, epochs=3, options={"quiet_epochs": 1})
    monkeypatch.setenv("MOON_DATA", "nowhere")
    code, out, err = moon("export", str(folder), "--torch", "a.pt2", "--state-dict", "a.safetensors")
    assert (code, err) == (0, "")
    first, second = out.splitlines()
    assert first.startswith("a.pt2: 0.31 MB; read again, logits within")
    assert second.startswith("a.safetensors: 0.25 MB; 25 dense tensors; 50.")
    assert second.endswith("% of the weights are zero, which are the masks")
