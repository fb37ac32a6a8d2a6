"""Properties that every registered detector must have, including those of other packages."""

import copy
import inspect
import json
from dataclasses import replace

import pytest
import torch

from moon import TemperatureScaling, open_head, read, rotation_head
from moon.evidence.disk import Rows
from moon.recipe.registry import table

DETECTORS = table("detector")
EVERY = pytest.mark.parametrize("name", DETECTORS)


def make_detector(name, fit_on=None, **options):
    kind = DETECTORS[name]
    if "k" in inspect.signature(kind).parameters:
        options["k"] = 5
    detector = kind(**options)
    return detector if fit_on is None else detector.fit(*[fit_on] * max(1, len(detector.fits_on_splits)))


@EVERY
def test_there_is_one_finite_score_per_input(name, evidence):
    scores = make_detector(name, evidence(60)).score(evidence(25, seed=1))
    assert scores.shape == (25,)
    assert scores.isfinite().all()
    assert scores.dtype == torch.float32


@EVERY
@pytest.mark.parametrize("part", ["logits", "features"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_not_fitted(name, evidence, part, value):
    damaged = evidence(60)
    getattr(damaged, part)[3, 1] = value
    detector = make_detector(name)
    splits = len(detector.fits_on_splits)
    for at in range(splits):
        with pytest.raises(ValueError, match=f"cannot be fitted: {part} contain NaN or infinity"):
            make_detector(name).fit(*(damaged if index == at else evidence(60) for index in range(splits)))


@EVERY
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
def test_labels_may_be_integers_of_any_size(name, evidence, dtype):
    known = evidence(200)
    known = replace(known, labels=known.prediction)
    found = []
    for labels in (known.labels, known.labels.to(dtype)):
        detector = make_detector(name)
        if splits := len(detector.fits_on_splits):
            detector.fit(*[replace(known, labels=labels)] * splits)
            found.append(detector.score(known))
    torch.testing.assert_close(found[:1], found[1:])


@EVERY
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (lambda y: y + 1, "label {k}, but the known classes are 0..{last}"),
        (torch.Tensor.float, "labels are torch.float32"),
    ],
)
def test_labels_of_no_known_class_are_not_fitted(name, evidence, labels, message):
    wrong = evidence(60)
    wrong = replace(wrong, labels=labels(torch.arange(60) % wrong.num_known))
    detector = make_detector(name)
    splits = len(detector.fits_on_splits)
    if splits:
        found = message.format(k=wrong.num_known, last=wrong.num_known - 1)
        with pytest.raises(ValueError, match=f"cannot be fitted: {found}"):
            detector.fit(*[wrong] * splits)


@EVERY
def test_scores_do_not_depend_on_batching(name, evidence):
    detector, full = make_detector(name, evidence(60)), evidence(25, seed=1)
    scores = detector.score(full)
    for size in (1, 7, 25):
        parts = [
            replace(full, logits=logits, features=features, labels=None, rotations=rotations, layers=layers)
            for logits, features, rotations, layers in zip(
                *(part.split(size) for part in (full.logits, full.features, full.rotations, full.layers)), strict=True
            )
        ]
        torch.testing.assert_close(torch.cat([detector.score(part) for part in parts]), scores)


@EVERY
def test_training_evidence_may_be_on_disk(name, evidence, tmp_path, monkeypatch):
    in_one_chunk = make_detector(name, evidence(60)).score(evidence(25, seed=1))
    monkeypatch.setattr("moon.evidence.disk._CHUNK", 100)
    known, stored = evidence(60), {}
    for part in ("logits", "features", "layers"):
        rows = Rows(tmp_path)
        rows.add(getattr(known, part))
        stored[part] = rows.tensor()
    in_memory, on_disk = (make_detector(name, e).score(evidence(25, seed=1)) for e in (known, replace(known, **stored)))
    assert torch.equal(on_disk, in_memory)
    torch.testing.assert_close(in_memory, in_one_chunk, rtol=1e-4, atol=1e-5)
    assert not list(tmp_path.iterdir())


@EVERY
def test_the_unknown_output_never_raises_the_score(name, evidence):
    detector, e = make_detector(name, evidence(60)), evidence(25, seed=1)
    raised = e.logits.clone()
    raised[:, -1] += 3
    assert (detector.score(replace(e, logits=raised)) <= detector.score(e) + 1e-6).all()


@EVERY
def test_the_unknown_output_is_optional(name, evidence):
    closed = evidence(60, is_open=False)
    if name == "unknown":
        with pytest.raises(ValueError, match="open head"):
            make_detector(name).score(closed)
    else:
        assert make_detector(name, closed).score(closed).shape == (60,)


@EVERY
def test_the_model_is_not_changed(name, small_net):
    model = rotation_head(open_head(small_net()))
    before = copy.deepcopy(model.state_dict())
    x = torch.randn(40, 1, 8, 8)
    known = read(model, [x], layers=True)
    known = replace(known, labels=known.prediction)
    if len(known.prediction.unique()) < 4:
        known = replace(known, logits=torch.eye(5)[torch.arange(40) % 4] * 5, labels=torch.arange(40) % 4)
    detector = make_detector(name, known)
    detector.score(read(model, [x], layers=True, **detector.reading))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert model.training
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


@EVERY
def test_the_fitted_state_can_be_saved_and_loaded(name, evidence):
    fitted = make_detector(name, evidence(60))
    state, options = fitted.state_dict(), json.loads(json.dumps(fitted.options()))
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    other = DETECTORS[name](**options)
    other.load_state_dict(state)
    query = evidence(20, seed=2)
    assert torch.equal(other.score(query), fitted.score(query))


@EVERY
def test_float64_evidence_gives_float64_scores(name, evidence):
    e = evidence(60).to(torch.float64)
    detector = make_detector(name, e)
    scores = detector.score(e)
    assert scores.dtype == torch.float64
    torch.testing.assert_close(
        scores.float(), make_detector(name, evidence(60)).score(evidence(60)), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("name", [name for name in DETECTORS if DETECTORS.is_builtin(name)])
def test_the_docstring_states_the_k_plus_1_rule(name):
    assert "K+1 rule" in DETECTORS[name].__doc__


@EVERY
def test_tunable_parameters_are_options(name):
    kind = DETECTORS[name]
    defaults = {key: p.default for key, p in inspect.signature(kind).parameters.items()}
    for key, values in kind.grid.items():
        assert key in defaults, key
        for value in values:
            kind(**{key: value})


def ranks(name, factor, evidence):
    """The order in which a detector sorts inputs if the logits are multiplied by a factor."""
    scaling = TemperatureScaling(1 / factor)
    train, test = (scaling(evidence(count, seed=seed).to(torch.float64)) for count, seed in ((200, 0), (100, 1)))
    return make_detector(name, train).score(test).argsort()


@EVERY
def test_detectors_say_whether_they_depend_on_the_scale_of_the_logits(name, evidence):
    """Otherwise networks whose logits have an arbitrary scale could not be scored at a fitted temperature."""
    kind = DETECTORS[name]
    changes = not torch.equal(ranks(name, 1, evidence), ranks(name, 0.1, evidence))
    has_no_variant = name in ("msp", "fisher")  # MSP at the fitted temperature is `tempscale`; Fisher combines MSP
    assert changes == (kind.depends_on_scale or kind.can_be_scaled or has_no_variant)
    assert not (kind.depends_on_scale and kind.can_be_scaled)
