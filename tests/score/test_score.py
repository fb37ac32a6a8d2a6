import shutil
from dataclasses import replace

import numpy as np
import pytest

from moon import Detector, auroc, register, unregister
from moon.detect import DETECTORS, TemperatureScaling
from moon.recipe import Recipe, table
from moon.records import read_record, write_record
from moon.run.folder import load, load_result
from moon.run.images import BenchmarkImages
from moon.score.cache import EvidenceCache
from moon.score.files import KNOWN, read_arrays, read_scores, read_summary, which_scored
from moon.score.score import score_run


@pytest.fixture
def folder(trained_runs, tmp_path):
    """A run of MOON, a copy for each test."""
    return shutil.copytree(trained_runs(epochs=6, options={"quiet_epochs": 1}), tmp_path / "run")


def test_every_detector_on_every_set(images, folder):
    result, scores = score_run(folder, images)
    assert list(result["detectors"]) == [name for name in DETECTORS if name not in result["left_out"]]
    assert result["left_out"]["rotpred"].startswith("LeNet has no rotation head; train it with the objective rotpred")
    assert set(result["left_out"]) <= {"rotpred", "openmax"}  # a small run may predict a class too rarely
    assert result["images"] == {"known": 90, "notmnist": 30, "fashionmnist": 30, "dtd": 30}
    assert result["missing"] == ["cifar10", "tin", "places"]
    for name, found in result["detectors"].items():
        assert set(found["sets"]) == {"notmnist", "fashionmnist", "dtd"}
        expected = np.mean([found["sets"][s]["auroc"] for s in ("notmnist", "fashionmnist")])
        assert found["near"]["auroc"] == pytest.approx(expected)
        assert found["far"] == found["sets"]["dtd"]
        assert found["sets"]["dtd"]["auroc"] == auroc(scores[name][KNOWN], scores[name]["dtd"])
    assert set(result["p_unknown"]) == {"notmnist", "fashionmnist", "dtd"}
    assert read_summary(folder) == result
    with np.load(folder / "scores.npz") as saved:
        assert np.array_equal(saved["ebo/dtd"], scores["ebo"]["dtd"])


def test_a_combination_reuses_the_scores_of_its_parts(images, folder, monkeypatch):
    alone = score_run(folder, images, ["fisher"])[1]["fisher"]
    lengths = []
    original = DETECTORS["knn"].score
    monkeypatch.setattr(DETECTORS["knn"], "score", lambda *a: lengths.append(len(a[1])) or original(*a))
    shared = score_run(folder, images, ["msp", "knn", "fisher"])[1]["fisher"]
    assert sorted(lengths) == [10, 30, 30, 30, 90]  # each set once, and the validation images of Fisher's fit
    assert all(np.array_equal(shared[name], alone[name]) for name in alone)


def test_a_class_with_fewer_training_images_than_knn_looks_for_is_a_warning(images, folder, caplog):
    score_run(folder, images, ["knn", "fisher", "msp"])
    assert "other classes" not in caplog.text  # 256 images: the nearest one is looked for
    score_run(folder, images, ["knn:k=60", "fisher:msp+knn:k=70", "fisher:msp+gen"])
    warnings = [record.message for record in caplog.records if "other classes" in record.message]
    counts = np.bincount(images.splits["train"].labels)
    smallest, count = counts.argmin(), counts.min()
    assert warnings == [
        f"knn:k=60 and fisher:msp+knn:k=70: class {smallest} has {count} training images, fewer than k, so some of the "
        "k nearest ones to its images are of other classes, and these images may look unknown; name a smaller number, "
        "such as k=1"
    ]


def test_scores_of_a_version_with_another_usual_neighbour_are_not_kept(images, folder, caplog):
    result, _ = score_run(folder, images, ["knn", "knn:k=7", "fisher", "fisher:msp+gen", "msp"])
    assert result["usual_k"] == 1
    del result["usual_k"]  # as in older files, which used the 50th
    write_record(folder / "scores.json", result)
    result, scores = score_run(folder, images, ["ebo"])
    assert list(result["detectors"]) == list(scores) == ["ebo", "knn:k=7", "fisher:msp+gen", "msp"]
    for name in ("knn", "fisher"):
        assert f"the scores of {name} are of an older version, which used the 50th neighbour" in caplog.text
    result, _ = score_run(folder, images, ["knn"])
    assert list(score_run(folder, images, ["gen"])[0]["detectors"]) == ["gen", *result["detectors"]]


