"""Help fits into 80 columns, is grouped, and scripts get JSON, silence and completion."""

import json
import shutil
import subprocess

import pytest

from moon.cli.arguments import _TOPICS
from moon.cli.main import GROUPS, VERBS, parser
from moon.recipe import PARAMETERS


@pytest.fixture(autouse=True)
def narrow(moon, monkeypatch):  # `moon` sets another width
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_fits_into_80_columns(moon, verb):
    code, out, _ = moon(*([verb] if verb else []), "--help")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80


def test_top_help_lists_verbs_by_topic(moon):
    _, out, _ = moon("--help")
    places = [out.index(f"\n{topic}:\n") for topic in GROUPS]
    assert places == sorted(places)
    assert all(f"\n  {verb} " in out for verb in VERBS)


def test_options_of_a_run_are_grouped(moon):
    _, out, _ = moon("train", "--help")
    assert out.startswith("usage: moon train [options] benchmark\n")
    sparsity = out[out.index("\nsparsity:") : out.index("\noptimization:")]
    assert "--topology" in sparsity
    assert "--epochs" not in sparsity
    assert {name for names in _TOPICS.values() for name in names} <= PARAMETERS.keys()


def test_json_of_training_and_quiet(moon, tmp_path):
    settings = (
        "digits",
        "--objective",
        "cross-entropy",
        "--topology",
        "static",
        "--epochs",
        "1",
        "--batch-size",
        "512",
    )
    run = ("train", *settings, "--out", str(tmp_path / "run"), "--log", "none")
    code, out, _ = moon(*run, "--json")
    facts = json.loads(out)
    assert (code, facts["folder"]) == (0, str(tmp_path / "run"))
    assert 0 <= facts["known"]["accuracy"] <= 1
    assert moon(*run, "--quiet")[:2] == (0, "")
    (scored,) = json.loads(moon("score", str(tmp_path / "run"), "--detector", "msp", "--json")[1])
    assert scored["detectors"]["msp"]["near"]["auroc"] > 0


def test_an_error_is_reported_in_spite_of_quiet(moon):
    code, out, err = moon("train", "no-such-set", "--quiet")
    assert code != 0
    assert not out
    assert "no-such-set" in err


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion(moon, shell, tmp_path):
    code, out, _ = moon("completion", shell)
    assert code == 0
    assert "moon-logitnorm" in out
    assert all(verb in out for verb in VERBS)
    if shutil.which(shell):
        script = tmp_path / "script"
        script.write_text(out)
        subprocess.run([shell, "-n", script], check=True)


def test_completion_does_not_change_what_is_parsed():
    assert parser().parse_args(["train", "my-own-set", "--objective", "mine"]).objective == "mine"
