"""`moon pack` and `moon predict`: from a run to answers."""

import argparse
import csv
import inspect
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from moon.deploy import load
from moon.records import write_record
from moon.run.images import BenchmarkImages
from moon.score.files import load_summary

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def packed(trained_runs, _data, tmp_path_factory):
    """A packed run; a known image is accepted with a probability of 50% or more."""
    from moon.deploy import Guarantee, pack_run

    folder = trained_runs(epochs=6, options={"quiet_epochs": 1})
    path = tmp_path_factory.mktemp("packed") / "digits.moon"
    pack_run(folder, BenchmarkImages.open(_data, "mnist"), path, "mls", Guarantee(0.5), checked=0)
    return path


@pytest.fixture
def photos(data_root, tmp_path):
    """Twelve known images as files, two of them in a subfolder."""
    images = BenchmarkImages.open(data_root, "mnist").splits["test"].images
    (tmp_path / "photos" / "more").mkdir(parents=True)
    for index in range(12):
        folder = tmp_path / "photos" / ("more" if index > 9 else "")
        Image.fromarray(images[index, ..., 0]).save(folder / f"{index:02}.png")
    return tmp_path / "photos"


def test_python_of_the_page_about_use(packed, data_root, tmp_path, monkeypatch, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "use.md").read_text(), re.DOTALL)
    shutil.copy(packed, tmp_path / "digits.moon")
    monkeypatch.chdir(tmp_path)
    images = BenchmarkImages.open(data_root, "mnist").splits["test"].images[:5]
    exec(block, names := {"images": images})
    assert len(names["answers"].verdicts) == 5
    assert "verdict" in capsys.readouterr().out


def test_pack_says_what_the_file_does(moon, trained_runs, data_root, tmp_path):
    run = trained_runs(epochs=6, options={"quiet_epochs": 1})
    code, out, err = moon("pack", run, "-o", tmp_path / "a.moon", "--accept", "0.5", "--data", data_root)
    assert code == 0
    # Whether the network classifies all five correctly, so that no temperature is optimal, depends on rounding.
    is_warned = err.startswith(f"warning: {run}: the temperature fitted on 5 validation images, T = ")
    is_reliable = load(tmp_path / "a.moon").metadata["provenance"]["rejection"]["is_reliable"]
    assert err.count("\n") == is_warned + (not is_reliable)
    assert ('so "unknown" is not reliable; what may help: ' in err) is not is_reliable
    assert load(tmp_path / "a.moon").metadata["provenance"].get("temperature_no_optimum", False) is is_warned
    assert "a.moon: " in out
    assert "kB (" in out
    assert re.search(
        r"detector: layers, with features of 256 training images \([\d.]+ kB of the file; mls keeps none", out
    )
    assert "accepts a known image with a probability of 50% or more; from 5 validation images" in out
    for name in ("known", "notmnist", "fashionmnist", "dtd"):
        assert name in out
    assert re.search(r"^verdict: rejects .* of 9 kinds of other images.*; rejects .* of near unknowns", out, re.M)
    assert out.splitlines()[-1] == f"next: moon predict {tmp_path / 'a.moon'} IMAGE"
    assert (tmp_path / "a.moon").exists()


def test_pack_says_which_detector_auto_chose_and_why(moon, trained_runs, data_root, tmp_path):
    run = trained_runs(epochs=6, options={"quiet_epochs": 1})
    options = ("-o", tmp_path / "a.moon", "--accept", "0.5", "--detector", "auto", "--check", "0")
    code, out, err = moon("pack", run, *options, "--data", data_root)
    assert code == 0, err
    assert "detector: layers, with features of 256 training images" in out
    assert "auto: layers, by the rule for networks with at most 5,000 training images; " in out


def test_pack_marks_the_sets_that_auto_chose_on(moon, trained_runs, data_root, tmp_path):
    run = shutil.copytree(trained_runs(epochs=6, options={"quiet_epochs": 1}), tmp_path / "run")
    code, _, err = moon("score", run, "--detector", "msp", "--data", data_root)
    assert code == 0, err
    summary = load_summary(run)
    choice = {"detector": "gen", "why": "the best", "on": {"notmnist": 30}, "options": {"gamma": 0.5}}
    write_record(run / "scores.json", summary | {"auto": choice})
    options = ("-o", tmp_path / "a.moon", "--accept", "0.5", "--detector", "auto", "--check", "10")
    code, out, err = moon("pack", run, *options, "--data", data_root)
    assert code == 0, err
    assert "auto: gen, the best; tuned to gamma=0.5 (recorded by moon score)" in out
    assert "notmnist (detector chosen on it)" in out
    assert out.count("(detector chosen on it)") == 1
    assert "warning: gen was chosen with all validation images, also those that the threshold comes from" in err
    assert "from 10 validation images" in out  # half of them would have been used for the choice, too
    write_record(run / "scores.json", summary | {"auto": choice | {"left": 5}})
    code, out, err = moon("pack", run, *options, "--data", data_root)
    assert code == 0, err
    assert "gen was chosen" not in err
    assert "from 5 validation images" in out


