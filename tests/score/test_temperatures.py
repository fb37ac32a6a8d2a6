"""The temperature of each detector: the rule, the record, and scores of versions that did not have it."""

import json
import logging
import shutil

import numpy as np
import pytest
import torch

from moon.evidence import Evidence
from moon.recipe import make_recipe
from moon.score.files import read_scores, read_summary
from moon.score.score import score_run
from moon.score.temperatures import current_names, fit_temperature, temperatures, upgraded

FITTED = "fitted on validation images"


@pytest.fixture
def normalised(trained_runs, tmp_path):
    """A run of MOON on normalised logits."""
    run = trained_runs(objective="moon-logitnorm", epochs=6, options={"quiet_epochs": 1})
    return shutil.copytree(run, tmp_path / "normalised")


@pytest.fixture
def plain(trained_runs, tmp_path):
    return shutil.copytree(trained_runs(epochs=6, options={"quiet_epochs": 1}), tmp_path / "plain")


def make_old(folder):
    """Turn scores into those of a version without temperatures, in which NAME meant T = 1."""
    summary = json.loads((folder / "scores.json").read_text())
    for key in ("temperatures", "content_sha256", "arrays_sha256"):
        del summary[key]
    summary["p_unknown"] = summary.pop("p_unknown_unscaled")
    old = {"ebo": "ebo:scaled", "ebo:unscaled": "ebo", "unknown:unscaled": "unknown"}
    summary["detectors"] = {old.get(name, name): value for name, value in summary["detectors"].items()}
    with np.load(folder / "scores.npz") as file:
        arrays = {key: file[key] for key in file.files}
    flat = {"/".join([old.get((parts := key.split("/"))[0], parts[0]), parts[1]]): a for key, a in arrays.items()}
    (folder / "scores.json").write_text(json.dumps(summary))
    np.savez(folder / "scores.npz", **flat)


def test_without_a_suffix_normalised_logits_are_scaled_and_others_are_not(images, normalised, plain):
    names = ["msp", "ebo", "ebo:scaled", "ebo:unscaled", "unknown"]
    result, scores = score_run(normalised, images, names)
    temperature = result["known_scaled"]["temperature"]
    assert result["temperatures"] == {
        "ebo": {"value": temperature, "from": FITTED},
        "ebo:scaled": {"value": temperature, "from": FITTED},
        "ebo:unscaled": {"value": 1.0, "from": "the suffix :unscaled"},
        "unknown": {"value": temperature, "from": FITTED},
        "p_unknown": {"value": temperature, "from": FITTED},
    }
    assert np.array_equal(scores["ebo"]["dtd"], scores["ebo:scaled"]["dtd"])
    assert not np.allclose(scores["ebo"]["dtd"], scores["ebo:unscaled"]["dtd"])
    result, scores = score_run(plain, images, names)
    assert {name: t["from"] for name, t in result["temperatures"].items()} == {
        "ebo": "the loss", "ebo:scaled": FITTED, "ebo:unscaled": "the loss", "unknown": "the loss",
        "p_unknown": "the loss",
    }  # fmt: skip
    assert np.array_equal(scores["ebo"]["dtd"], scores["ebo:unscaled"]["dtd"])
    assert "p_unknown_unscaled" not in result


def test_some_detectors_are_scaled_by_the_suffix_only(images, normalised, plain):
    for folder in (normalised, plain):
        result, scores = score_run(folder, images, ["entropy", "entropy:scaled", "klm", "klm:released:scaled"])
        temperature = {"value": result["known_scaled"]["temperature"], "from": FITTED}
        assert {name: result["temperatures"].get(name) for name in scores} == {
            "entropy": None, "entropy:scaled": temperature, "klm": None, "klm:released:scaled": temperature,
        }  # fmt: skip
        assert not np.allclose(scores["entropy"]["dtd"], scores["entropy:scaled"]["dtd"])
    assert current_names(["klm", "entropy:scaled"], "logitnorm") == {"klm": "klm", "entropy:scaled": "entropy:scaled"}


def test_p_unknown_has_the_temperature_of_the_run(images, normalised):
    result, scores = score_run(normalised, images, ["unknown", "unknown:unscaled"])
    for key, name in (("p_unknown", "unknown"), ("p_unknown_unscaled", "unknown:unscaled")):
        for unknown in images.unknown:
            found = result[key][unknown]["p_unknown_unknown"]
            assert found == pytest.approx(-float(scores[name][unknown].mean()), rel=1e-4)
    assert result["p_unknown"] != result["p_unknown_unscaled"]


