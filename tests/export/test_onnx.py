"""ONNX models compute what PyTorch computes: every operator, every detector, the answers and the verdicts."""

import copy
import json
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")

from moon import Evidence, TemperatureScaling  # noqa: E402
from moon.deploy.formats import compared  # noqa: E402
from moon.detect import DETECTORS  # noqa: E402
from moon.errors import DataError  # noqa: E402
from moon.export.content import run_network, run_program  # noqa: E402
from moon.export.file import write_network  # noqa: E402
from moon.export.graph import Graph  # noqa: E402
from moon.export.onnx import to_onnx, translated  # noqa: E402
from moon.export.program import trace_detector  # noqa: E402
from moon.export.reading import read_file  # noqa: E402
from moon.export.tracing import trace  # noqa: E402

MSP = {"name": "msp", "options": {}, "output": 3}
MSP["program"] = [{"op": "softmax", "in": [0], "out": 2}, {"op": "amax", "in": [2], "out": 3}]


def described(
    graph, classes, detector=MSP, calibration=(0.1, 0.2, 0.2, 0.9), threshold=(0.2,), mean=0.0, std=1.0, **more
):
    """The description and the tensors of a file."""
    description = {
        "format": 1,
        "input": list(graph.input),
        "graph": graph.ops,
        "outputs": {"features": graph.features, "logits": graph.logits},
        "preprocess": {"mean": [mean] * graph.input[0], "std": [std] * graph.input[0], "resize": "cover"},
        "classes": [f"class {k}" for k in range(classes)],
        "temperature": 1.0,
        "detector": detector,
        "threshold": {"accept": 0.95, "confidence": None, "per_class": False},
        "provenance": {"accuracy": 0.5},
    }
    tensors = {name: tensor.numpy() for name, tensor in graph.weights.items()}
    tensors |= {"threshold": np.array(threshold), "calibration": np.array(calibration)}
    return description | more, tensors


def run(model, feed, outputs=None):
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = outputs or [output.name for output in session.get_outputs()]
    session.run(names, feed)  # memory is planned after the first run, so the answers of a later one are checked
    return dict(zip(names, session.run(names, feed), strict=True))


def logits_in_onnx(graph, images):
    """The logits of normalised images."""
    content, tensors = described(graph, 2)
    model = translated(
        lambda x: run_network(content, tensors, x)[0], {"images": torch.zeros(2, *graph.input)}, ["logits"]
    )
    return run(model, {"images": images})["logits"]