def test_options_in_a_name_are_not_tuned(data_root, folder):
    images = BenchmarkImages.open(data_root, "mnist", tune_on=("notmnist",))
    result, scores = score_run(folder, images, ["knn", "knn:k=7"])
    assert list(result["search"]) == ["knn"]
    _, alone = score_run(folder, BenchmarkImages.open(data_root, "mnist"), ["knn:k=7"], out=folder / "other")
    assert np.array_equal(scores["knn:k=7"]["dtd"], alone["knn:k=7"]["dtd"])


def test_detectors_of_one_run_share_their_bank(images, folder, monkeypatch):
    import moon.score.score as module

    made = {}
    original = module.build.detector
    monkeypatch.setattr(module.build, "detector", lambda name, *a: made.setdefault(name, original(name, *a)))
    score_run(folder, images, ["knn", "fisher"])
    assert made["knn"].bank is made["fisher"].parts["knn"].bank


def test_training_evidence_on_disk_gives_the_same_scores(images, folder, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("moon.evidence.disk._CHUNK", 1000)  # several chunks
    names = ["knn", "nnguide", "vim", "vim:scaled", "mds", "rmds", "she", "fdbd", "dice", "fisher"]
    expected = score_run(folder, images, names, out=tmp_path / "memory")[1]
    with caplog.at_level("INFO", "moon"):
        found = score_run(folder, images, names, memory_gib=0, keep_evidence=True, out=tmp_path / "disk")[1]
    assert sum("so it is kept in temporary files in" in line for line in caplog.messages) == 1
    again = score_run(folder, images, names, memory_gib=0, out=tmp_path / "disk")[1]  # from the kept evidence
    for name in names:
        for key, scores in expected[name].items():
            assert np.array_equal(found[name][key], scores), (name, key)
            np.testing.assert_allclose(again[name][key], scores, rtol=1e-4, atol=1e-5)  # logits are kept in float32
    left = {path.name for path in (tmp_path / "disk").iterdir()}
    assert left <= {"scores.json", "scores.npz", "known.npz", "examples.npz", "evidence", "lock"}


def test_one_forward_pass_serves_all_detectors_but_odin(images, folder, monkeypatch):
    import moon.run.images as module

    calls = []
    original = module.read
    monkeypatch.setattr(module, "read", lambda *a, **how: calls.append(a[2]) or original(*a, **how))
    score_run(folder, images)
    shared = [perturb for perturb in calls if perturb is None]
    assert len(shared) == 4 + 2  # known and three unknown sets; train and val for those that fit
    assert len(calls) - len(shared) == 4  # ODIN's own


def test_the_unknown_detector_is_left_out_for_a_plain_model(images, plain_folder):
    result, _ = score_run(plain_folder, images)
    assert "unknown" not in result["detectors"]
    assert "open head" in result["left_out"]["unknown"]
    assert result["p_unknown"] == {}
    with pytest.raises(ValueError, match="open head"):  # an error if it is requested by name
        score_run(plain_folder, images, ["unknown"])


def test_scaled_detectors_use_logits_divided_by_the_temperature_of_the_run(images, folder):
    kinds = table("detector").items()
    scalable = [name for name, kind in kinds if kind.depends_on_scale or kind.can_be_scaled]
    scalable = [name for name in scalable if name not in ("rotpred", "openmax")]  # need another net, better predictions
    names = ["ebo", *(f"{name}:scaled" for name in scalable)]  # some are fitted on train or validation inputs
    result, scores = score_run(folder, images, names, keep_evidence=True)
    assert list(result["detectors"]) == names
    scaling = TemperatureScaling(result["known_scaled"]["temperature"])
    assert scaling.temperature != 1
    cache = EvidenceCache(images, load(folder), result_digest(folder), folder)
    test, train, val = (
        cache.get(name, images.splits[split])
        for name, split in (("known", "test"), ("fit/train", "train"), ("fit/val", "val"))
    )
    for name in scalable:
        alone = table("detector")[name]()
        alone.fit(scaling(val if alone.fits_on == "validation" else train))
        expected = alone.score(scaling(test)).numpy()
        np.testing.assert_allclose(scores[f"{name}:scaled"]["known"], expected, rtol=1e-4, atol=1e-5, err_msg=name)
    assert not np.allclose(scores["ebo"]["known"], scores["ebo:scaled"]["known"])


def result_digest(folder):
    return load_result(folder)["model_sha256"]


def test_missing_unknown_sets_are_an_error(images, folder, data_root):
    for name in ("notmnist", "fashionmnist", "dtd"):
        (data_root / name / "test.npz").unlink()
    with pytest.raises(ValueError, match=r"no unknown set was found for mnist.*\(near, far\).*benchmarks.toml"):
        score_run(folder, BenchmarkImages.open(data_root, "mnist"))


def test_scores_of_other_detectors_on_the_same_images_are_kept(images, folder, data_root):
    first, first_scores = score_run(folder, images, ["msp", "knn"])
    second, scores = score_run(folder, images, ["ebo"])
    assert list(second["detectors"]) == ["ebo", "msp", "knn"]
    assert second["detectors"]["knn"] == first["detectors"]["knn"]
    assert np.array_equal(scores["knn"]["dtd"], first_scores["knn"]["dtd"])
    assert read_scores(folder)[0] == second
    (folder / "scores.json").write_text("{")
    assert read_scores(folder) is None
    assert list(score_run(folder, images, ["ebo"])[0]["detectors"]) == ["ebo"]


def test_scores_of_other_sets_are_kept_and_are_in_no_mean(images, folder, data_root):
    first, first_scores = score_run(folder, images, ["msp", "knn"])
    other = BenchmarkImages.open(data_root, "mnist", near=("dtd",), far=("notmnist",))
    second, scores = score_run(folder, other, ["msp", "ebo"])
    assert (second["near"], second["far"]) == (["dtd"], ["notmnist"])
    assert list(scores["msp"]) == ["known", "dtd", "notmnist", "fashionmnist"]
    assert list(scores["ebo"]) == ["known", "dtd", "notmnist"]
    for name in ("msp", "knn"):
        found = second["detectors"][name]
        assert found["sets"] == first["detectors"][name]["sets"]
        assert (found["near"], found["far"]) == (found["sets"]["dtd"], found["sets"]["notmnist"])
        assert np.array_equal(scores[name]["fashionmnist"], first_scores[name]["fashionmnist"])
    assert second["images"]["fashionmnist"] == 30
    assert read_scores(folder)[0] == second
    assert which_scored(second) == which_scored(score_run(folder, other, ["msp"], out=folder / "only these")[0])
    third, _ = score_run(folder, images, ["msp"])
    assert third["detectors"]["knn"] == first["detectors"]["knn"]
    assert "near" not in third["detectors"]["ebo"]  # it lacks one of the two near sets
    assert third["detectors"]["ebo"]["far"] == second["detectors"]["ebo"]["sets"]["dtd"]


def test_scores_of_other_images_or_options_are_not_kept(images, folder, monkeypatch, caplog):
    score_run(folder, images, ["msp", "knn"])
    near = {"fashionmnist": images.unknown["fashionmnist"], "notmnist": images.unknown["dtd"]}
    changed, _ = score_run(folder, replace(images, unknown=near), ["msp"])
    assert set(changed["detectors"]["knn"]["sets"]) == {"fashionmnist", "dtd"}
    assert "the scores of knn on notmnist are of other images or options and are dropped" in caplog.text
    monkeypatch.setattr(DETECTORS["msp"], "score", lambda _, evidence: evidence.confidence**2)  # as with other options
    only = replace(images, unknown={"fashionmnist": images.unknown["fashionmnist"]})
    assert set(score_run(folder, only, ["msp"])[0]["detectors"]["msp"]["sets"]) == {"fashionmnist"}
    summary = read_record(folder / "scores.json")
    write_record(folder / "scores.json", summary | {"sha256": summary["sha256"] | {"known": "0" * 64}})
    assert list(score_run(folder, images, ["ebo"])[0]["detectors"]) == ["ebo"]
    assert "the scores of msp and knn are of other known images or another precision; dropped" in caplog.text


def swap(folder, name, change):
    """Replace arrays of an .npz file by others."""
    with np.load(folder / name) as file:
        arrays = {key: file[key] for key in file.files}
    np.savez(folder / name, **{key: change(array) for key, array in arrays.items()})


def test_changed_arrays_are_detected_and_computed_again(images, folder, caplog):
    first, _ = score_run(folder, images, ["msp"])
    assert read_arrays(folder, "known.npz") is not None
    for name in ("scores.npz", "known.npz", "examples.npz"):
        swap(folder, name, lambda array: array[::-1].copy())
    assert read_scores(folder) is None
    assert read_arrays(folder, "known.npz") is None
    assert read_arrays(folder, "examples.npz") is None
    assert "scores.npz: lacks the scores of msp, or has others; score the run again" in caplog.text
    assert "known.npz: is not the file that was written with scores.json" in caplog.text
    assert list(score_run(folder, images, ["ebo"])[0]["detectors"]) == ["ebo"]  # those of msp are lost
    assert "the scores of msp are missing or damaged and are dropped" in caplog.text
    assert score_run(folder, images, ["msp"])[0]["detectors"]["msp"] == first["detectors"]["msp"]


def test_arrays_that_need_too_much_memory_are_not_read(tmp_path, monkeypatch, caplog):
    np.savez_compressed(tmp_path / "known.npz", labels=np.zeros(10**6, np.uint8))  # occupies a few kB on disk
    assert len(read_arrays(tmp_path, "known.npz")["labels"]) == 10**6
    monkeypatch.setenv("MOON_MAX_BYTES", "1000")
    assert read_arrays(tmp_path, "known.npz") is None
    assert "known.npz: needs 1,000,128 bytes of memory" in caplog.text


@pytest.mark.parametrize("name", ["scores.npz", "known.npz", "examples.npz", "scores.json"])
def test_missing_files_are_reported(images, folder, caplog, name):
    score_run(folder, images, ["msp"])
    (folder / name).unlink()
    read_scores(folder)
    for arrays in ("known.npz", "examples.npz"):
        assert (read_arrays(folder, arrays) is None) == (arrays == name)
    score_run(folder, images, ["ebo"])
    expected = "there are scores without scores.json" if name == "scores.json" else f"{folder / name}: "
    assert expected in caplog.text


def test_scoring_that_fails_leaves_no_folder(images, plain_folder, tmp_path):
    with pytest.raises(ValueError, match="open head"):
        score_run(plain_folder, images, ["unknown"], out=tmp_path / "new" / "scores")
    assert not (tmp_path / "new").exists()


def test_scores_of_another_run_or_model_are_detected(images, folder, trained_runs, tmp_path, caplog):
    other = trained_runs(objective="cross-entropy", epochs=3)
    score_run(other, images, ["msp"], out=tmp_path / "other")
    for path in (tmp_path / "other").iterdir():
        shutil.copy(path, folder)
    assert read_summary(folder) is None
    names = [Recipe.load(each / "recipe.json").name for each in (other, folder)]
    assert f"scores.json: belongs to the run {names[0]}, not to {names[1]}" in caplog.text
    score_run(folder, images, ["msp"])
    result = load_result(folder)
    write_record(folder / "result.json", result | {"model_sha256": "0" * 64})
    assert read_summary(folder) is None
    assert "scores.json: are the scores of another model" in caplog.text


def test_a_kill_while_scores_are_written_loses_nothing(images, folder, monkeypatch):
    score_run(folder, images, ["msp"])

    def kill(path, _):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("moon.score.writing.write_record", kill)
        with pytest.raises(KeyboardInterrupt):
            score_run(folder, images, ["ebo"])
    assert list(read_scores(folder)[1]) == ["msp"]
    assert list(read_scores(folder)[0]["detectors"]) == ["msp"]
    assert list(score_run(folder, images, ["ebo"])[1]) == ["ebo", "msp"]


def test_tuning_on_every_set_is_an_error(data_root, folder):
    sets = ("notmnist", "fashionmnist", "dtd")
    with pytest.raises(ValueError, match="no unknown set is left to score: all were used for training or tuning"):
        score_run(folder, BenchmarkImages.open(data_root, "mnist", tune_on=sets))


def test_scoring_succeeds_if_no_detector_fits(images, plain_folder):
    result, scores = score_run(plain_folder, images, ["unknown"], skip_unfit=True)
    assert scores == {}
    assert list(result["left_out"]) == ["unknown"]
    assert result["known"]["accuracy"] > 0


def test_known_inputs_after_temperature_scaling(images, folder):
    result, _ = score_run(folder, images, ["msp", "tempscale"])
    assert result["known_scaled"]["accuracy"] == result["known"]["accuracy"]
    assert result["known_scaled"]["temperature"] != 1
    assert result["known_scaled"]["nll"] != result["known"]["nll"]


def test_kept_evidence_gives_the_same_scores_without_a_forward_pass(images, folder, monkeypatch):
    import moon.run.images as module

    shared = [name for name in DETECTORS if name not in ("odin", "openmax", "rotpred")]
    expected, _ = score_run(folder, images, shared, keep_evidence=True)
    files = sorted(path.name for path in (folder / "evidence").iterdir())
    sets = ["dtd", "fashionmnist", "fit-train", "fit-val", "known", "notmnist"]
    assert files == [f"{name}.safetensors" for name in sets]
    calls = []
    original = module.read
    monkeypatch.setattr(module, "read", lambda *a, **how: calls.append(a) or original(*a, **how))
    assert score_run(folder, images, shared)[0] == expected
    assert not calls
    (folder / "evidence" / "dtd.safetensors").write_bytes(b"cut")  # damaged, so it is computed again
    assert score_run(folder, images, shared)[0] == expected
    assert len(calls) == 1


def test_evidence_of_another_model_or_other_images_is_not_used(images, folder, caplog):
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    expected, _ = score_run(folder, images, ["msp"], keep_evidence=True)
    path = folder / "evidence" / "dtd.safetensors"
    part = load_file(path)
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    for change in ({"model": "another"}, {"images": "others"}, {"format": "0"}):
        save_file(part | {"logits": 0 * part["logits"]}, path, metadata | change)
        assert score_run(folder, images, ["msp"])[0] == expected
    save_file(part | {"logits": 0 * part["logits"]}, path, metadata)
    assert score_run(folder, images, ["msp"])[0] == expected
    assert "dtd.safetensors: is damaged (its content does not match its SHA-256)" in caplog.text


def test_float16_scores_do_not_replace_float32_ones(images, folder, monkeypatch):
    monkeypatch.setattr("moon.run.sparse_reading._MAX_SHARE", 0)
    with pytest.raises(ValueError, match="the network cannot run in float16: it is not sparse"):
        score_run(folder, images, ["msp"], precision="float16")
    result, _ = score_run(folder, images, ["msp", "ebo"])
    with pytest.raises(ValueError, match=r"already has float32 scores.*another folder for the scores \(out\)"):
        score_run(folder, images, ["msp"], precision="float16")
    assert read_summary(folder)["detectors"] == result["detectors"]
    assert which_scored(result) == which_scored(read_summary(folder))
    assert which_scored(result | {"precision": "float16"}) != which_scored(result)


def test_mirrored_evidence_is_the_same_for_an_image_and_its_mirror_image(images, folder, tmp_path):
    flipped = {name: data._replace(images=data.images[:, :, ::-1].copy()) for name, data in images.unknown.items()}
    other = shutil.copytree(folder, tmp_path / "other")
    names = ["msp", "odin", "knn"]
    result, scores = score_run(folder, images, names, mirrored=True)
    _, found = score_run(other, replace(images, unknown=flipped), names, mirrored=True)
    for name in names:
        for key, expected in scores[name].items():
            assert np.allclose(found[name][key], expected, rtol=1e-4, atol=1e-5), (name, key)
    plain, once = score_run(other, images, names)
    assert not np.allclose(once["msp"]["dtd"], scores["msp"]["dtd"])
    assert result["mirrored"] is True
    assert which_scored(result) != which_scored(plain)


def test_mirrored_scores_are_kept_separately(images, folder):
    once, _ = score_run(folder, images, ["msp"], keep_evidence=True)
    both, _ = score_run(folder, images, ["msp", "ebo"], keep_evidence=True, mirrored=True)
    assert both["known"] != once["known"]  # from other evidence
    assert read_summary(folder) == once
    assert read_summary(folder / "mirrored") == both
    assert score_run(folder, images, ["msp"])[0] == once
    assert score_run(folder, images, ["msp"], mirrored=True)[0]["detectors"].keys() == {"msp", "ebo"}
    files = {path.name for path in (folder / "mirrored").iterdir()}
    assert files == {"scores.json", "scores.npz", "known.npz", "examples.npz"}


def test_scores_can_be_written_to_another_folder(images, folder, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    out = tmp_path / "elsewhere" / "scores"
    first, scores = score_run(folder, images, ["msp"], keep_evidence=True, out=out)
    assert read_scores(out)[0] == first
    assert {"scores.json", "scores.npz", "known.npz", "examples.npz", "evidence"} <= {p.name for p in out.iterdir()}
    both, _ = score_run(folder, images, ["ebo"], out=out)
    assert list(both["detectors"]) == ["ebo", "msp"]  # scores that are there are kept
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before  # not even a lock
    in_place, same = score_run(folder, images, ["msp"])
    assert in_place["detectors"] == first["detectors"]
    assert np.array_equal(same["msp"]["dtd"], scores["msp"]["dtd"])


@pytest.mark.parametrize("mirrored", [False, True])
def test_scores_of_two_models_are_not_mixed_in_one_folder(
    images, folder, trained_runs, tmp_path, monkeypatch, mirrored
):
    other = trained_runs(objective="cross-entropy", epochs=3)
    out = tmp_path / "scores"
    score_run(folder, images, ["msp"], out=out, mirrored=mirrored)
    before = {path: path.read_bytes() for path in out.rglob("*.*") if path.is_file()}
    for again in (False, True):
        with pytest.raises(ValueError, match="scores: contains the scores of another model; choose another folder"):
            score_run(other, images, ["mls"], out=out, mirrored=again)
        # also if the other one was written while this one was computed
        monkeypatch.setattr("moon.score.score.check_same_model", lambda *_: None)
        with pytest.raises(ValueError, match="contains the scores of another model"):
            score_run(other, images, ["mls"], out=out, mirrored=again)
        monkeypatch.undo()
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda _, e: e.confidence.numpy(), "the score of mine must be a tensor, not a ndarray"),
        (lambda _, e: e.confidence[:, None], r"the score of mine must be of shape \(N,\) = \(90,\), not \(90, 1\)"),
        (lambda _, e: e.confidence.mean(), r"the score of mine must be of shape \(N,\) = \(90,\), not \(\)"),
        (lambda _, e: e.confidence * 1j, "the score of mine must be real numbers, not torch.complex"),
        (lambda _, e: e.confidence * float("nan"), "mine: 90 of 90 scores of known are NaN or infinite"),
    ],
)
def test_errors_name_the_detector_whose_scores_are_wrong(images, folder, score, message):
    register("detector", "mine", type("Mine", (Detector,), {"score": score}))
    try:
        with pytest.raises(ValueError, match=message):
            score_run(folder, images, ["msp", "mine"])
    finally:
        unregister("detector", "mine")


def test_one_detector_may_be_given_by_its_name(images, folder):
    assert list(score_run(folder, images, "knn")[1]) == ["knn"]
    with pytest.raises(ValueError, match="no detector was given"):
        score_run(folder, images, [])
