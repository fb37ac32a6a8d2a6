"""From pixels to a class or "unknown"."""

from __future__ import annotations

import locale
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from detectors import THRESHOLD, classifier, normalised
from files import pack, with_text
from moon_runtime import Answer, Classifier, Network, NetworkError, load

MAXIMUM = [{"op": "amax", "in": [0], "out": 2}]
LOG = [{"op": "slice", "in": [0], "start": 0, "end": 1, "out": 2}, {"op": "log", "in": [2], "out": 3}]


def pixels(*rows: list[int]) -> np.ndarray:
    """Images of one pixel with 4 channels; 0, 64, 128, 191, 255 are about -2, -1, 0, 1, 2."""
    return np.array(rows, np.uint8)[:, None, None, :]


def test_an_answer_in_numbers() -> None:
    file = classifier(MAXIMUM, temperature=2.0)
    answers = load(file)(pixels([0, 255, 51, 9], [0, 0, 51, 255]))
    assert answers.label.tolist() == [1, 2]
    logits = np.array([[-2, 2, -1.2], [-2, -2, -1.2]]) / 2
    expected = np.exp(logits).max(1) / np.exp(logits).sum(1)
    np.testing.assert_allclose(answers.probability, expected, rtol=1e-6)
    np.testing.assert_allclose(answers.score, [2, -1.2], rtol=1e-6)
    assert answers.p_value.tolist() == [1.0, 0.2]  # 4 calibration scores: -1, 0, 0, 2
    assert answers.is_known.tolist() == [True, False]
    assert answers.names == ["class 1", "class 2"]
    assert answers.verdicts == ["class 1", "unknown"]


def test_answers_are_a_sequence() -> None:
    answers = load(classifier(MAXIMUM, classes=["cat", "dog", "a\x1b[31m"]))(
        pixels(*[[i, 255 - i, 128, 0] for i in range(30)])
    )
    assert len(answers) == 30
    assert len(list(answers)) == 30
    assert isinstance(answers[0], Answer)
    assert answers[-1] == answers[29] == list(answers)[29]
    assert answers[0]._asdict() == {
        "name": "dog", "probability": pytest.approx(0.866, abs=1e-4), "p_value": 1.0, "is_known": True,
        "score": pytest.approx(2.0), "verdict": "dog",
    }  # fmt: skip
    assert isinstance(answers[0].is_known, bool)
    assert isinstance(answers[0].probability, float)
    assert answers[3:5].verdicts == answers.verdicts[3:5]
    assert answers[answers.label == 1].names == ["dog"] * 30
    with pytest.raises(IndexError):
        answers[30]
    lines = repr(answers).splitlines()
    assert lines[:2] == ["verdict  class  probability  p-value  score", "dog      dog    0.866        1.0000   2"]
    assert lines[-1] == "... 10 more"
    assert len(lines) == 22
    assert "\x1b" not in repr(load(classifier(MAXIMUM, classes=["cat", "dog", "a\x1b[31m"]))(pixels([0, 0, 255, 0])))


def test_what_a_classifier_says_about_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.moon"
    path.write_bytes(classifier(MAXIMUM, threshold=THRESHOLD | {"confidence": 0.99}, provenance={"by": "test"}))
    model = Classifier(path, threads=2)
    assert (model.accept, model.confidence, model.detector) == (0.95, 0.99, "test")
    assert (model.input_shape, model.classes[1], model.threads) == ((4, 1, 1), "class 1", 2)
    assert model.metadata["provenance"] == {"by": "test"}
    model.threads = 1
    assert model.threads == 1
    assert repr(model) == (
        "Classifier(3 classes ('class 0', 'class 1', 'class 2'), input 1x1x4, detector test, threshold 0 "
        f"(accepts 95% of known images), {path.stat().st_size / 1e3:.3g} kB)"
    )
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load(tmp_path / "b.moon")


def test_the_unknown_output_is_no_class() -> None:
    file = classifier(MAXIMUM, logits=4, classes=["a", "b", "c"])
    answer = load(file)(pixels([0, 128, 0, 255]))[0]
    assert answer.name == "b"
    z = np.exp(normalised(pixels([0, 128, 0, 255]))[0])
    assert answer.probability == pytest.approx(z[1] / z.sum(), rel=1e-5)  # over all outputs
    found = load(file).probabilities(pixels([0, 128, 0, 255]))
    np.testing.assert_allclose(found, [z[:3] / z.sum()], rtol=1e-5)


