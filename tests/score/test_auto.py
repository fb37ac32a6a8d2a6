"""`auto`: the detector that is chosen, why, and what is recorded."""

import json
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from moon import BenchmarkImages, Detector, auroc, make_recipe, score_checkpoint, score_run
from moon.data import BENCHMARKS
from moon.detect import DETECTORS
from moon.evidence import Evidence
from moon.grid.grid import scored_with
from moon.recipe import table
from moon.score.auto import best_of, choice_of, choose_by_rule, halves, rank
from moon.score.files import read_summary
from moon.score.scoring import Scoring

FEW = "with at most 10 known classes, trained without normalised logits or features"


@pytest.fixture
def with_unknown(data_root):
    """The images, with a set to choose on."""
    return BenchmarkImages.open(data_root, "mnist", tune_on=("notmnist",))


@pytest.fixture(autouse=True)
def _many_images(monkeypatch):
    """The rule for many training images: the fixtures have few, for which it always names layers."""
    monkeypatch.setattr("moon.score.auto.FEW", 20)


@pytest.mark.parametrize(
    ("objective", "num_known", "detector", "why"),
    [
        ("logitnorm", 10, "fisher", "trained with normalised logits or features"),
        ("moon-logitnorm", 100, "fisher", "trained with normalised logits or features"),
        ("rotpred+logitnorm", 10, "fisher", "trained with normalised logits or features"),
        ("t2fnorm", 10, "fisher", "trained with normalised logits or features"),
        ("cross-entropy", 10, "knn", FEW),
        ("moon", 2, "knn", FEW),
        ("moon", 11, "fisher", "with more than 10 known classes"),
        ("cross-entropy", 1000, "fisher", "with more than 10 known classes"),
    ],
)
def test_the_rule(objective, num_known, detector, why):
    expected = {"detector": detector, "why": f"by the rule for networks {why}"}
    assert choose_by_rule(objective, num_known) == choose_by_rule(objective, num_known, images=50_000) == expected
    assert choose_by_rule(objective, num_known, images=20)["detector"] == "layers"


def test_without_unknown_images_the_rule_chooses(images, plain_folder):
    result, scores = score_run(plain_folder, images, ["auto"])
    assert list(result["detectors"]) == list(scores) == ["knn"]
    assert result["auto"] == choose_by_rule("cross-entropy", 10)
    assert json.loads((plain_folder / "scores.json").read_text())["auto"] == result["auto"]
    expected = score_run(plain_folder, images, ["knn"], out=plain_folder / "other")[1]
    assert np.array_equal(scores["knn"]["dtd"], expected["knn"]["dtd"])


def test_the_choice_is_kept_whatever_is_scored_later(images, data_root, tuning_set, plain_folder, caplog):
    score_run(plain_folder, images, ["msp", "auto"])
    result, _ = score_run(plain_folder, images, ["ebo"])
    assert result["auto"]["detector"] == "knn"
    assert set(result["detectors"]) == {"msp", "knn", "ebo"}
    assert "auto" in scored_with(plain_folder)[0]
    assert not caplog.records
    result, _ = score_run(plain_folder, BenchmarkImages.open(data_root, "mnist", near=(tuning_set,)), ["msp"])
    assert (set(result["detectors"]), result["auto"]) == ({"msp", "knn", "ebo"}, choose_by_rule("cross-entropy", 10))
    assert "auto" not in scored_with(plain_folder)[0]  # it is chosen, but not scored on all these images


def test_unknown_images_choose_the_best_of_all_detectors(with_unknown, plain_folder):
    result, scores = score_run(plain_folder, with_unknown, ["auto", "msp"])
    choice = result["auto"]
    assert (choice["known"], choice["left"], choice["on"]) == (5, 5, {"notmnist": 30})
    scaled = [f"{name}:scaled" for name, kind in table("detector").items() if kind.depends_on_scale]
    assert list(choice["auroc"]) == [*table("detector"), *scaled]
    assert "rotation head" in choice["auroc"]["rotpred"]["refused"]
    assert "K+1-th output" in choice["auroc"]["unknown:scaled"]["refused"]
    usable = {name: found["notmnist"] for name, found in choice["auroc"].items() if "refused" not in found}
    assert usable[choice["detector"]] == max(usable.values())
    assert list(scores) == list(dict.fromkeys([choice["detector"], "msp"]))
    text = f"the best of {len(usable)} by mean AUROC {100 * max(usable.values()):.1f} of validation images against "
    assert choice["why"].startswith(f"{text}notmnist, ")
    assert "dtd" in scores["msp"]
    assert "notmnist" not in scores["msp"]  # it is not scored
    assert read_summary(plain_folder) == result


def test_the_winner_is_tuned_on_the_same_images(with_unknown, plain_folder, monkeypatch):
    class Perfect(Detector):
        """Knows the five validation images that `auto` may use by their number. K+1 rule: none."""

        grid = {"power": (1.0, 2.0)}  # noqa: RUF012

        def __init__(self, power: float = 1.0):
            self.power = power

        def score(self, evidence):
            return torch.full((len(evidence),), float(len(evidence) == 5)) * self.power

    monkeypatch.setitem(DETECTORS, "perfect", Perfect)
    monkeypatch.setattr("moon.score.auto.table", lambda _: ["msp", "perfect"])  # others are perfect here, too
    result, _ = score_run(plain_folder, with_unknown, ["auto"])
    assert result["auto"]["detector"] == "perfect"
    assert result["auto"]["why"].startswith(
        "the best of 2 by mean AUROC 100.0 of validation images against notmnist, msp"
    )
    assert len(result["search"]["perfect"]["tried"]) == 2
    assert result["auto"]["options"] == result["search"]["perfect"]["chosen"] == {"power": 1.0}


