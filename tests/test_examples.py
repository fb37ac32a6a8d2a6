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


def with_epochs(epochs: int, name: str, tmp_path: Path) -> Path:
    """A copy of an example that trains for fewer epochs."""
    text, found = re.subn(r"(?<=def main\(epochs: int = )\d+(?=\))", str(epochs), (EXAMPLES / name).read_text())
    assert found == 1
    (tmp_path / name).write_text(text)
    return tmp_path / name


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
    output = run(with_epochs(6, "plug_in.py", tmp_path))
    assert "sparsity 95.0%" in output
    assert float(re.search(r"accuracy ([\d.]+)%", output)[1]) > 90
    digits, letters = map(float, re.search(r"digits ([\d.]+), on letters ([\d.]+)", output).groups())
    assert digits > letters


@pytest.mark.slow
def test_lightning_fit(tmp_path):
    pytest.importorskip("lightning")
    example = with_epochs(3, "lightning_fit.py", tmp_path)
    output = run(example, "ignore::UserWarning", "ignore::FutureWarning")  # of Lightning
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
    [("hf_vit.py", "digits", ("--epochs", "2"), 0.7), ("hf_text.py", "docstrings", (), 0.5)],
)
@pytest.mark.slow
def test_hugging_face(name, folder, arguments, least, tmp_path):
    pytest.importorskip("transformers", reason="needs the extra hf")
    output = run(name, arguments=(*arguments, "--folder", str(tmp_path)))
    assert "sparsity 80.0%" in output
    assert float(re.search(r"accuracy ([\d.]+)%", output)[1]) > 60
    assert max(float(value) for value in re.findall(r"AUROC ([\d.]+)", output)) > least
    assert (tmp_path / folder / "README.md").exists()
