"""Which run a file belongs to: digests of the run's recipe and data, which are written into its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moon.errors import DamagedCheckpoint
from moon.recipe import Recipe
from moon.records import json_digest, read_record

RUN, RECIPE, DATA = "run", "recipe_sha256", "data_sha256"


def identity(folder: Path) -> dict[str, str]:
    """The name of the run of a folder, and the digests of its `recipe.json` and `data.json`.

    Names of classes are not part of the digest, because they may be added later. It is "" if there is no `data.json`.
    """
    recipe = Recipe.load(folder / "recipe.json")
    try:
        facts = read_record(folder / "data.json")
    except FileNotFoundError:
        return {RUN: recipe.name, RECIPE: recipe.digest, DATA: ""}
    except ValueError as error:
        raise DamagedCheckpoint(f"{folder / 'data.json'}: is not the file this run wrote ({error})") from error
    digest = json_digest({key: value for key, value in facts.items() if key != "known"})
    return {RUN: recipe.name, RECIPE: recipe.digest, DATA: digest}


def check_identity(path: Path, found: Mapping[str, Any], folder: Path) -> None:
    """Raise a `DamagedCheckpoint` if a file does not belong to the run of a folder.

    `found` is its content, with the `identity` of its run; files of earlier versions have none and are not checked. It
    is also an error if `data.json` is missing, which says what data the run has.
    """
    if RECIPE not in found:
        return
    own = identity(folder)
    if found[RECIPE] != own[RECIPE]:
        raise DamagedCheckpoint(
            f"{path}: belongs to the run {found.get(RUN)}, not to {own[RUN]}; move it back to its own folder"
        )
    if found.get(DATA) and not own[DATA]:
        raise DamagedCheckpoint(
            f"{folder / 'data.json'}: is missing; restore it, or give the command of the run again, which writes it"
        )
    if own[DATA] and found.get(DATA) and found[DATA] != own[DATA]:
        raise DamagedCheckpoint(f"{path}: belongs to a run on other data than data.json says; restore data.json")