def test_a_checkpoint_is_packed_like_its_run(moon, trained_runs, data_root, tmp_path):
    run = trained_runs(epochs=6, options={"quiet_epochs": 1})
    options = ("--accept", "0.5", "--detector", "mls", "--check", "0", "--data", data_root)
    given = ("--checkpoint", run / "model.safetensors", "--net", "lenet-norm", "--benchmark", "mnist")
    assert moon("pack", run, "-o", tmp_path / "run.moon", *options)[0] == 0
    code, out, err = moon("pack", *given, "-o", tmp_path / "file.moon", *options)
    assert code == 0, err
    assert "verdict: rejects" in out
    of_run, of_file = load(tmp_path / "run.moon"), load(tmp_path / "file.moon")
    assert np.array_equal(of_run.calibration, of_file.calibration)
    assert of_run.classes == of_file.classes
    assert of_file.metadata["provenance"]["checkpoint"] == "model.safetensors"
    assert "recipe" not in of_file.metadata["provenance"]
    code, _, err = moon("pack", *given[:2], *options)
    assert (code, err) == (2, "moon pack: a checkpoint also needs --net, --benchmark\n")
    code, _, err = moon("pack", *options)
    assert "name a run folder, or a checkpoint (--checkpoint FILE --net NET --benchmark NAME)" in err


def test_pack_a_run_that_was_trained_with_outliers(moon, data_root, tmp_path):
    settings = ("--objective", "outlier-exposure", "--outliers", "dtd", "--epochs", "1", "--log", "none")
    run = tmp_path / "run"
    code, _, err = moon("train", "mnist", "--net", "lenet-norm", "--topology", "static", *settings, "--out", run)
    assert code == 0, err
    assert "warning: with 10 validation images the network cannot be packed" in err
    assert "which needs 37" in err
    options = ("--accept", "0.5", "--detector", "mls", "--force")  # after one epoch
    code, _, err = moon("pack", run, "-o", tmp_path / "a.moon", *options)
    assert code == 0, err
    assert (tmp_path / "a.moon").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--accept", "95"), "argument --accept: must be above 0 and below 1, not 95"),
        (("--confidence", "high"), "argument --confidence: must be a number between 0 and 1, not 'high'"),
        (
            (),
            "10 validation images are too few for a threshold that accepts a known image with a probability of 95% or "
            "more; at least 19 are needed; give more, as the split val (moon data import, or "
            "hold-out --val-share), and train a new run, or accept a lower share (--accept)",
        ),
        (("--accept", "0.5", "--detector", "odin"), "Odin changes each image"),
        (("--accept", "0.5", "--detector", "energies"), "unknown detector 'energies'"),
        (("--accept", "0.5", "--per-class", "--detector", "mls"), "is predicted for"),
        (("--accept", "0.5", "--check", "-1"), "--check must be 0 or more images of each set"),
    ],
)
def test_what_cannot_be_packed_is_one_line(moon, trained_runs, data_root, tmp_path, flags, message):
    run = trained_runs(epochs=6, options={"quiet_epochs": 1})
    detector = () if "--detector" in flags else ("--detector", "mls")
    code, _, err = moon("pack", run, "-o", tmp_path / "a.moon", "--data", data_root, *detector, *flags)
    assert code == 2
    assert message in err
    assert not (tmp_path / "a.moon").exists()


def test_an_unfinished_run_is_not_packed(moon, trained_runs, data_root, tmp_path):
    run = shutil.copytree(trained_runs(epochs=6, options={"quiet_epochs": 1}), tmp_path / "run")
    (run / "result.json").unlink()
    code, _, err = moon("pack", run, "--data", data_root)
    assert code == 2
    assert "the run is not finished" in err
    code, _, err = moon("pack", tmp_path / "nothing")
    assert (code, err) == (2, f"moon pack: {tmp_path / 'nothing'}: no such folder; give the folder of a finished run\n")
    (tmp_path / "empty").mkdir()
    code, _, err = moon("pack", tmp_path / "empty")
    assert (code, err) == (2, f"moon pack: {tmp_path / 'empty'}: is not the folder of a run; it has no recipe.json\n")
    code, _, err = moon("pack", run, "-o", tmp_path / "no" / "x.moon")
    assert (code, err) == (2, f"moon pack: {tmp_path / 'no'}: there is no such folder; create it first\n")


