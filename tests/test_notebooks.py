"""The notebooks run from the first cell to the last, with fewer epochs, and are stored without output."""

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the kernel's client, not of moon
def test_notebook_runs(name, tmp_path):
    text = (EXAMPLES / name).read_text()
    written, enough = ("epochs=2,", "epochs=1,") if name == "researcher.ipynb" else ("epochs=10)", "epochs=3)")
    assert text.count(written) == 1
    notebook = nbformat.reads(text.replace(written, enough), as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    printed = json.dumps(notebook.cells)
    assert "fisher" in printed if name == "researcher.ipynb" else "unknown" in printed
    assert (tmp_path / "runs").is_dir()


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_has_no_output(name):
    for cell in json.loads((EXAMPLES / name).read_text())["cells"]:
        assert not cell.get("outputs"), cell["source"]
        assert cell.get("execution_count") is None
