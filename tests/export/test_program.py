"""A traced detector computes the scores of the detector."""

import json
from dataclasses import replace

import pytest
import torch

from moon.detect import DETECTORS, Ash, Detector, Energy, Fdbd, Odin, Scaled
from moon.evidence import Evidence
from moon.export.content import run_program
from moon.export.program import trace_detector

CLASSES, WIDTH = 5, 24
EXTRA = {
    "ebo:scaled": lambda: Scaled(Energy()),
    "klm:scaled": lambda: Scaled(DETECTORS["klm"]()),
    "openmax:scaled": lambda: Scaled(DETECTORS["openmax"](tail=10)),
    "nnguide:scaled": lambda: Scaled(DETECTORS["nnguide"](k=10, share=0.5)),
    "ash-p": lambda: Ash(variant="p"),
    "ash-s": lambda: Ash(variant="s"),
}
SMALL = {
    "knn": {"k": 3},
    "fisher": {"k": 3},
    "layers": {"k": 3},
    "nnguide": {"k": 10, "share": 0.5},
    "openmax": {"tail": 10},
}


def evidence(images, seed, is_open=True):
    """Evidence of a linear classifier on features like those behind a ReLU; float64 logits, as when runs are scored."""
    torch.manual_seed(seed)
    labels = torch.arange(images) % CLASSES
    features = (torch.randn(images, WIDTH) * 0.7).relu()
    features[:, :CLASSES] += torch.nn.functional.one_hot(labels, CLASSES) * 2
    weight = torch.randn(CLASSES + 1, WIDTH, generator=torch.Generator().manual_seed(0)) * 0.2
    weight[:CLASSES, :CLASSES] += 2 * torch.eye(CLASSES)
    head = (weight, torch.linspace(-0.5, 0.5, CLASSES + 1))
    if not is_open:
        head = (weight[:CLASSES], head[1][:CLASSES])
    logits = features @ head[0].T + head[1]
    layers = torch.rand(images, 10)
    return Evidence(logits.double(), features, CLASSES, labels, head, None, layers, (4, 6))


def fitted(detector, is_open=True):
    splits = {"train": evidence(600, 1, is_open), "validation": evidence(200, 2, is_open)}
    wanted = [splits[name] for name in detector.fits_on_splits]
    return detector.fit(*wanted) if wanted else detector


@pytest.mark.parametrize("is_open", [True, False], ids=["K+1 outputs", "K outputs"])
@pytest.mark.parametrize("name", [*(name for name, kind in DETECTORS.items() if not kind().reading), *EXTRA])
def test_every_detector_becomes_a_program(name, is_open):
    if name == "unknown" and not is_open:
        pytest.skip("it needs the K+1-th output")
    detector = fitted(EXTRA[name]() if name in EXTRA else DETECTORS[name](**SMALL.get(name, {})), is_open)
    known = evidence(20, 3, is_open)
    far = replace(known, logits=known.logits * 0.1, features=known.features.flip(1), layers=3 * known.layers)
    program = trace_detector(detector, known)
    json.dumps(program.ops, allow_nan=False)
    for images in (known, far):
        expected = detector.score(images)
        tensors = {name: tensor.numpy() for name, tensor in program.tensors.items()}
        features = torch.cat([images.features, images.layers], 1) if detector.layered else images.features
        found = run_program(program.ops, tensors, [images.logits.double(), features.double()])[program.output]
        torch.testing.assert_close(found[:, 0], expected.double(), rtol=2e-5, atol=1e-6)


def test_constants_are_computed_once_and_stored_once():
    program = trace_detector(fitted(Fdbd()), evidence(4, 0))
    assert "distances" not in {op["op"] for op in program.ops}  # between the classes' weights
    knn = trace_detector(fitted(DETECTORS["knn"](k=3)), evidence(4, 0))
    assert [tuple(tensor.shape) for tensor in knn.tensors.values()] == [(600, WIDTH)]  # for the product and for rows


def test_odin_is_refused():
    with pytest.raises(ValueError, match=r"gradient of the network.*tempscale"):
        trace_detector(Odin(), evidence(4, 0))


def test_a_detector_that_is_not_fitted_is_refused():
    with pytest.raises(ValueError, match="not fitted"):
        trace_detector(DETECTORS["knn"](), evidence(4, 0))


class BatchMean(Detector):
    def score(self, evidence):
        return evidence.features.sum(1) - evidence.features.sum(1).mean()


class Matrix(Detector):
    def score(self, evidence):
        return (evidence.features[:, None] - evidence.head[0]).square().sum(2).amin(1)


class Constant(Detector):
    def score(self, evidence):
        return torch.ones(len(evidence))


class Position(Detector):
    def score(self, evidence):
        return evidence.confidence + torch.arange(len(evidence))


class Cumulative(Detector):
    def score(self, evidence):
        return evidence.known.cumsum(1)[:, 1]


@pytest.mark.parametrize(
    ("detector", "message"),
    [
        (BatchMean(), "must be over the dimension 1|mixes the images"),
        (Matrix(), "more than a vector for each image"),
        (Constant(), "depends on the image"),
        (Position(), "depends on the position in the batch"),
        (Cumulative(), "'aten.cumsum.default' is not supported"),
    ],
)
def test_what_cannot_be_packed_is_named(detector, message):
    with pytest.raises(ValueError, match=f"the score of {type(detector).__name__}.*({message})"):
        trace_detector(detector, evidence(4, 0))
