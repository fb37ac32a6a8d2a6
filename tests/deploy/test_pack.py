"""A packed run answers as PyTorch does, and its threshold is that of the packed network."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import moon
from moon import Batches
from moon.data import DataSet
from moon.deploy.calibration import Guarantee
from moon.deploy.formats import write_onnx
from moon.deploy.packing import _divide, pack_run
from moon.detect import DETECTORS, Fisher, Msp
from moon.errors import DamagedCheckpoint, MissingPackage
from moon.export.program import trace_detector
from moon.nets import resnet8
from moon.records import write_record
from moon.run.folder import load as load_run
from moon.run.images import BenchmarkImages
from moon.score import score_run
from moon.score.auto import halves

HALF = Guarantee(accept=0.5)  # there are ten validation images


@pytest.fixture
def folder(trained_runs, tmp_path):
    return shutil.copytree(trained_runs(epochs=6, options={"quiet_epochs": 1}), tmp_path / "run")


def test_answers_are_those_of_pytorch(folder, images, tmp_path):
    facts = pack_run(folder, images, tmp_path / "net.moon", "mls", HALF, precision="float32")
    classifier = moon.load(tmp_path / "net.moon")
    test = images.splits["test"]
    answers, evidence = classifier(test.images), images.evidence(load_run(folder), test)
    assert answers.label.tolist() == evidence.prediction.tolist()
    assert np.allclose(answers.score, evidence.known_logits.amax(1), atol=1e-4)
    temperature = classifier.metadata["temperature"]
    assert np.allclose(answers.probability, (evidence.logits / temperature).softmax(1)[:, :10].amax(1), atol=1e-4)
    validation = classifier(images.splits["val"].images)
    assert np.array_equal(np.sort(validation.score), classifier.calibration)
    threshold = moon.find_threshold(validation.score, 0.5)
    assert np.array_equal(answers.is_known, threshold.accepts(answers.score))
    assert np.allclose(answers.p_value, moon.p_values(answers.score, validation.score))
    assert facts["bytes"] == (tmp_path / "net.moon").stat().st_size
    assert facts["measured"]["known"]["accuracy"] == facts["measured"]["known"]["accuracy_float32"]
    assert facts["measured"]["known"]["images"] == 90
    for name in images.unknown:
        row = facts["measured"][name]
        assert row["rejected"] == pytest.approx(1 - classifier(images.unknown[name].images).is_known.mean())
        assert row["auroc"] == pytest.approx(row["auroc_float32"], abs=1e-6)


@pytest.mark.parametrize(("net", "channels"), [("lenet-norm", 1), ("resnet18-imagenet", 3)])
def test_images_need_not_be_square(tmp_path, net, channels):
    rng = np.random.default_rng(0)
    (tmp_path / "photos" / "a").mkdir(parents=True)
    photo = rng.integers(0, 256, (50, 90, 3), np.uint8)
    Image.fromarray(photo).save(tmp_path / "photos" / "a" / "1.png")
    imported = moon.data.import_set(tmp_path, tmp_path / "photos", "other", size=(40, 48), grey=channels == 1).dataset
    for split, count in (("train", 40), ("test", 40), ("val", 40)):
        pixels = rng.integers(0, 256, (count, 40, 48, channels), np.uint8)
        moon.data.save(DataSet(pixels, np.arange(count) % 2), tmp_path, "mine", split)
    images = BenchmarkImages.open(tmp_path, "mine", far="other")
    settings = {"root": tmp_path, "net": net, "width": 1 if channels == 1 else 0.125, "epochs": 1, "batch_size": 8}
    moon.train_run(moon.make_recipe("mine", augment="trivial+cutout", **settings), tmp_path / "run", images)
    assert "msp" in score_run(tmp_path / "run", images)[0]["detectors"]
    moon.pack_run(tmp_path / "run", images, tmp_path / "net.moon", "mls", precision="float32", force=True)
    classifier, known = moon.load(tmp_path / "net.moon"), images.splits["test"]
    evidence = images.evidence(load_run(tmp_path / "run"), known)
    assert np.allclose(classifier(known.images).score, evidence.known_logits.amax(1), atol=1e-4)
    assert classifier(imported.images).score == classifier([tmp_path / "photos" / "a" / "1.png"]).score
    with pytest.raises(ValueError, match="'rotpred' rotates images, which must be square, not 40x48"):
        moon.make_recipe("mine", "rotpred", **settings)


@pytest.mark.parametrize("name", [name for name, kind in DETECTORS.items() if not kind().reading])
def test_every_detector_answers(name, folder, trained_runs, images, tmp_path, monkeypatch):
    if name == "openmax":  # needs a network that gets some images of every class right
        folder = trained_runs(epochs=30, options={"quiet_epochs": 1})
    fitted = []

    def trace(detector, *arguments):
        fitted.append(detector)
        return trace_detector(detector, *arguments)

    monkeypatch.setattr("moon.deploy.packing.trace_detector", trace)
    pack_run(folder, images, tmp_path / "net.moon", name, Guarantee(0.3), precision="float32", checked=0)
    classifier, model = moon.load(tmp_path / "net.moon"), load_run(folder)
    assert classifier.detector == name
    for part in (images.splits["test"], images.unknown["notmnist"]):
        expected = fitted[0].score(images.evidence(model, part, layers=True)).double().numpy()
        error = np.abs(classifier(part.images).score - expected) / np.maximum(1, np.abs(expected))
        # Fisher ranks scores, and moves by a step where one of them is passed.
        assert (error <= 1e-4).mean() >= (0.9 if name == "fisher" else 1)


@pytest.mark.parametrize("make", [moon.lenet, resnet8])
def test_layers_answer_as_in_pytorch_also_of_dead_channels(make, images, tmp_path, monkeypatch):
    model, fitted = make(10, 1).eval(), []
    with torch.no_grad():
        for conv in (module for module in model.modules() if isinstance(module, torch.nn.Conv2d)):
            conv.weight[::3] = 0
    monkeypatch.setattr("moon.deploy.packing.trace_detector", lambda d, e: fitted.append(d) or trace_detector(d, e))
    loaders = {
        name: Batches(images.splits[split], [0.5], [0.5]) for name, split in (("train", "train"), ("validation", "val"))
    }
    how = {"classes": [*"0123456789"], "mean": [0.5], "std": [0.5], "guarantee": HALF, "precision": "float32"}
    moon.pack(model, tmp_path / "net.moon", **loaders, **how, detector="layers", checked=0, force=True)
    classifier, pixels = moon.load(tmp_path / "net.moon"), np.resize(images.splits["test"].images, (64, 28, 28, 1))
    pixels[0], pixels[1] = 0, 255
    x = (torch.from_numpy(pixels / np.float32(255)).permute(0, 3, 1, 2) - 0.5) / 0.5
    expected = fitted[0].score(moon.read(model, x, layers=True)).double().numpy()
    scores = classifier(pixels).score
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose([classifier(pixels[i : i + 1]).score[0] for i in range(64)], scores, rtol=1e-5)
    onnxruntime = pytest.importorskip("onnxruntime")
    assert "agrees with moon_runtime" in write_onnx(tmp_path / "net.moon", tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    found = session.run(["score"], {session.get_inputs()[0].name: pixels})[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_the_energy_of_normalised_logits_is_packed_and_exported_at_the_fitted_temperature(
    trained_runs, images, tmp_path, caplog
):
    folder = trained_runs(objective="moon-logitnorm", epochs=6, options={"quiet_epochs": 1})
    with caplog.at_level("INFO", "moon"):
        facts = pack_run(folder, images, tmp_path / "net.moon", "ebo", HALF, precision="float32", checked=20)
    assert (
        "the temperature of ebo is fitted on validation images: 5 are used for it, the other 5 for the" in caplog.text
    )
    classifier, test = moon.load(tmp_path / "net.moon"), images.splits["test"]
    evidence, temperature = images.evidence(load_run(folder), test), classifier.metadata["temperature"]
    assert facts["detector_temperature"] == {"value": temperature, "from": "fitted on validation images"}
    assert temperature != pytest.approx(1, abs=0.1)
    scores = classifier(test.images).score
    assert np.allclose(scores, (evidence.known_logits / temperature).logsumexp(1), rtol=1e-4)
    assert not np.allclose(scores, evidence.known_logits.logsumexp(1), rtol=1e-2)
    pack_run(folder, images, tmp_path / "raw.moon", "ebo:unscaled", HALF, precision="float32", checked=0)
    raw = moon.load(tmp_path / "raw.moon")(test.images).score
    assert np.allclose(raw, evidence.known_logits.logsumexp(1), rtol=1e-4)
    onnxruntime = pytest.importorskip("onnxruntime")
    assert "agrees with moon_runtime" in write_onnx(tmp_path / "net.moon", tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    found = session.run(["score"], {session.get_inputs()[0].name: test.images})[0]
    assert np.allclose(found, scores, rtol=1e-4)


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_stored_weights_change_little(precision, folder, images, tmp_path):
    pack_run(folder, images, tmp_path / "exact.moon", "mls", HALF, precision="float32", checked=0)
    pack_run(folder, images, tmp_path / "net.moon", "mls", HALF, precision=precision, checked=0)
    exact, rounded = (moon.load(tmp_path / name)(images.splits["test"].images) for name in ("exact.moon", "net.moon"))
    assert np.abs(exact.score - rounded.score).max() < (0.02 if precision == "float16" else 0.3)
    assert (exact.label == rounded.label).mean() > 0.97
    assert (tmp_path / "net.moon").stat().st_size < (tmp_path / "exact.moon").stat().st_size


def test_a_detector_fitted_on_validation_images_is_calibrated_on_others(folder, images, tmp_path, caplog):
    with caplog.at_level("INFO", "moon"):
        facts = pack_run(folder, images, tmp_path / "net.moon", "fisher", HALF, checked=0)
    assert "fisher is fitted on validation images: 5 are used for it, the other 5 for the threshold" in caplog.text
    assert facts["calibration_images"] == len(moon.load(tmp_path / "net.moon").calibration) == 5


def test_too_few_validation_images_are_an_error_before_anything_is_computed(folder, images, tmp_path, monkeypatch):
    monkeypatch.setattr("moon.deploy.packing.EvidenceCache", None)
    with pytest.raises(ValueError, match="10 validation images are too few for a threshold that accepts a known image "
                                         "with a probability of 95% or more; at least 19 are needed"):  # fmt: skip
        pack_run(folder, images, tmp_path / "net.moon", "mls")
    with pytest.raises(ValueError, match="at least 19 are needed, half of them for the detector"):
        pack_run(folder, images, tmp_path / "net.moon", "fisher", Guarantee(0.5, per_class=True))
    with pytest.raises(ValueError, match="at least 37 are needed, half of them for the detector"):
        pack_run(folder, images, tmp_path / "net.moon", "fisher")
    assert not (tmp_path / "net.moon").exists()


def test_a_folder_that_does_not_exist_is_said_before_anything_is_computed(folder, images, tmp_path, monkeypatch):
    monkeypatch.setattr("moon.deploy.packing.load", lambda *_: pytest.fail("the network is loaded"))
    with pytest.raises(ValueError, match="nowhere: there is no such folder; create it first"):
        pack_run(folder, images, tmp_path / "nowhere" / "net.moon", "mls", HALF)
    with pytest.raises(ValueError, match="is a folder; choose another file"):
        pack_run(folder, images, tmp_path, "mls", HALF)


def test_the_file_names_the_first_weights_but_not_where_they_were(folder, images, tmp_path):
    recipe = json.loads((folder / "recipe.json").read_text())
    recipe["pretrained"] = "/home/someone/weights.safetensors"
    (folder / "recipe.json").write_text(json.dumps(recipe))
    facts = pack_run(folder, images, tmp_path / "net.moon", "mls", HALF, checked=0)
    assert facts["recipe"] == recipe | {"pretrained": "weights.safetensors"}
    assert moon.load(tmp_path / "net.moon").metadata["provenance"]["recipe"] == facts["recipe"]
    assert b"someone" not in (tmp_path / "net.moon").read_bytes()


def test_a_network_that_has_learned_nothing_is_refused_unless_forced(folder, images, tmp_path, monkeypatch, caplog):
    model = load_run(folder)
    torch.nn.init.zeros_(model.fc.weight)
    monkeypatch.setattr("moon.deploy.packing.load", lambda *_: model)
    nothing = "has learned nothing: its accuracy on 10 validation images is 10.0%, and always predicting the most"
    with pytest.raises(ValueError, match=nothing):
        pack_run(folder, images, tmp_path / "net.moon", "mls", HALF, checked=0)
    assert not (tmp_path / "net.moon").exists()
    facts = pack_run(folder, images, tmp_path / "net.moon", "mls", HALF, checked=0, force=True)
    assert nothing in caplog.text
    assert facts["rejection"]["is_reliable"] is False
    assert moon.load(tmp_path / "net.moon").metadata["provenance"]["rejection"] == facts["rejection"]


def test_what_cannot_be_packed_is_refused(folder, images, tmp_path):
    with pytest.raises(ValueError, match="Odin changes each image"):
        pack_run(folder, images, tmp_path / "net.moon", "odin", HALF)
    with pytest.raises(ValueError, match="RotPredScore runs the network on four rotations"):
        pack_run(folder, images, tmp_path / "net.moon", "rotpred", HALF)
    (folder / "result.json").unlink()
    with pytest.raises(ValueError, match="not finished"):
        pack_run(folder, images, tmp_path / "net.moon", "mls", HALF)


def test_an_operator_that_the_runtime_lacks_is_named_and_onnx_offered(folder, images, tmp_path, monkeypatch):
    class Tanh(torch.nn.Module):
        def forward(self, x):
            return x.tanh()

    monkeypatch.setattr("moon.deploy.packing.load", lambda *_: torch.nn.Sequential(Tanh(), load_run(folder)).eval())
    with pytest.raises(ValueError, match=r"cannot be packed: '0': the operator 'aten.tanh.default'.*--network-only"):
        pack_run(folder, images, tmp_path / "net.moon", "mls", HALF)


def test_the_runtime_is_needed(folder, images, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "moon_runtime", None)
    with pytest.raises(MissingPackage, match=r"moon-runtime is not installed.*pip install moon-runtime"):
        pack_run(folder, images, tmp_path / "net.moon", "mls", HALF)


def test_load_takes_runs_and_files(folder, tmp_path):
    assert isinstance(moon.load(folder), torch.nn.Module)
    with pytest.raises(ValueError, match=r"no such run folder or .moon file"):
        moon.load(tmp_path / "nothing.moon")
    (tmp_path / "text.moon").write_text("this is not a network")
    with pytest.raises(DamagedCheckpoint, match=r"text.moon: "):
        moon.load(tmp_path / "text.moon")


def test_auto_is_the_recorded_choice_or_that_of_the_rule(folder, images, data_root, tmp_path, monkeypatch):
    monkeypatch.setattr("moon.score.auto.FEW", 0)  # as with many training images
    facts = pack_run(folder, images, tmp_path / "net.moon", "auto", HALF, checked=0)
    assert facts["detector"] == "knn"
    rule = "by the rule for networks with at most 10 known classes, trained without normalised logits or features"
    assert facts["auto"] == f"{rule}; run has no scores with a choice of auto"
    assert moon.load(tmp_path / "net.moon").metadata["provenance"]["auto"] == facts["auto"]

    def choose(*names):
        with_unknown = BenchmarkImages.open(data_root, "mnist", tune_on=("notmnist",))
        monkeypatch.setattr("moon.score.auto.table", lambda _: list(names))
        return score_run(folder, with_unknown, ["auto"])[0]

    result = choose("gen")
    assert result["auto"]["options"] == result["search"]["gen"]["chosen"]
    result["auto"]["options"] = {"gamma": 0.5, "top": 3}
    write_record(folder / "scores.json", result)
    facts = pack_run(folder, images, tmp_path / "net.moon", "auto", HALF, checked=10)
    why = f"{result['auto']['why']}; tuned to gamma=0.5, top=3 (recorded by moon score)"
    assert (facts["detector"], facts["auto"]) == ("gen", why)
    metadata = moon.load(tmp_path / "net.moon").metadata["detector"]
    assert (metadata["name"], metadata["options"]) == ("gen", {"gamma": 0.5, "top": 3})
    assert [name for name, row in facts["measured"].items() if row.get("chosen_on")] == ["notmnist"]
    assert {"known", "notmnist", "dtd"} <= {*facts["measured"]}


def test_auto_does_not_take_options_of_a_later_search(folder, images, data_root, tmp_path, monkeypatch):
    monkeypatch.setattr("moon.score.auto.FEW", 0)
    score_run(folder, images, ["auto"])
    only_one = BenchmarkImages.open(data_root, "mnist", tune_on=("notmnist",))
    result = score_run(folder, only_one, ["knn"])[0]
    assert result["auto"]["detector"] == "knn"
    result["search"]["knn"]["chosen"] = {"k": 3}
    write_record(folder / "scores.json", result)
    facts = pack_run(folder, images, tmp_path / "net.moon", "auto", HALF, checked=0)
    assert facts["detector"] == "knn"
    assert moon.load(tmp_path / "net.moon").metadata["detector"]["options"]["k"] is None
    assert "tuned" not in facts["auto"]


def test_a_detector_that_is_named_after_it_was_chosen_or_tuned_is_calibrated_on_what_that_left(
    folder, images, data_root, tmp_path
):
    def packed(name):
        return pack_run(folder, images, tmp_path / "net.moon", name, HALF, checked=10)

    assert packed("gen")["calibration_images"] == 10
    result = score_run(folder, BenchmarkImages.open(data_root, "mnist", tune_on=("notmnist",)), ["gen"])[0]
    assert result["search"]["gen"]["left"] == 5
    assert packed("gen")["calibration_images"] == 10  # with its default options, which were not tuned
    facts = packed("gen:gamma=0.5")
    assert facts["calibration_images"] == 5
    assert [name for name, row in facts["measured"].items() if row.get("chosen_on")] == ["notmnist"]
    result["auto"] = {"detector": "mls", "why": "", "on": {"notmnist": 30}, "left": 5}
    write_record(folder / "scores.json", result)
    assert packed("mls")["calibration_images"] == 5
    assert packed("ebo")["calibration_images"] == 10


def test_auto_refuses_damaged_scores(folder, images, tmp_path):
    (folder / "scores.json").write_text("{")
    with pytest.raises(DamagedCheckpoint, match=r"scores.json: is damaged .*; score the run again"):
        pack_run(folder, images, tmp_path / "net.moon", "auto", HALF, checked=0)


def test_auto_packs_the_next_best_after_one_that_cannot_be_packed(folder, images, tmp_path):
    result = score_run(folder, images, ["odin", "auto"])[0]
    ranking = {"odin": {"letters": 0.9}, "ebo:scaled": {"letters": 0.8}, "rotpred": {"refused": "no"}}
    result["auto"] = {"detector": "odin", "why": "the best", "auroc": ranking}
    write_record(folder / "scores.json", result)
    facts = pack_run(folder, images, tmp_path / "net.moon", "auto", HALF, checked=0)
    assert facts["detector"] == "ebo:scaled"
    reason = "number 2 of 2 by mean AUROC 80.0 of validation images against letters, after odin, which cannot be packed"
    assert facts["auto"] == f"{reason} (recorded by moon score)"
    del result["auto"]["auroc"]["ebo:scaled"]
    write_record(folder / "scores.json", result)
    with pytest.raises(
        ValueError, match="auto chose odin, which cannot be packed, and compared no other; name a detec"
    ):
        pack_run(folder, images, tmp_path / "net.moon", "auto", HALF)


def test_a_combination_is_packed_with_its_parts(folder, images, tmp_path):
    name = "fisher:msp+gen+knn"
    facts = pack_run(folder, images, tmp_path / "net.moon", name, HALF, precision="float32", checked=0)
    classifier = moon.load(tmp_path / "net.moon")
    assert classifier.metadata["detector"]["options"] == {"k": None, "parts": ["msp", "gen", "knn"], "scaled": False}
    assert facts["features_kept"] == 256
    assert len({*np.round(classifier(images.splits["test"].images).score, 4)}) > 5
    with pytest.raises(ValueError, match="Fisher with rotpred runs the network on four rotations"):
        pack_run(folder, images, tmp_path / "net.moon", "fisher:msp+rotpred", HALF)


@pytest.mark.parametrize("count", [5, 40, 41])
@pytest.mark.parametrize(("detector", "is_chosen"), [(Fisher(), False), (Fisher(), True), (Msp(), True)])
def test_what_a_detector_is_fitted_on_or_chosen_with_and_what_calibrates_it_share_no_image(count, detector, is_chosen):
    fitted, calibrated = ({*part.tolist()} for part in _divide(count, detector, "mine", is_chosen))
    chosen_on, left = halves(count)  # `Scoring` chooses and tunes on the first of these
    assert (fitted, calibrated) == ({*chosen_on.tolist()}, {*left.tolist()})
    assert not fitted & calibrated
    assert fitted | calibrated == {*range(count)}
    assert len(calibrated) - len(fitted) in (0, 1)  # the threshold gets the larger half
    assert [part.tolist() for part in _divide(count, Msp(), "mine", False)] == 2 * [list(range(count))]
