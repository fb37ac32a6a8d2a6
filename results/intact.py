"""Whether all kept runs are there and as they were kept: tables must not be made of fewer runs without a word."""

from __future__ import annotations

from collections.abc import Iterator

from compact import damaged
from kept import Kept
from networks import COLLECTIONS, FOLDERS


def problems(kept: Kept) -> Iterator[str]:
    """What is missing, changed or in no collection, one line each."""
    for folder in sorted({path.parents[1].name for path in kept.results.glob("*/*/recipe.json")} - {*FOLDERS}):
        yield f"results/{folder} is in no collection; add it to COLLECTIONS in results/networks.py"
    for name, collection in COLLECTIONS.items():
        found = [line for folder in collection.folders for line in damaged(kept.results / folder)]
        yield from found
        if not found:
            try:
                kept.collection(name)
            except ValueError as error:
                yield str(error)