def test_scores_of_older_versions_are_unscaled_when_they_are_read_and_merged(images, normalised):
    new, scores = score_run(normalised, images, ["msp", "unknown:unscaled", "ebo:unscaled"])
    make_old(normalised)
    assert set(json.loads((normalised / "scores.json").read_text())["detectors"]) == {"msp", "unknown", "ebo"}
    found, arrays = read_scores(normalised)
    assert found["detectors"] == new["detectors"]
    assert np.array_equal(arrays["ebo:unscaled"]["dtd"], scores["ebo:unscaled"]["dtd"])
    assert found["p_unknown"] == {}
    assert found["p_unknown_unscaled"] == new["p_unknown_unscaled"]
    assert found["temperatures"]["ebo:unscaled"] == {"value": 1.0, "from": "the suffix :unscaled"}
    merged, arrays = score_run(normalised, images, ["ebo"])
    assert list(merged["detectors"]) == ["ebo", "msp", "unknown:unscaled", "ebo:unscaled"]
    assert merged["detectors"]["ebo:unscaled"] == new["detectors"]["ebo:unscaled"]
    assert not np.allclose(arrays["ebo"]["dtd"], arrays["ebo:unscaled"]["dtd"])
    assert merged["temperatures"]["ebo"]["from"] == FITTED
    assert merged["temperatures"]["ebo:unscaled"]["value"] == 1
    assert read_summary(normalised) == merged


def test_older_scaled_scores_of_normalised_logits_have_the_name_without_a_suffix(images, normalised):
    new, scores = score_run(normalised, images, ["msp", "ebo", "ebo:unscaled"])
    make_old(normalised)
    assert list(json.loads((normalised / "scores.json").read_text())["detectors"]) == ["msp", "ebo:scaled", "ebo"]
    found, arrays = read_scores(normalised)
    assert found["detectors"] == new["detectors"]
    assert found["temperatures"] == {name: new["temperatures"][name] for name in ("ebo", "ebo:unscaled")}
    assert all(np.array_equal(arrays[name]["dtd"], scores[name]["dtd"]) for name in scores)


def test_older_scores_in_subfolders_and_other_folders_are_renamed_too(images, normalised, tmp_path, caplog):
    out = tmp_path / "out"
    for settings, where in (({"mirrored": True}, normalised / "mirrored"), ({"out": out}, out)):
        score_run(normalised, images, ["ebo:unscaled"], **settings)
        make_old(where)
        result, _ = score_run(normalised, images, ["msp"], **settings)
        assert list(result["detectors"]) == ["msp", "ebo:unscaled"]
    make_old(out)
    with caplog.at_level(logging.WARNING):  # which run it is of cannot be known there
        read_summary(out)
    assert "of an older version, without temperatures and recipe.json; all are taken as T = 1" in caplog.text


def test_older_scores_of_other_logits_keep_their_names(fabricate, tmp_path):
    folder = fabricate(tmp_path, make_recipe("digits", "moon"), detectors=["msp", "ebo", "ebo:scaled"])
    summary = json.loads((folder / "scores.json").read_text())
    del summary["temperatures"]
    (folder / "scores.json").write_text(json.dumps(summary))
    found, arrays = read_scores(folder)
    assert list(found["detectors"]) == list(arrays) == ["msp", "ebo", "ebo:scaled"]
    assert found["temperatures"] == {
        "ebo": {"value": 1.0, "from": "the loss"},
        "ebo:scaled": {"value": 1.1, "from": FITTED},
    }


def test_what_was_left_out_and_tuned_is_renamed_as_well():
    old = {
        "detectors": {"vim": 1},
        "left_out": {"vim:scaled": "why", "gen": "no"},
        "search": {"vim": {}},
        "p_unknown": {},
    }
    new = upgraded(old, "logitnorm")
    assert new["detectors"] == {"vim:unscaled": 1}
    assert new["left_out"] == {"vim": "why", "gen:unscaled": "no"}
    assert new["search"] == {"vim:unscaled": {}}
    assert new["temperatures"] == {"vim:unscaled": {"value": 1.0, "from": "the suffix :unscaled"}}
    assert old["detectors"] == {"vim": 1}  # the argument is not changed


def test_methods_of_packages_that_are_not_installed():
    assert current_names(["theirs", "ebo"], "logitnorm") == {"theirs": "theirs", "ebo:unscaled": "ebo"}
    assert temperatures(["theirs", "ebo"], "moon", 2.0) == {"ebo": {"value": 1.0, "from": "the loss"}}
    assert upgraded({"detectors": {"ebo": 1}}, "theirs") == {"detectors": {"ebo": 1}, "temperatures": {}}


def test_without_a_fitted_temperature_only_the_others_are_recorded():
    assert temperatures(["ebo", "ebo:unscaled"], "logitnorm", None).keys() == {"ebo:unscaled"}


def test_a_temperature_that_is_not_an_optimum_is_a_warning_and_recorded(images, normalised, monkeypatch, caplog):
    all_right = Evidence(torch.eye(3), torch.zeros(3, 2), 3, torch.arange(3))
    monkeypatch.setattr("moon.score.score.fit_temperature", lambda _, where: fit_temperature(all_right, where))
    result, _ = score_run(normalised, images, ["msp", "ebo", "ebo:unscaled"])
    assert f"{normalised}: the temperature fitted on 3 validation images, T = 0.0" in caplog.text
    assert "usually because these images are all classified correctly" in caplog.text  # or the logits are very large
    assert result["known_scaled"]["no_optimum"] is True
    noted = {name: "no_optimum" in temperature for name, temperature in result["temperatures"].items()}
    assert noted == {"ebo": True, "ebo:unscaled": False, "p_unknown": True}
    caplog.clear()
    fit_temperature(Evidence(torch.eye(3), torch.zeros(3, 2), 3, torch.tensor([0, 1, 1])), "a")  # one is wrong
    assert not caplog.text
