"""Files of other formats are checked before they are written."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from moon import load
from moon.deploy import formats
from moon.deploy.formats import compared, write_network_onnx, write_state_dict, write_torch

CALIBRATION = np.array([0.1, 0.5, 0.9])


def outputs(**changes):
    found = {
        "label": np.arange(64) % 3,
        "probability": np.full(64, 0.8, np.float32),
        "score": np.linspace(0.2, 0.4, 64),
        "known": np.full(64, True),
        "p_value": np.full(64, 0.5),
    }
    return found | changes


def answers(**changes):
    found = outputs(**changes)
    return SimpleNamespace(is_known=found.pop("known"), **found)


def test_equal_answers_agree():
    text = compared(outputs(), answers(score=outputs()["score"] + 3e-7), CALIBRATION)
    assert text == "agrees with moon_runtime on 64 random images (scores within 3e-07)"


@pytest.mark.parametrize("name", ["label", "probability", "score", "known", "p_value"])
def test_different_answers_are_an_error(name):
    other = outputs()[name].copy()
    other[-5:] = ~other[-5:] if name == "known" else other[-5:] + 1
    with pytest.raises(ValueError, match=rf"disagree on random images \({name}\); nothing was written"):
        compared(outputs(), answers(**{name: other}), CALIBRATION)


def test_one_score_in_32_may_differ_if_the_detector_ranks():
    scores = outputs()["score"].copy()
    scores[:2] += 0.01
    assert "agrees" in compared(outputs(), answers(score=scores), CALIBRATION, ranks=True)
    with pytest.raises(ValueError, match=r"\(score\)"):
        compared(outputs(), answers(score=scores), CALIBRATION)
    scores[2] += 0.01
    with pytest.raises(ValueError, match=r"\(score\)"):
        compared(outputs(), answers(score=scores), CALIBRATION, ranks=True)


def test_next_to_a_calibration_score_the_p_value_and_the_verdict_may_differ():
    near = outputs(score=np.full(64, 0.5 + 1e-6))
    theirs = answers(score=np.full(64, 0.5 - 1e-6), p_value=np.full(64, 0.75), known=np.full(64, False))
    assert "agrees" in compared(near, theirs, CALIBRATION)


def test_nan_agrees_with_nan():
    scores = outputs()["score"].copy()
    scores[0] = np.nan
    assert "agrees" in compared(outputs(score=scores), answers(score=scores), CALIBRATION)
    with pytest.raises(ValueError, match="score"):
        compared(outputs(score=np.full(64, np.nan)), answers(), CALIBRATION)


def test_a_runtime_whose_second_answer_differs_is_refused(monkeypatch):
    onnxruntime, onnx = pytest.importorskip("onnxruntime"), pytest.importorskip("onnx")
    answers = iter([[np.zeros(3)], [np.ones(3)]])

    class Session:
        def __init__(self, *_, **__):
            pass

        def get_outputs(self):
            return [SimpleNamespace(name="score")]

        def run(self, names, inputs):
            return next(answers)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    with pytest.raises(ValueError, match=r"gives other answers when the model runs again; install version 1\.19\.2"):
        formats._run(onnx.ModelProto(), {})


@pytest.fixture(scope="module")
def run_folder(trained_runs):
    return trained_runs(topology="static", sparsity=0.5, epochs=3, options={"quiet_epochs": 1})


def test_a_state_dict_has_the_names_of_the_network(tmp_path, run_folder):
    text = write_state_dict(run_folder, tmp_path / "a.safetensors")
    state, model = load_file(tmp_path / "a.safetensors"), load(run_folder)
    model.load_state_dict(state)
    assert state.keys() == model.state_dict().keys()
    assert text.endswith("% of the weights are zero, which are the masks")
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert json.loads(file.metadata()["input"]) == [1, 28, 28]
        assert json.loads(file.metadata()["classes"]) == list("0123456789")
        preprocess = json.loads(file.metadata()["preprocess"])
        assert preprocess == {"mean": [0.5], "std": [0.5], "resize": "cover", "shorter_side": 28}
    for _ in range(9):  # of the same run, always the same file
        write_state_dict(run_folder, tmp_path / "b.safetensors")
        assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "a.safetensors").read_bytes()


@pytest.mark.slow
def test_a_program_of_torch_is_loaded_without_moon(tmp_path, run_folder):
    text = write_torch(run_folder, tmp_path / "a.pt2")
    extra = {"moon.json": ""}
    program = torch.export.load(str(tmp_path / "a.pt2"), extra_files=extra).module()
    images = torch.randn(5, 1, 28, 28)
    with torch.no_grad():
        assert torch.allclose(program(images), load(run_folder)(images), atol=1e-5)
    assert json.loads(extra["moon.json"])["input"] == [1, 28, 28]
    assert text.startswith("read again, logits within")


@pytest.mark.slow
def test_a_network_alone_as_onnx(tmp_path, run_folder):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    text = write_network_onnx(run_folder, tmp_path / "a.onnx")
    assert text.startswith("accepted by the ONNX checker, logits in ONNX Runtime within")
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])
    images = torch.randn(5, 1, 28, 28)
    logits, features = session.run(["logits", "features"], {"images": images.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(logits, load(run_folder)(images).numpy(), atol=1e-4)
    assert features.shape == (5, 84)
