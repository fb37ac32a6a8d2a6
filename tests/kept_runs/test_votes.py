"""Runs that differ only in their number of votes, from one training."""

import sys
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


def test_what_is_inexact_stays_inexact_and_weights_that_are_lost_are_named(tmp_path, images):
    recipe = recipe_of(2, 1.0)
    other = replace(recipe, vote_share=0.5)
    train_once(recipe, [other], tmp_path, images, "cpu", exact=False)
    result = train_run(other, tmp_path / other.name, images)
    assert (result["exact"], result["inexact"]) == (False, ["trained with exact=False"])
    with pytest.raises(ValueError, match=rf"{recipe.name}: is trained already"):
        train_once(recipe, [], tmp_path, images, "cpu")
    with pytest.raises(ValueError, match=r"differs from .* in more than its votes"):
        train_once(recipe, [replace(other, seed=1)], tmp_path, images, "cpu")


def test_a_finished_run_with_fewer_votes_is_not_overwritten(tmp_path, images):
    recipe = recipe_of(2, 1.0)
    other = replace(recipe, vote_share=0.5)
    train_run(other, tmp_path / other.name, images)
    before = (tmp_path / other.name / "log.jsonl").read_bytes()
    with pytest.raises(ValueError, match=rf"{other.name}: is trained already; choose another folder"):
        train_once(recipe, [other], tmp_path, images, "cpu")
    assert (tmp_path / other.name / "log.jsonl").read_bytes() == before
    assert not (tmp_path / recipe.name).exists()  # refused before anything is trained


def test_more_votes_than_those_of_the_training_are_refused(tmp_path, images):
    recipe = recipe_of(2, 0.5)
    with pytest.raises(ValueError, match=rf"has more votes than {recipe.name}; train it on its own"):
        train_once(recipe, [replace(recipe, vote_share=1.0)], tmp_path, images, "cpu")


def test_a_run_that_was_interrupted_after_a_vote_is_refused(tmp_path, images):
    recipe = recipe_of(3, 1.0)

    def interrupt(record):
        if record["epoch"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(recipe, tmp_path / recipe.name, images, checkpoint_seconds=0, on_epoch=interrupt)
    with pytest.raises(ValueError, match="was interrupted after the first vote"):
        train_once(recipe, [recipe], tmp_path, images, "cpu")


def test_what_cannot_be_trained_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["votes.py", str(tmp_path), "--seed", "0", "--data", str(tmp_path)])
    with pytest.raises(SystemExit, match="cifar10-part"):  # not declared there
        import_module("votes").main()
