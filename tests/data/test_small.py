import numpy as np
import pytest

from moon.data import BENCHMARKS
from moon.data.embedded import EMBEDDED_SPLITS
from moon.data.small import FAR, SMALL_SETS, SUITE
from moon.data.small.make import Source, make_small


@pytest.mark.parametrize("name", ["glyphs", *(pytest.param(n, marks=pytest.mark.slow) for n in SUITE if n != "glyphs")])
def test_a_benchmark_is_as_its_table_says(name):
    small, sets = SUITE[name], {}
    for split, count in zip(("train", "val", "test"), small.counts, strict=True):
        sets[split] = data = make_small(f"small-{name}", split)
        assert data.images.shape == (count, small.size, small.size, small.channels)
        assert data.classes == small.known
        assert np.ptp(np.bincount(data.labels, minlength=len(small.known))) <= 1
    sets["near"] = make_small(f"small-{name}-near", "test")
    assert set(sets["near"].labels) == {-1}
    images = [image.tobytes() for data in sets.values() for image in data.images]
    assert len(set(images)) == len(images)
    pixels = sets["train"].images / 255
    np.testing.assert_allclose(pixels.mean((0, 1, 2)), small.mean, atol=0.006)
    np.testing.assert_allclose(pixels.std((0, 1, 2)), small.std, atol=0.006)
    again = make_small(f"small-{name}", "val")
    np.testing.assert_array_equal(again.images, sets["val"].images)


@pytest.mark.parametrize("name", ["glyphs", "shapes"])
def test_far_sets(name):
    far = {kind: make_small(f"small-{name}-{kind}", "test").images.astype(float) for kind in FAR}
    test = make_small(f"small-{name}", "test").images[:200].astype(float)
    for images in far.values():
        assert images.shape == test.shape
    assert np.ptp(far["constant"], axis=(1, 2)).max() <= 4
    np.testing.assert_array_equal(far["inverted"], 255 - test)
    assert np.median(far["blurred"].std((1, 2)) / test.std((1, 2))) < 0.6
    assert far["noise"].std((1, 2)).min() > 8


def test_the_halves_do_not_share_images():
    for name, small in SUITE.items():
        assert {SUITE[other].half for other in small.others} == {small.half}
        assert name not in small.others
        assert {*small.known}.isdisjoint(small.near)
        assert BENCHMARKS[f"small-{name}"].num_known == len(small.known)
    assert SMALL_SETS.keys() <= EMBEDDED_SPLITS.keys()


def test_a_source_is_the_same_for_all_its_images_and_for_no_other():
    assert Source("words", 3).rng().random() == Source("words", 3).rng().random()
    assert len({Source(name, number).rng().random() for name in SUITE for number in range(9)}) == 9 * len(SUITE)