def test_the_first_of_equal_logits_is_the_class() -> None:
    assert load(classifier(MAXIMUM))(pixels([7, 9, 9, 0], [5, 5, 5, 0], [5, 5, 6, 0])).label.tolist() == [1, 0, 2]


def test_the_threshold_itself_is_known() -> None:
    score = float(normalised(pixels([51, 0, 0, 0])).astype("f")[0, 0])
    for threshold, known in ((score - 1e-6, True), (score + 1e-6, False)):
        file = classifier(MAXIMUM, {"threshold": np.array([threshold])})
        assert load(file)(pixels([51, 0, 0, 0])).is_known.tolist() == [known]
    constant = [{"op": "add", "in": [{"value": 0.1}, {"value": 0.2}], "out": 2}]
    file = classifier(constant, {"threshold": np.array([0.1 + 0.2]), "calibration": np.array([0.1 + 0.2, 1])})
    answer = load(file)(pixels([0, 0, 0, 0]))[0]
    assert answer.is_known
    assert answer.p_value == 2 / 3


def test_a_score_that_is_not_a_number_is_unknown() -> None:
    answers = load(classifier(LOG, {"threshold": np.array([-1e300])}))(pixels([0, 0, 0, 0], [255, 0, 0, 0]))
    assert np.isnan(answers.score[0])
    assert answers.score[1] == pytest.approx(np.log(2))
    assert answers.is_known.tolist() == [False, True]
    assert answers.p_value.tolist() == [0.2, 0.8]
    infinite = [{"op": "add", "in": [2, {"value": "inf"}], "out": 3}]
    assert load(classifier(MAXIMUM + infinite))(pixels([0, 0, 0, 0]))[0][1:5] == (pytest.approx(1 / 3), 1, True, np.inf)


def test_each_class_may_have_its_threshold() -> None:
    tensors = {
        "threshold": np.array([0.0, 1.5, -3.0]),
        "calibration": np.array([-1.0, 1.0, 1.0, 0.0, 5.0]),
        "calibration.counts": np.array([3, 0, 2], "<u4"),
    }
    model = load(classifier(MAXIMUM, tensors, threshold=THRESHOLD | {"per_class": True}))
    answers = model(pixels([140, 0, 0, 0], [255, 0, 0, 0], [0, 191, 0, 0], [0, 255, 0, 0], [0, 0, 64, 0]))
    assert answers.label.tolist() == [0, 0, 1, 1, 2]
    assert answers.is_known.tolist() == [True, True, False, True, True]
    assert answers.p_value.tolist() == [0.5, 1.0, 1.0, 1.0, 1 / 3]


def test_p_values_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (200, 1, 1, 4), dtype=np.uint8)
    scores = normalised(images).astype("f")[:, :3].max(1).astype("f8")
    calibration = np.sort(np.concatenate([rng.choice(scores, 50), rng.standard_normal(20)]))
    answers = load(classifier(MAXIMUM, {"calibration": calibration}))(images)
    expected = (1 + np.searchsorted(calibration, answers.score, side="right")) / (len(calibration) + 1)
    assert np.array_equal(answers.p_value, expected)


def wide(**description: Any) -> bytes:
    """A network of some size: 3 x 64 x 64 to 2 x 2 x 2 features and 2 logits."""
    rng = np.random.default_rng(0)
    graph = [
        {"op": "avg_pool", "in": [0], "out": 1, "kernel": [32, 32]},
        {"op": "conv2d", "in": [1], "out": 2, "weight": "w", "act": "silu"},
        {"op": "flatten", "in": [2], "out": 3},
        {"op": "linear", "in": [3], "out": 4, "weight": "v"},
    ]
    tensors = {"w": rng.standard_normal((2, 3, 1, 1)).astype("f"), "v": rng.standard_normal((2, 8)).astype("f")}
    tensors |= {"threshold": np.zeros(1), "calibration": np.sort(rng.standard_normal(50))}
    program = [{"op": "distances", "in": [1, {"tensor": "bank"}], "out": 2}, {"op": "amin", "in": [2], "out": 3}]
    tensors["bank"] = rng.standard_normal((9, 8)).astype("<f2")
    defaults = {
        "input": [3, 64, 64], "outputs": {"map": 2, "features": 3, "logits": 4}, "classes": ["a", "b"],
        "preprocess": {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.1, 0.2]}, "temperature": 1.5, "threshold": THRESHOLD,
        "detector": {"name": "nearest", "program": program, "output": 3},
    }  # fmt: skip
    return pack(graph, tensors, **(defaults | description))


