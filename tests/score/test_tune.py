import json

import numpy as np
import pytest

from moon.detect import DETECTORS, Detector
from moon.run.images import BenchmarkImages
from moon.score.score import score_run


def test_the_best_candidate_on_validation_unknowns_is_used_and_all_are_recorded(data_root, plain_folder, monkeypatch):
    class Sharpness(Detector):
        """A score whose only good option is 3. K+1 rule: none."""

        grid = {"power": (1.0, 2.0, 3.0)}  # noqa: RUF012

        def __init__(self, power: float = 1.0):
            self.power = power

        def score(self, evidence):
            return evidence.confidence * (1 if self.power == 3 else -1)

    monkeypatch.setitem(DETECTORS, "sharpness", Sharpness)
    images = BenchmarkImages.open(data_root, "mnist", tune_on=("notmnist",))
    result, scores = score_run(plain_folder, images, ["sharpness", "msp"])
    record = result["search"]["sharpness"]
    assert record["on"] == {"notmnist": 30}
    assert [entry["options"] for entry in record["tried"]] == [{"power": 1.0}, {"power": 2.0}, {"power": 3.0}]
    means = [entry["auroc"]["notmnist"] for entry in record["tried"]]
    assert means[0] == means[1] == pytest.approx(1 - means[2])
    assert record["chosen"] == {"power": 3.0 if means[2] > means[0] else 1.0}
    sign = 1 if record["chosen"]["power"] == 3 else -1
    assert np.array_equal(scores["sharpness"]["dtd"], sign * scores["msp"]["dtd"])
    assert "msp" not in result["search"]  # it has no options
    assert json.loads((plain_folder / "scores.json").read_text())["search"] == result["search"]


def test_sets_that_were_tuned_on_are_not_scored(data_root, plain_folder):
    images = BenchmarkImages.open(data_root, "mnist", tune_on=("notmnist",))
    result, scores = score_run(plain_folder, images, ["ebo"])
    assert set(scores["ebo"]) == {"known", "fashionmnist", "dtd"}
    assert "near" in result["detectors"]["ebo"]
    with pytest.raises(ValueError, match="'notmnist' is used for training or tuning"):
        BenchmarkImages.open(data_root, "mnist", near=("notmnist",), tune_on=("notmnist",))


def test_a_set_with_a_separate_validation_split_is_still_scored_unless_images_are_shared(data_root):
    with np.load(data_root / "dtd" / "test.npz") as file:
        pixels, labels = file["images"], file["labels"]
    np.savez(data_root / "dtd" / "val.npz", images=255 - pixels, labels=labels)
    images = BenchmarkImages.open(data_root, "mnist", tune_on=("dtd",))
    assert "dtd" in images.unknown
    assert (images.tuning["dtd"].images != images.unknown["dtd"].images).any()
    pixels[0] = 255 - pixels[0]
    np.savez(data_root / "dtd" / "val.npz", images=255 - pixels, labels=labels)
    with pytest.raises(ValueError, match=r"1 image.* of 'dtd' are among the test images of 'dtd'"):
        BenchmarkImages.open(data_root, "mnist", tune_on=("dtd",))


def test_a_candidate_that_does_not_fit_the_data_is_recorded(data_root, plain_folder):
    images = BenchmarkImages.open(data_root, "mnist", tune_on=("notmnist",))
    result, _ = score_run(plain_folder, images, ["knn"])
    tried = {entry["options"]["k"]: entry for entry in result["search"]["knn"]["tried"]}
    assert "500 known features, found 256" in tried[500]["refused"]
    assert tried[50]["auroc"]
    assert (result["search"]["knn"]["chosen"]["k"] or 0) <= 256


def test_tuned_scores_that_are_replaced_by_untuned_ones_are_named(data_root, tuning_set, plain_folder, caplog):
    score_run(plain_folder, BenchmarkImages.open(data_root, "mnist", tune_on=(tuning_set,)), ["gen", "react", "msp"])
    assert not caplog.records
    result, _ = score_run(plain_folder, BenchmarkImages.open(data_root, "mnist"), ["gen", "msp"])
    assert list(result["search"]) == ["react"]
    (record,) = caplog.records
    assert record.message == (
        f"{plain_folder}: the scores of gen with tuned options are replaced by those with the default ones; to tune "
        "again, name the sets (--tune-on)"
    )