def test_answers_as_a_table(moon, packed, photos):
    code, out, err = moon("predict", packed, photos)
    heading, *lines = out.splitlines()
    assert code == 0
    assert heading.split() == ["file", "verdict", "class", "probability", "p-value"]
    assert len(lines) == 12
    assert lines[-1].split()[0].endswith("photos/more/11.png")
    verdict, label, probability, p_value = lines[0].split()[1:]
    assert verdict in (label, "unknown")
    assert 0 <= float(probability) <= 1
    assert 1 / 11 <= float(p_value) <= 1
    known = sum(line.split()[1] != "unknown" for line in lines)
    assert f"12 images: {known} known, {12 - known} unknown" in err


def test_answers_as_json_and_csv_agree(moon, packed, photos):
    _, out, _ = moon("predict", packed, photos, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    _, out, _ = moon("predict", packed, photos, "--csv", "--threads", "2")
    table = list(csv.DictReader(io.StringIO(out)))
    for row, other in zip(rows, table, strict=True):
        assert [row[key] for key in ("file", "verdict", "class")] == [other[k] for k in ("file", "verdict", "class")]
        assert row["p_value"] == pytest.approx(float(other["p_value"]), abs=1e-6)
        assert row["score"] == pytest.approx(float(other["score"]), rel=1e-5)
        assert row["is_known"] == (row["verdict"] == row["class"])


def test_an_image_on_standard_input(moon, packed, photos, monkeypatch):
    image = (photos / "03.png").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(image)))
    _, out, err = moon("predict", packed, "-", "--json")
    _, expected, _ = moon("predict", packed, photos / "03.png", "--json")
    assert json.loads(out) | {"file": ""} == json.loads(expected) | {"file": ""}
    assert err == ""


def test_images_that_cannot_be_read_do_not_stop_the_others(moon, packed, photos):
    (photos / "bad.png").write_text("not an image")
    Image.fromarray(np.zeros((20, 20), np.uint16)).save(photos / "deep.png")
    code, out, err = moon("predict", packed, photos, "--csv")
    assert code == 3
    rows = {Path(row["file"]).name: row for row in csv.DictReader(io.StringIO(out))}
    assert len(rows) == 14
    assert rows["bad.png"]["error"] == "is not an image in a supported format"
    assert {name for name, row in rows.items() if not row["score"]} == {"bad.png", "deep.png"}
    assert "bad.png: is not an image in a supported format" in err
    assert "deep.png: has more than 8 bits" in err
    assert "2 of 14 images could not be read; the others are answered above" in err.splitlines()[-1]


def test_links_in_a_folder_do_not_stop_the_answers(moon, packed, photos, tmp_path):
    (tmp_path / "links").mkdir()
    for name, target in (("a.png", photos / "00.png"), ("b.png", tmp_path / "nothing"), ("folder", photos)):
        (tmp_path / "links" / name).symlink_to(target)
    code, out, err = moon("predict", packed, tmp_path / "links", "--json")
    a, b = (json.loads(line) for line in out.splitlines())
    assert code == 3
    assert a == json.loads(moon("predict", packed, photos / "00.png", "--json")[1]) | {"file": a["file"]}
    assert b == {"file": str(tmp_path / "links" / "b.png"), "error": "no such file"}
    assert f"{tmp_path / 'links' / 'folder'}: a link to a folder" in err


def test_the_most_probable_classes(moon, packed, photos):
    classes = load(packed).classes
    row = json.loads(moon("predict", packed, photos / "00.png", "--json", "--top-k", "99")[1])
    top = [each["probability"] for each in row["top"]]
    assert {each["class"] for each in row["top"]} == {*classes}
    assert top == sorted(top, reverse=True)
    assert row["top"][0] == {"class": row["class"], "probability": pytest.approx(row["probability"], abs=1e-6)}
    (table,) = csv.DictReader(io.StringIO(moon("predict", packed, photos / "00.png", "--csv", "--top-k", "3")[1]))
    assert [table["class_2"], table["class_3"]] == [each["class"] for each in row["top"][1:3]]
    assert float(table["probability_3"]) == pytest.approx(top[2], abs=1e-4)
    line = moon("predict", packed, photos / "00.png", "--top-k", "2")[1].splitlines()[1]
    assert line.endswith(f"  {row['top'][1]['class']} {top[1]:.3f}")


def test_a_name_that_begins_with_a_hyphen(moon, packed, photos, monkeypatch):
    monkeypatch.chdir(photos)
    (photos / "-a.png").write_bytes((photos / "00.png").read_bytes())
    code, out, err = moon("predict", packed, "-a.png")
    assert (code, out) == (2, "")
    assert "'-a.png' is read as an option; put -- before" in err
    code, out, _ = moon("predict", packed, "--", "-a.png")
    assert code == 0
    assert out.splitlines()[1].startswith("-a.png  ")