class Everything(nn.Module):
    """One of each operator."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.SiLU())
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8)
        self.squeeze, self.excite = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.grouped = nn.Conv2d(16, 6, (3, 1), padding=(1, 0), groups=2)
        self.hidden, self.fc = nn.Linear(6 * 4 * 4, 7), nn.Linear(7, 5)

    def forward(self, x):
        x = self.stem(x)
        y = F.hardswish(self.depthwise(F.relu(self.norm(x))))
        y = y * F.hardsigmoid(self.excite(F.relu6(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        x = torch.cat([x + y, F.gelu(F.max_pool2d(x, 3, 1, 1))], 1)
        x = torch.sigmoid(F.avg_pool2d(self.grouped(x), 3, stride=2, padding=1))
        return self.fc(F.relu(self.hidden(x.flatten(1))).softmax(1))


@pytest.mark.slow
def test_every_operator():
    model = Everything().eval()
    with torch.no_grad():
        for norm in (model.stem[1], model.norm):
            for part in (norm.weight, norm.bias, norm.running_mean):
                part.normal_()
        images = torch.randn(3, 3, 16, 16)
        expected = model(images).numpy()
    found = logits_in_onnx(trace(model, (3, 16, 16)), images.numpy())
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
def test_pooling_of_odd_sizes_as_in_pytorch():
    x, ops, expected = torch.rand(2, 2, 8, 7), [], []
    for kernel, stride, padding in [(3, 2, 1), (3, 2, 0), (2, 2, 0), (2, 3, 1), (3, 3, 1)]:
        for ceil_mode in (False, True):
            op = {"in": [0], "kernel": [kernel] * 2, "stride": [stride] * 2, "padding": [padding] * 2}
            op["ceil_mode"] = ceil_mode
            ops.append({"op": "max_pool", **op})
            expected.append(F.max_pool2d(x, kernel, stride, padding, ceil_mode=ceil_mode))
            for counted in (True, False):
                ops.append({"op": "avg_pool", **op, "count_include_pad": counted})
                expected.append(F.avg_pool2d(x, kernel, stride, padding, ceil_mode, counted))
    numbers = range(1, len(ops) + 1)
    ops = [op | {"out": number} for number, op in zip(numbers, ops, strict=True)]
    ops += [{"op": "flatten", "in": [number], "out": number + len(numbers)} for number in numbers]
    ops.append({"op": "concat", "in": [op["out"] for op in ops[len(numbers) :]], "out": 100})
    found = logits_in_onnx(Graph((2, 8, 7), ops, features=1, logits=100), x.numpy())
    np.testing.assert_allclose(found, torch.cat([each.flatten(1) for each in expected], 1), rtol=1e-6)


def linear_graph(classes=2, width=2):
    """Logits = features = the pixels."""
    ops = [{"op": "flatten", "in": [0], "out": 1}, {"op": "linear", "in": [1], "out": 2, "weight": "fc", "bias": None}]
    return Graph((width, 1, 1), ops, {"fc": torch.eye(classes, width)}, features=1, logits=2)


def test_answers_of_literals():
    model = to_onnx(*described(linear_graph(), 2, temperature=2.0), pixels="float")
    pixels = np.array([[2.0, 0.0], [0.0, 0.5], [1.0, 1.0]], np.float32)[:, :, None, None]
    found = run(model, {"pixels": pixels})
    p = 1 / (1 + np.exp(-np.array([2, 0.5, 0.0])))
    assert found["label"].tolist() == [0, 1, 0]  # the first of ties
    assert found["label"].dtype == np.int64
    np.testing.assert_allclose(found["score"], p, rtol=1e-12)
    np.testing.assert_allclose(found["probability"], 1 / (1 + np.exp(-np.array([1, 0.25, 0.0]))), rtol=1e-6)
    assert found["p_value"].tolist() == [4 / 5, 4 / 5, 4 / 5]
    assert found["known"].tolist() == [True, True, True]


def test_the_threshold_is_an_input_with_a_default_and_belongs_to_the_known():
    model = to_onnx(*described(linear_graph(), 2, threshold=[0.5]), pixels="float")
    pixels = np.array([[2.0, 0.0], [1.0, 1.0]], np.float32)[:, :, None, None]
    assert run(model, {"pixels": pixels})["known"].tolist() == [True, True]  # a score of exactly 0.5 is known
    given = run(model, {"pixels": pixels, "threshold": np.array([0.6])})
    assert given["known"].tolist() == [True, False]


def test_nan_is_unknown():
    model = to_onnx(*described(linear_graph(), 2), pixels="float")
    pixels = np.array([[np.nan, 0.0]], np.float32)[:, :, None, None]
    found = run(model, {"pixels": pixels})
    assert found["known"].tolist() == [False]
    assert found["p_value"].tolist() == [1 / 5]


def test_the_unknown_output_is_never_the_class():
    model = to_onnx(*described(linear_graph(3, 3), 2), pixels="float")
    found = run(model, {"pixels": np.array([[0.0, 1.0, 5.0]], np.float32)[:, :, None, None]})
    assert found["label"].tolist() == [1]
    np.testing.assert_allclose(found["probability"], np.exp(1) / (1 + np.exp(1) + np.exp(5)), rtol=1e-6)


def test_thresholds_and_p_values_per_class():
    description, tensors = described(linear_graph(), 2, threshold=[0.9, 0.6])
    description["threshold"] |= {"per_class": True}
    tensors |= {"calibration": np.array([0.85, 0.95, 0.5]), "calibration.counts": np.array([2, 1], np.uint32)}
    model = to_onnx(description, tensors, pixels="float")
    found = run(model, {"pixels": np.array([[2.0, 0.0], [0.0, 2.0]], np.float32)[:, :, None, None]})  # scores of 0.88
    assert found["known"].tolist() == [False, True]
    np.testing.assert_allclose(found["p_value"], [2 / 3, 2 / 2])
    given = run(model, {"pixels": np.zeros((1, 2, 1, 1), np.float32), "threshold": np.array([0.1, 1.0])})
    assert given["known"].tolist() == [True]


def test_bytes_and_floats_give_the_same_answers():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 3, 3)).eval()
    content = described(trace(model, (3, 6, 5)), 3, mean=0.4, std=0.3)
    images = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3), np.uint8)
    floats = (images / np.float32(255)).transpose(0, 3, 1, 2)
    by_bytes = run(to_onnx(*content), {"pixels": images})
    by_floats = run(to_onnx(*content, pixels="float"), {"pixels": floats})
    with torch.no_grad():
        expected = model((torch.from_numpy(floats) - 0.4) / 0.3).softmax(1).amax(1)
    for found in (by_bytes, by_floats):
        np.testing.assert_allclose(found["score"], expected, atol=1e-6)
    for count in (1, 0):
        assert len(run(to_onnx(*content), {"pixels": images[:count]})["label"]) == count


def test_what_the_model_says_about_itself():
    model = to_onnx(*described(linear_graph(), 2))
    facts = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(facts["classes"]) == ["class 0", "class 1"]
    assert (facts["detector"], facts["accept"], json.loads(facts["provenance"])) == ("msp", "0.95", {"accuracy": 0.5})
    assert json.loads(facts["per_class"]) is False
    assert json.loads(facts["preprocess"]).keys() >= {"mean", "std"}
    assert (model.ir_version, model.opset_import[0].version) == (8, 18)
    assert [value.name for value in model.graph.input] == ["pixels", "threshold"]
    assert [value.name for value in model.graph.output] == ["label", "probability", "score", "known", "p_value"]


def _changed(change):
    description, tensors = described(linear_graph(), 2)
    description = copy.deepcopy(description)
    change(description, tensors)
    return description, tensors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d, t: d.pop("detector"), "the file has no detector; write it with `moon pack`"),
        (lambda d, t: d["graph"][0].update(op="fft"), r"operation 0 \(fft\): is not supported"),
        (lambda d, t: d["graph"][1].update(act="tanh"), "the activation 'tanh' is not supported"),
        (lambda d, t: d["graph"][1].update(weight="gone"), "'gone' needs a shape"),
        (
            lambda d, t: d["detector"]["program"][0].update(op="fly"),
            r"operation 0 of the detector \(fly\): is not supp",
        ),
        (lambda d, t: d["detector"].update(output=9), "the file cannot be exported: KeyError: 9"),
    ],
)
def test_files_that_do_not_fit_together(change, message):
    with pytest.raises(DataError, match=message):
        to_onnx(*_changed(change))


def test_pixels_of_another_kind():
    with pytest.raises(ValueError, match="pixels must be uint8 or float, not 'int4'"):
        to_onnx(*described(linear_graph(), 2), pixels="int4")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A sparse LeNet for digits with an open head, evidence of its splits, and images that are new to it."""
    from moon import BenchmarkImages, make_recipe, train_run
    from moon.run.folder import load

    images = BenchmarkImages.open("data", "digits")
    recipe = make_recipe("digits", "moon", topology="static", sparsity=0.9, epochs=2)
    folder = tmp_path_factory.mktemp("runs") / recipe.name
    train_run(recipe, folder, images)
    network = load(folder)
    new = {"test": images.splits["test"], "letters": images.unknown["letters"]}
    evidence = {name: images.evidence(network, data, layers=True) for name, data in (images.splits | new).items()}
    pixels = np.concatenate([data.images for data in new.values()])
    return network, images.benchmark, evidence, pixels


