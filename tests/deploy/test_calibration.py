"""The threshold as a file stores it, for all images or for each predicted class."""

import numpy as np
import pytest

from moon import Guarantee, find_threshold
from moon.deploy.calibration import calibrate


def test_one_threshold():
    scores = np.array([3.0, 1.0, 2.0, 5.0, 4.0, 9.0, 8.0, 7.0, 6.0])
    description, tensors = calibrate(scores, np.zeros(9), ["a", "b"], Guarantee(0.8))
    assert description == {"accept": 0.8, "confidence": None, "per_class": False}
    assert tensors["threshold"].tolist() == [find_threshold(scores, 0.8).value] == [2.0]
    assert tensors["calibration"].tolist() == sorted(scores)
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float64)}


def test_a_threshold_for_each_class():
    rng = np.random.default_rng(0)
    predictions = rng.integers(0, 3, 300)
    scores = rng.normal(size=300) + 10 * predictions
    description, tensors = calibrate(scores, predictions, ["a", "b", "c"], Guarantee(0.9, 0.95, per_class=True))
    assert description == {"accept": 0.9, "confidence": 0.95, "per_class": True}
    counts = np.bincount(predictions)
    assert tensors["calibration.counts"].tolist() == counts.tolist()
    for label, group in enumerate(np.split(tensors["calibration"], counts.cumsum()[:-1])):
        assert group.tolist() == sorted(scores[predictions == label])
        assert tensors["threshold"][label] == find_threshold(group, 0.9, 0.95).value


def test_the_guarantee_holds_for_each_class():
    """Over many calibrations, images predicted as each class are accepted with the probability asked for."""
    rng, accepted = np.random.default_rng(0), np.zeros((2000, 2))
    for trial in accepted:
        predictions = np.repeat([0, 1], [40, 25])
        _, tensors = calibrate(rng.normal(size=65), predictions, ["a", "b"], Guarantee(0.9, per_class=True))
        trial[:] = rng.normal(size=2) >= tensors["threshold"]
    error = np.sqrt(0.9 * 0.1 / len(accepted))
    assert (accepted.mean(0) >= 0.9 - 4 * error).all()
    assert (accepted.mean(0) <= 0.9 + 1 / 26 + 4 * error).all()


def test_too_few_images_of_a_class_are_an_error():
    with pytest.raises(ValueError, match=r"'cat' is predicted for 1 calibration image only, but .* needs 19 of each"):
        calibrate(np.zeros(31), np.repeat([0, 1], [30, 1]), ["dog", "cat"], Guarantee(0.95, per_class=True))


@pytest.mark.parametrize("accept", [0.0, 1.0, 95.0, float("nan")])
def test_a_share_must_be_a_fraction(accept):
    with pytest.raises(ValueError, match="accept must be a fraction between 0 and 1"):
        Guarantee(accept)


def test_a_guarantee_in_words():
    assert Guarantee().describe() == "accepts a known image with a probability of 95% or more"
    text = Guarantee(0.99, 0.95, per_class=True).describe()
    assert (
        text == "accepts 99% of the known images or more, with a confidence of 95%, for each predicted class separately"
    )