def test_an_image_given_twice_is_answered_twice(moon, packed, photos):
    _, out, err = moon("predict", packed, photos / "00.png", photos / "00.png", "--json")
    first, second = (json.loads(line) for line in out.splitlines())
    assert first == second
    assert "2 images: " in err


def test_the_order_of_files_is_no_drift():
    """Scores that are sorted, as in folders of classes, are those of the calibration images all the same."""
    from moon_runtime.__main__ import _drift

    calibration = np.random.default_rng(0).normal(size=500)
    classifier = SimpleNamespace(calibration=calibration, accept=0.95)
    scores = sorted(np.random.default_rng(1).normal(size=1000).tolist())
    assert _drift(classifier, [*scores, None], 0.01) is None
    assert "differ" in _drift(classifier, [score - 1 for score in scores], 0.01)
    assert _drift(classifier, [None], 0.01) is None


def test_a_changed_distribution_is_reported(moon, packed, tmp_path):
    (tmp_path / "black").mkdir()
    for index in range(80):
        Image.new("L", (28, 28), index % 2).save(tmp_path / "black" / f"{index}.png")
    _, _, err = moon("predict", packed, tmp_path / "black")
    assert "warning: the scores of these 80 images differ from those of the calibration images" in err


@pytest.mark.parametrize(
    ("make", "code", "message"),
    [
        (lambda path, good: None, 2, "no such run folder or .moon file"),
        (lambda path, good: path.write_bytes(good[:-100]), 4, "copy it again, or write it again with `moon pack`"),
        (lambda path, good: path.write_bytes(good[:500] + b"?" + good[501:]), 4, "x.moon: "),
        (lambda path, good: path.write_text("hello"), 4, "x.moon: "),
        (lambda path, good: path.write_bytes(b""), 4, "x.moon: "),
        (lambda path, good: path.mkdir(), 2, "pack a run first"),
    ],
    ids=["missing", "truncated", "damaged", "foreign", "empty", "folder"],
)
def test_bad_files_are_one_line(moon, packed, photos, tmp_path, make, code, message):
    make(tmp_path / "x.moon", packed.read_bytes())
    found, out, err = moon("predict", tmp_path / "x.moon", photos / "00.png")
    assert (found, out) == (code, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_missing_images_are_one_line(moon, packed, tmp_path):
    code, out, err = moon("predict", packed, tmp_path / "no.png")
    assert out == ""
    assert (code, err.splitlines()) == (3, [f"moon predict: {tmp_path / 'no.png'}: no such file"])
    (tmp_path / "empty").mkdir()
    code, _, err = moon("predict", packed, tmp_path / "empty")
    assert (code, err.splitlines()) == (3, [f"moon predict: {tmp_path / 'empty'}: no images in this folder"])
    code, out, err = moon("predict", packed, "")
    assert (code, out) == (2, "")
    assert err == "moon predict: the name of an image is empty; is a variable of the shell not set?\n"
    code, _, err = moon("predict", packed, tmp_path / "a.png", tmp_path / "b.png")
    assert (code, err.splitlines()[-1]) == (3, "moon predict: 2 of 2 images could not be read")


def test_predict_does_not_import_torch(packed, photos):
    program = (
        "import sys; from moon.cli.main import main\n"
        f"try: main(['predict', {str(packed)!r}, {str(photos / '00.png')!r}])\n"
        "finally: print('torch' in sys.modules, 'scipy' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "False False"


def test_predict_has_the_options_and_the_suffixes_of_the_runtime():
    from moon_runtime.__main__ import add_options
    from moon_runtime.images import SUFFIXES

    from moon.cli.predict import describe
    from moon.data.folders import IMAGE_SUFFIXES

    ours, theirs = argparse.ArgumentParser(), argparse.ArgumentParser()
    describe(ours)
    add_options(theirs)
    assert vars(ours.parse_args(["a", "b"])) == vars(theirs.parse_args(["a", "b"])) | {"file": Path("a")}
    assert SUFFIXES == IMAGE_SUFFIXES


def test_the_defaults_are_those_of_the_library():
    """The command line repeats them, because it must not import PyTorch to show its help."""
    from moon.cli.main import parser
    from moon.deploy import pack_run

    given, library = parser().parse_args(["pack", "run"]), inspect.signature(pack_run).parameters
    for flag, name in (("detector", "detector"), ("bank", "bank"), ("precision", "precision"), ("check", "checked")):
        assert getattr(given, flag) == library[name].default
