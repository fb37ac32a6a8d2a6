"""Runs that differ only in their number of votes, from one training."""

from dataclasses import replace
from importlib import import_module

import pytest
from safetensors.torch import load_file

from moon import BenchmarkImages, make_recipe, train_run
from moon.run.log import read_log

train_once = import_module("votes").train_once


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return BenchmarkImages.open(tmp_path_factory.mktemp("data"), "digits")


def recipe_of(epochs, share, **settings):
    settings = {"net": "lenet", "batch_size": 1024, "t_end_share": 0.25, "topology": "static"} | settings
    return make_recipe("digits", "moon", epochs=epochs, vote_share=share, **settings)


@pytest.mark.slow
def test_each_run_ends_as_if_trained_alone(tmp_path, images):
    recipe = recipe_of(4, 0.75, topology="rigl", batch_size=512)
    others = [replace(recipe, vote_share=share) for share in (0.5, 0.25, 0.0)]
    train_once(recipe, others, tmp_path, images, "cpu")
    for votes, other in zip((2, 1, 0), others, strict=True):
        result = train_run(other, tmp_path / other.name, images)
        alone = train_run(other, tmp_path / "alone" / other.name, images)
        assert result["voters"] == votes
        for key in ("known", "voters", "exact", "density"):
            assert result[key] == alone[key], (votes, key)
        folders = tmp_path / other.name, tmp_path / "alone" / other.name
        shared, own = (load_file(folder / "model.safetensors") for folder in folders)
        assert all(value.equal(own[key]) for key, value in shared.items()), votes
        losses, alone_losses = ([line["loss"] for line in read_log(folder)] for folder in folders)
        assert losses == alone_losses


def test_a_finished_run_with_fewer_votes_is_not_overwritten(tmp_path, images):
    recipe = recipe_of(2, 1.0)
    other = replace(recipe, vote_share=0.5)
    train_run(other, tmp_path / other.name, images)
    before = (tmp_path / other.name / "log.jsonl").read_bytes()
    with pytest.raises(ValueError, match=rf"{other.name}: is trained already; choose another folder"):
        train_once(recipe, [other], tmp_path, images, "cpu")
    assert (tmp_path / other.name / "log.jsonl").read_bytes() == before
    assert not (tmp_path / recipe.name).exists()  # refused before anything is trained