def fitted(name, evidence):
    """A fitted detector and its program."""
    detector, splits = DETECTORS[name](), {"train": evidence["train"], "validation": evidence["val"]}
    if detector.fits_on_splits:
        detector.fit(*(splits[split] for split in detector.fits_on_splits))
    return detector, trace_detector(detector, evidence["val"])


@pytest.mark.slow
def test_every_detector_on_a_trained_network(trained):
    _, _, evidence, _ = trained
    new = Evidence.concatenate([evidence["test"], evidence["letters"]])
    made = {name: fitted(name, evidence) for name, kind in DETECTORS.items() if not (kind().reading or kind.layered)}

    tensors = [{key: x.numpy() for key, x in program.tensors.items()} for _, program in made.values()]

    def scores(logits, features, layers):
        given = {False: [logits, features], True: [logits, torch.cat([features, layers], 1)]}
        pairs = zip(made.values(), tensors, strict=True)
        return [run_program(p.ops, x, given[detector.layered])[p.output] for (detector, p), x in pairs]

    inputs = {"logits": new.logits.double(), "features": new.features.double(), "layers": new.layers.double()}
    found = run(translated(scores, inputs, made, is_dynamic=False), {key: x.numpy() for key, x in inputs.items()})
    for name, (detector, _) in made.items():
        expected = detector.score(new).double().numpy()
        close = np.abs(found[name][:, 0] - expected) <= 1e-4 * np.maximum(1, np.abs(expected))
        # The score of Fisher is made of ranks, which change by one where a score is next to another.
        assert close.all() if name != "fisher" else close.mean() > 0.99, name


