"""Whether all kept runs are there and can be read: tables must not be made of fewer runs without a word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from kept import Kept, read_all
from networks import COLLECTIONS, FOLDERS, OTHER_FOLDERS

MIRRORED = {"cifar10-300": 5, "cifar10-search": 9}  # runs that were also scored with mirrored images


def problems(kept: Kept) -> Iterator[str]:
    """What is missing, damaged or not counted, one line each."""
    yield from _miscounted(kept, "*/*/recipe.json", FOLDERS, "runs", "results/networks.py")
    yield from _miscounted(kept, "*/*/mirrored/scores.json", MIRRORED, "mirrored runs", "results/intact.py")
    for name in COLLECTIONS:
        yield from _errors(lambda name=name: kept.collection(name))
    for folder in OTHER_FOLDERS:
        yield from _errors(lambda folder=folder: read_all(kept.results / folder))


def _miscounted(kept: Kept, pattern: str, expected: Mapping[str, int], what: str, file: str) -> Iterator[str]:
    found = Counter(path.relative_to(kept.results).parts[0] for path in kept.results.glob(pattern))
    for folder in sorted(expected.keys() | found):
        number = expected.get(folder, 0)
        if found[folder] != number:
            yield (
                f"results/{folder}: has {found[folder]} {what}, not {number}; restore what is missing (git restore "
                f"results), or, if you keep other runs now, change the number in {file}"
            )


def _errors(read: Callable[[], object]) -> Iterator[str]:
    try:
        read()
    except ValueError as error:
        yield from str(error).splitlines()
