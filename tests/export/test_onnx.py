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
onnxruntime = pytest.importorskip("onnxruntime")

from moon import Evidence, TemperatureScaling  # noqa: E402
from moon.deploy.formats import compared  # noqa: E402
from moon.detect import DETECTORS  # noqa: E402
from moon.errors import DataError  # noqa: E402
from moon.export.file import write_network  # noqa: E402
from moon.export.graph import Graph  # noqa: E402
from moon.export.onnx import to_onnx  # noqa: E402
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


def logits_in_onnx(graph, images, classes):
    """The logits of normalised images: the input and output of an MSP model, one node before its double."""
    model = to_onnx(*described(graph, classes), pixels="float")
    (cast,) = [node for node in model.graph.node if node.op_type == "Cast"][:1]
    model.graph.output.append(onnx.helper.make_tensor_value_info(cast.input[0], onnx.TensorProto.FLOAT, ["N", None]))
    return run(model, {"pixels": images})[cast.input[0]]


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
    found = logits_in_onnx(trace(model, (3, 16, 16)), images.numpy(), 5)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def pooled(x, **op):
    """The result of one pooling operation."""
    graph = Graph(tuple(x.shape[1:]), [{"in": [0], "out": 1, **op}], features=1, logits=1)
    shape = F.max_pool2d(x, op["kernel"], op["stride"], op["padding"], ceil_mode=op["ceil_mode"]).shape
    return logits_in_onnx(graph, x.numpy(), int(np.prod(shape[1:]))).reshape(shape)


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("settings", [(3, 2, 1), (3, 2, 0), (2, 2, 0), (2, 3, 1), (3, 3, 1)])
def test_pooling_of_odd_sizes_as_in_pytorch(settings, ceil_mode):
    kernel, stride, padding = settings
    x = torch.rand(2, 2, 8, 7)
    op = {"kernel": [kernel] * 2, "stride": [stride] * 2, "padding": [padding] * 2, "ceil_mode": ceil_mode}
    expected = F.max_pool2d(x, kernel, stride, padding, ceil_mode=ceil_mode)
    np.testing.assert_allclose(pooled(x, op="max_pool", **op), expected)
    for counted in (True, False):
        expected = F.avg_pool2d(x, kernel, stride, padding, ceil_mode, counted)
        found = pooled(x, op="avg_pool", **op, count_include_pad=counted)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


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
    assert (model.ir_version, model.opset_import[0].version) == (8, 17)
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
        (lambda d, t: d["graph"][1].update(weight="gone"), r"operation 1 \(linear\): "),
        (lambda d, t: d["graph"][1].update({"in": [7]}), "there is no 7"),
        (lambda d, t: d["graph"][1].update({"in": [0, 1]}), "has 2 inputs"),
        (lambda d, t: d.update(input=[3, 1, 1]), "a weight for 2 values does not fit 3"),
        (lambda d, t: d.update(classes=["a"] * 5), "2 outputs do not fit 5 classes"),
        (lambda d, t: d["detector"].update(output=9), "KeyError"),
        (lambda d, t: d["detector"].update(output=2), "computes 2 scores per image"),
        (lambda d, t: d["detector"].update(program=7), "TypeError"),
        (lambda d, t: t.update(threshold=np.zeros(3)), "do not fit the number of classes"),
        (lambda d, t: d.update(outputs={"logits": 5}), "KeyError"),
        (lambda d, t: d.update(preprocess={}), "KeyError"),
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
    evidence = {name: images.evidence(network, data) for name, data in (images.splits | new).items()}
    pixels = np.concatenate([data.images for data in new.values()])
    return network, images.benchmark, evidence, pixels


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, kind in DETECTORS.items() if not kind().reading])
def test_every_detector_on_a_trained_network(trained, tmp_path, name):
    network, benchmark, evidence, pixels = trained
    validation = evidence["val"]
    detector = DETECTORS[name]()
    fits_on = {"train": evidence["train"], "validation": validation}
    if detector.fits_on_splits:
        detector.fit(*(fits_on[split] for split in detector.fits_on_splits))
    program = trace_detector(detector, validation)
    calibration = detector.score(validation).sort().values.double().numpy()
    described_as = {"name": name, "options": {}, "program": program.ops, "output": program.output}
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
    # The score of Fisher is made of ranks, which change by one where a score is next to another.
    assert close.all() if name != "fisher" else close.mean() > 0.99
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
        assert compared(found, answers, calibration, ranks=name == "fisher").startswith("agrees with moon_runtime on 2000")