def test_pixels_are_normalised_by_channel() -> None:
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (2, 64, 64, 3), dtype=np.uint8)
    network = Network(wide())
    values = ((images / 255 - [0.4, 0.5, 0.6]) / [0.2, 0.1, 0.2]).transpose(0, 3, 1, 2)
    outputs = network(values.astype("f"))
    answers = Classifier(wide())(images)
    distances = np.linalg.norm(network.tensor("bank")[None].astype("f8") - outputs["features"][:, None], axis=2)
    np.testing.assert_allclose(answers.score, distances.min(1), rtol=1e-5)
    assert np.array_equal(answers.label, outputs["logits"].argmax(1))


@pytest.mark.usefixtures("instructions")
def test_an_answer_has_the_same_bits_in_every_batch() -> None:
    images = np.random.default_rng(2).integers(0, 256, (210, 64, 64, 3), dtype=np.uint8)  # several parts
    one = Classifier(wide())
    alone = np.concatenate([one(image).score for image in images])
    for threads in (1, 2, 3):
        model = Classifier(wide(), threads)
        for count in (210, *range(1, 65), 95):  # less memory, then more
            assert np.array_equal(model(images[-count:]).score.view("u8"), alone[-count:].view("u8"))


def test_several_python_threads_may_ask() -> None:
    model, images = Classifier(wide(), 2), np.random.default_rng(3).integers(0, 256, (40, 64, 64, 3), dtype=np.uint8)
    expected, found = model(images).score, []
    workers = [threading.Thread(target=lambda: found.append(model(images).score)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 4
    assert all(np.array_equal(scores, expected) for scores in found)


@pytest.mark.parametrize("shape", [(0, 1, 1, 4), (0, 7, 5, 4), (0, 9, 9, 1)])
def test_no_images_no_answers(shape: tuple[int, ...]) -> None:
    answers = load(classifier(MAXIMUM))(np.zeros(shape, np.uint8))
    assert len(answers) == 0
    assert answers.names == []
    assert repr(answers).startswith("verdict")
    assert len(load(classifier(MAXIMUM))([])) == 0


def test_a_network_without_a_detector_does_not_answer() -> None:
    file = pack(
        [{"op": "act", "in": [0], "out": 1, "act": "relu"}], {}, input=[1, 1, 1], outputs={"logits": 1}, classes=["a"]
    )
    assert Network(file).metadata["classes"] == ["a"]
    with pytest.raises(NetworkError, match='no "detector" and "threshold"'):
        load(file)


def test_predict_wants_bytes_of_the_right_shape() -> None:
    network = Network(classifier(MAXIMUM))
    with pytest.raises(ValueError, match=r"pixels must be uint8 with the shape \(images, 1, 1, 4\), not float64"):
        network.predict(np.zeros((1, 1, 1, 4)))
    with pytest.raises(ValueError, match=r"not uint8 with \(1, 4, 1, 1\)"):
        network.predict(np.zeros((1, 4, 1, 1), np.uint8))


def test_numbers_are_read_in_every_locale() -> None:
    for name in ("de_DE.UTF-8", "fr_FR.UTF-8", "de_DE"):
        try:
            locale.setlocale(locale.LC_NUMERIC, name)
        except locale.Error:
            continue
        try:
            test_an_answer_in_numbers()
            return
        finally:
            locale.setlocale(locale.LC_NUMERIC, "C")
    pytest.skip("no locale with a decimal comma")


@pytest.mark.parametrize("text", ["0.1", "-2.5e-3", "1E+2", "123456789012345678901234567890", "4e-320", "0", "-0.0"])
def test_numbers_have_their_exact_value(text: str) -> None:
    file = classifier([{"op": "add", "in": [{"value": 12321}, {"value": -0.0}], "out": 2}])
    assert load(with_text(file, "12321", text))(pixels([0, 0, 0, 0])).score.tolist() == [float(text)]


def test_memory_of_vectors_is_used_again() -> None:
    """A long chain of operations on long vectors: each needs two of them, not all."""
    chain: list[dict[str, Any]] = [{"op": "scatter", "in": [0, {"value": 1}], "size": 2**20, "out": 2}]
    chain += [{"op": "add", "in": [i, {"value": 1}], "out": i + 1} for i in range(2, 42)]
    chain += [{"op": "mean", "in": [42], "out": 43}]
    assert load(classifier(chain))(pixels([0, 0, 0, 0])).score == [40]