def evidence_of(count, seed):
    z = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return Evidence(z, z, 4, torch.arange(count) % 4, (torch.eye(4), torch.zeros(4)))


def test_a_detector_that_remembers_validation_images_is_not_ranked_on_them(monkeypatch):
    class Memory(Detector):
        """Whether an input was seen before. K+1 rule: none."""

        fits_on = "validation"

        def fit(self, evidence):
            self.seen = evidence.features
            return self

        def score(self, evidence):
            return -torch.cdist(evidence.features, self.seen).amin(1)

    monkeypatch.setitem(DETECTORS, "memory", Memory)
    sets = {"fit/val": evidence_of(200, 0), "tune/same": evidence_of(300, 1)}

    def images(count) -> Any:
        return SimpleNamespace(labels=np.zeros(count))

    recipe = make_recipe(BENCHMARKS["digits"], "cross-entropy")
    read = []

    def evidence(detector, key, _):
        read.append((type(detector), key))
        return sets[key]

    found = rank(
        recipe, BENCHMARKS["digits"], images(200), {"same": images(300)}, evidence, lambda: evidence_of(100, 2)
    )  # fmt: skip
    assert [key for kind, key in read if kind is Memory] == ["fit/val", "tune/same"]  # once, not once for each half
    assert found["memory"]["same"] == pytest.approx(0.5, abs=0.1)  # these are not unknown at all
    msp = DETECTORS["msp"]().score
    assert found["msp"]["same"] == pytest.approx(auroc(msp(sets["fit/val"]).numpy(), msp(sets["tune/same"]).numpy()))


def test_the_ranking_is_by_the_mean_over_sets_and_the_first_of_equal_ones_wins():
    found = {"a": {"x": 0.9, "y": 0.5}, "b": {"x": 0.7, "y": 0.7}, "c": {"refused": "no"}, "d": {"x": 0.6, "y": 0.9}}
    assert [name for _, name in best_of(found)] == ["d", "a", "b"]
    with pytest.raises(ValueError, match="auto found no detector that can be used; c: no"):
        choice_of({"c": {"refused": "no"}}, {}, 3, 4)


def test_neither_the_ranking_nor_the_options_depend_on_images_that_are_left_for_a_threshold(monkeypatch):
    """Otherwise the guarantee of `moon pack` would not hold for the detector that is chosen."""

    class Nearest(Detector):
        """The distance to the nearest validation image. K+1 rule: none."""

        fits_on = "validation"
        grid = {"power": (1.0, 2.0)}  # noqa: RUF012

        def __init__(self, power: float = 1.0):
            self.power = power

        def fit(self, evidence):
            self.seen = evidence.features
            return self

        def score(self, evidence):
            return -(torch.cdist(evidence.features, self.seen).amin(1) ** self.power)

    monkeypatch.setitem(DETECTORS, "nearest", Nearest)
    monkeypatch.setattr("moon.score.auto.table", lambda _: ["msp", "knn", "nearest", "fisher"])
    monkeypatch.setattr("moon.score.auto.best_of", lambda _: [(1.0, "nearest")])
    known, unknown, train = evidence_of(40, 0), evidence_of(30, 1), evidence_of(100, 2)
    _, left = halves(40)

    def chosen(validation):
        sets = {"fit/val": validation, "fit/train": train, "tune/same": unknown}
        images = SimpleNamespace(
            benchmark=BENCHMARKS["digits"],
            splits={"val": SimpleNamespace(labels=validation.labels), "train": SimpleNamespace(labels=train.labels)},
            tuning={"same": SimpleNamespace(labels=unknown.labels)},
        )
        cache = SimpleNamespace(get=lambda key, _: sets[key])
        recipe, unused = make_recipe(BENCHMARKS["digits"], "cross-entropy"), cast(Any, None)
        scoring = Scoring(recipe, cast(Any, images), unused, cast(Any, cache), must_fit=True)
        scoring.choose(lambda items, _: items)
        scoring._prepared("nearest", Nearest())
        return scoring.choice["auroc"], scoring.searches["nearest"]["tried"]

    found = chosen(known)
    changed = known.take(torch.arange(40))
    changed.features[left] = 100.0
    changed.logits[left] = -5.0
    assert chosen(changed) == found
    changed.features[halves(40)[0][:3]] = 100.0
    assert chosen(changed) != found


def test_a_choice_that_cannot_be_used_is_an_error_that_names_it(images, plain_folder, monkeypatch):
    def fit(self, evidence):
        raise ValueError("too few inputs")

    monkeypatch.setattr(DETECTORS["knn"], "fit", fit)
    with pytest.raises(ValueError, match="auto chose knn, which cannot be used: too few inputs; name another one"):
        score_run(plain_folder, images, ["auto"])
    result, _ = score_run(plain_folder, images, ["msp", "auto"], skip_unfit=True)  # as in a grid
    assert result["left_out"] == {"knn": "too few inputs"}
    assert result["auto"]["detector"] == "knn"


def test_a_checkpoint_says_what_is_not_known_about_it(images, plain_folder, tmp_path):
    result, _ = score_checkpoint(
        plain_folder / "model.safetensors", "lenet-norm", images, ["auto"], out=tmp_path / "scores"
    )  # fmt: skip
    assert result["auto"]["detector"] == "knn"
    remark = "whether its logits or features were normalised in training, which is taken as no"
    assert result["auto"]["why"].endswith(f"; a checkpoint does not say {remark}")
