"""The suite of small data: twelve benchmarks of the kind users have, drawn by programs or cut from images of packages.

Half of them are for choosing recipes and detectors, the other half is for testing what was chosen. Each has a known set
`small-NAME`, a near set `small-NAME-near` of other classes from the same sources as the test split, and far sets. No
source (a font, a machine, a plant) is in two splits. This table needs no other package; `make` draws, one module per
benchmark.
"""

from __future__ import annotations

from dataclasses import dataclass

SPLITS: tuple[str, ...] = ("train", "val", "test")
FAR = {"noise": 200, "constant": 200, "blurred": 200, "inverted": 200}  # kinds of far images, and how many


@dataclass(frozen=True)
class Small:
    """A benchmark of the suite.

    Args:
        half: "choosing" or "test".
        known: The known classes.
        near: Classes of the same kind that are not known.
        size: Height and width in pixels.
        channels: 1 or 3.
        counts: Numbers of images in train, val and test; the near set has as many as test.
        sources: Numbers of sources in train, val and test.
        others: Two other benchmarks of the same half, whose test images are far unknown.
        mean: Mean of the training pixels per channel, in [0, 1].
        std: Standard deviation of the training pixels per channel.
        flip: Whether a mirrored image is of the same class.
        package: The package that ships what is drawn.
    """

    half: str
    known: tuple[str, ...]
    near: tuple[str, ...]
    size: int
    channels: int
    counts: tuple[int, int, int]
    sources: tuple[int, int, int]
    others: tuple[str, str]
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    flip: bool = False
    package: str = "PIL"


SUITE = {
    "glyphs": Small(
        "choosing", tuple("ABCDEFGHIJ"), tuple("KLMNOPQRST"), size=28, channels=1, counts=(800, 200, 400),
        sources=(12, 4, 6), others=("words", "leaves"), mean=(0.14,), std=(0.2,), package="matplotlib",
    ),
}  # fmt: skip


def _splits(small: Small) -> dict[str, dict[str, int]]:
    """The sets of a benchmark, by what follows its name, with the number of images in each split."""
    unknown = {"near": small.counts[2]} | FAR
    found = {f"-{kind}": {"test": count} for kind, count in unknown.items()}
    return {"": dict(zip(SPLITS, small.counts, strict=True))} | found


SMALL_SETS = {
    f"small-{name}{kind}": (small.package, splits)
    for name, small in SUITE.items()
    for kind, splits in _splits(small).items()
}
"""The package that each set needs and the number of images in each of its splits."""
