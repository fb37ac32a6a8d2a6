"""The examples are run as a reader would run them; where a few epochs are enough for a test, with fewer."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(path: str | Path, *warnings: str, arguments: tuple[str, ...] = ()) -> str:
    filters = [part for warning in ("error", *warnings) for part in ("-W", warning)]
    command = [sys.executable, *filters, EXAMPLES / path, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_is_a_test_for_every_example():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "hf_text.py",
        "hf_vit.py",
        "lightning_fit.py",
        "own_detector.py",
        "plug_in.py",
        "score_a_model.py",
    }


@pytest.mark.slow
def test_plug_in(tmp_path):
    text, epochs = (EXAMPLES / "plug_in.py").read_text(), "epochs: int = 10)"
    assert text.count(epochs) == 1
    (tmp_path / "plug_in.py").write_text(text.replace(epochs, "epochs: int = 6)"))
    output = run(tmp_path / "plug_in.py")
    assert "sparsity 95.0%" in output
    assert float(re.search(r"accuracy ([\d.]+)%", output)[1]) > 90
    digits, letters = map(float, re.search(r"digits ([\d.]+), on letters ([\d.]+)", output).groups())
    assert digits > letters


@pytest.mark.slow
def test_lightning_fit():
    pytest.importorskip("lightning")
    output = run("lightning_fit.py", "ignore::UserWarning", "ignore::FutureWarning")  # of Lightning
    assert "sparsity 95.0%" in output
    assert float(re.search(r"accuracy ([\d.]+)%", output)[1]) > 80
    digits, letters = map(float, re.search(r"digits ([\d.]+), on letters ([\d.]+)", output).groups())
    assert digits > letters


@pytest.mark.parametrize(("name", "least"), [("score_a_model.py", 0.6), ("own_detector.py", 0.9)])
@pytest.mark.slow
def test_scores(name, least):
    found = [float(value) for value in re.findall(r"AUROC ([\d.]+)", run(name))]
    assert len(found) == (5 if name == "score_a_model.py" else 1)
    assert max(found) > least


@pytest.mark.parametrize(
    ("name", "folder", "arguments", "least"),
    [("hf_vit.py", "digits", ("--epochs", "3"), 0.7), ("hf_text.py", "docstrings", (), 0.5)],
)
@pytest.mark.slow
def test_hugging_face(name, folder, arguments, least, tmp_path):
    pytest.importorskip("transformers", reason="needs the extra hf")
    output = run(name, arguments=(*arguments, "--folder", str(tmp_path)))
    assert "sparsity 80.0%" in output
    assert float(re.search(r"accuracy ([\d.]+)%", output)[1]) > 60
    assert max(float(value) for value in re.findall(r"AUROC ([\d.]+)", output)) > least
    assert (tmp_path / folder / "README.md").exists()
