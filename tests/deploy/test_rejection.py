"""Probes are the same in every call, and their verdict says what was measured, good or bad."""

import numpy as np
import pytest

from moon.data import BENCHMARKS, DataSet
from moon.deploy import rejection
from moon.deploy.probes import PROBES, make_probes


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 20, 28)])
def test_probes_have_the_networks_size_and_differ(shape):
    known = np.random.default_rng(0).integers(0, 256, (7, *shape[1:], shape[0])).astype(np.uint8)
    probes = make_probes(shape, known)
    assert len(probes) >= 6
    for name, images in probes.items():
        assert (images.shape, images.dtype) == ((PROBES, *shape[1:], shape[0]), np.uint8)
        assert len({image.tobytes() for image in images}) > 0.8 * PROBES or name in ("plain", "shuffled")
        assert np.ptp(images.mean((1, 2, 3))) > 1
    again = make_probes(shape, known)
    assert all(np.array_equal(again[name], probes[name]) for name in probes)
    sums = [np.sort(image.ravel()).tobytes() for image in known]
    assert all(np.sort(image.ravel()).tobytes() in sums for image in probes["shuffled"])


class Packed:
    """A packed network that accepts `share` of the probes, evenly."""

    def __init__(self, share):
        self.share = share

    def answer(self, images, benchmark):
        return {"is_known": np.arange(len(images.labels)) % 100 < 100 * self.share}


KNOWN = DataSet(np.zeros((5, 28, 28, 1), np.uint8), np.zeros(5, np.int64))
SETS = {"known": {}, "letters": {"rejected": 0.411}, "photos": {"rejected": 0.7}, "textures": {"rejected": 0.999}}
BAD = ', so "unknown" is not reliable'


@pytest.mark.parametrize(
    ("accepted", "measured", "verdict", "warned"),
    [
        (0.0, {}, "rejects 100% of 8 kinds of other images; near unknowns were not measured", ""),
        (0.3, SETS, "rejects 70 to 99% of 10 kinds of other images (least: noise); rejects 41% of near unknowns "
         "(letters)", ""),
        (0.0, SETS, "rejects 70 to 100% of 10 kinds of other images (least: photos); rejects 41% of near unknowns "
         "(letters)", ""),
        (0.6, {}, f"rejects 40% of 8 kinds of other images (least: noise){BAD}; near unknowns were not measured",
         "accepts 60% of noise, 60% of clouds"),
        (0.0, {"photos": {"rejected": 0.2}}, f"rejects 20 to 100% of 9 kinds of other images (least: photos){BAD}"
         "; near unknowns were not measured", "accepts 80% of photos, images of no class, as known"),
    ],
)  # fmt: skip
def test_the_verdict_says_what_was_measured(accepted, measured, verdict, warned, caplog):
    found = rejection.measure_rejection(Packed(accepted), BENCHMARKS["digits"], KNOWN, measured)
    assert found["verdict"] == verdict
    assert {*found["probes"].values()} == {round(1 - accepted, 4)}
    assert found["is_reliable"] is not bool(warned)
    assert len(caplog.records) == bool(warned)
    assert warned in caplog.text
    assert ("--outliers" in caplog.text) is bool(warned)