@pytest.mark.slow
def test_the_answers_of_a_trained_network(trained, tmp_path):
    network, benchmark, evidence, pixels = trained
    validation = evidence["val"]
    detector, program = fitted("fisher", evidence)
    calibration = detector.score(validation).sort().values.double().numpy()
    described_as = {"name": "fisher", "options": {}, "program": program.ops, "output": program.output}
    tensors = {key: tensor.numpy() for key, tensor in program.tensors.items()}
    tensors |= {"calibration": calibration, "threshold": calibration[9:10]}
    graph, scaling = trace(network, (1, 28, 28)), TemperatureScaling().fit(validation)
    description, _ = described(graph, 10, described_as, mean=benchmark.mean[0], std=benchmark.std[0])
    description |= {"temperature": scaling.temperature}
    del description["graph"]  # the file has its own, with sparse weights
    write_network(tmp_path / "a.moon", graph, description, "float32", tensors)
    found = run(to_onnx(*read_file(tmp_path / "a.moon")), {"pixels": pixels})

    new = Evidence.concatenate([evidence["test"], evidence["letters"]])
    expected = detector.score(new).double().numpy()
    tolerance = 1e-4 * np.maximum(1, np.abs(expected))
    close = np.abs(found["score"] - expected) <= tolerance
    assert close.mean() > 0.99  # the score is made of ranks, which change by one where a score is next to another
    assert np.array_equal(found["label"], new.prediction.numpy())
    np.testing.assert_allclose(found["probability"], scaling(new).confidence.numpy(), atol=1e-4)
    # A p value and a verdict may change where the score is next to one of the calibration.
    margin = 2 * np.abs(found["score"] - expected)[close].max()
    clear = close & (np.abs(expected[:, None] - calibration) > margin).all(1)
    ranks = np.searchsorted(calibration, expected, side="right")
    np.testing.assert_allclose(found["p_value"][clear], ((1 + ranks) / (1 + len(calibration)))[clear])
    assert np.array_equal(found["known"][clear], (expected >= calibration[9])[clear])
    assert clear.sum() > 100

    if find_spec("moon_runtime"):
        answers = import_module("moon_runtime").load(tmp_path / "a.moon")(pixels)
        assert compared(found, answers, calibration, ranks=True).startswith("agrees with moon_runtime on 2000")
