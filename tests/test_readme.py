"""The README and the documentation: their Python runs, their commands parse, and their links are valid."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from torch import nn

from moon import resnet18
from moon.cli.main import parser

ROOT = Path(__file__).parents[1]
PAGES = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))


def text(page: str) -> str:
    return (ROOT / page).read_text()


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text(page), re.DOTALL)


def test_readme_python():
    scoring, training = python_blocks("README.md")
    loader = [(torch.randn(16, 3, 8, 8), torch.arange(16) % 10) for _ in range(8)]
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10)
    )
    names = {"torch": torch, "model": model, "loader": loader}
    names |= dict.fromkeys(("train_loader", "test_loader", "other_loader"), loader)
    exec(scoring, names)
    exec(training, names)
    elected = names["model"]
    assert elected[5].out_features == 11
    weights = torch.cat([elected[0].weight.detach().flatten(), elected[5].weight.detach().flatten()])
    assert (weights == 0).float().mean() > 0.9
    assert names["vote"].voters == 20
    exec(scoring, names)  # the elected model can be scored as well


@pytest.mark.slow
def test_start_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    run, threshold, own_model = python_blocks("docs/start.md")
    exec(run, names)
    torch.manual_seed(0)
    exec(threshold, names)
    assert not names["monitor"].alarm  # test and validation images come from the same distribution
    assert names["threshold"].images == 500
    assert names["threshold"].accepts(names["test"]).mean() > 0.9
    names |= {"model": resnet18(10), "loader": [torch.zeros(2, 3, 8, 8)]}
    exec(f"from moon import open_head, read\n{own_model}", names)
    assert names["evidence"].is_open
    assert names["summary"]["detectors"].keys() == {"msp", "knn"}
    assert isinstance(names["model"], nn.Module)


def test_every_page_with_python_is_executed():
    """`# excerpt` in the first line marks a block that is not."""
    executed = {
        "README.md": "here", "docs/start.md": "here", "docs/use.md": "tests/cli/test_pack.py",
        "docs/loops.md": "tests/integrations/test_loops.py", "docs/nets.md": "tests/cross_check/test_nets.py",
        "docs/huggingface.md": "tests/integrations/test_huggingface_docs.py",
        "docs/resume.md": "tests/integrations/test_resume_page.py",
    }  # fmt: skip
    pages = {page for page in PAGES if any(not block.startswith("# excerpt") for block in python_blocks(page))}
    assert {page for page in pages if not page.startswith("docs/methods/")} == executed.keys()
    for page, test in executed.items():  # docs/methods: tests/test_cards.py
        assert test == "here" or Path(page).name in (ROOT / test).read_text(), page


def commands(page: str) -> list[str]:
    """The lines of indented and fenced blocks that call `moon`, as a shell would get them."""
    blocks = re.findall(r"^    (.*)$", text(page), re.MULTILINE)
    blocks += re.findall(r"^```\n(.*?)^```", text(page), re.MULTILINE | re.DOTALL)
    lines = [part for block in blocks for line in block.splitlines() for part in line.split(" && ")]
    return [line.split(" > ")[0] for line in lines if line.startswith("moon ")]


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith(("docs/LOG", "docs/results"))])
def test_commands_parse(page):
    """Not those of the log and the results, some of which were given to earlier versions."""
    for command in commands(page):
        assert parser().parse_args(shlex.split(command, comments=True)[1:]).act


def test_commands_are_found():
    assert len(commands("README.md")) >= 8
    assert len(commands("docs/grid.md")) >= 8


@pytest.mark.parametrize("page", PAGES)
def test_links(page):
    for target in re.findall(r"\]\(([^)]+)\)", text(page)):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        path = (ROOT / page).parent / file if file else ROOT / page
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path.read_text()), target


def anchors(page: str) -> set[str]:
    """The anchors that GitHub generates from the headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_contributing_is_short():
    assert len(text("CONTRIBUTING.md").splitlines()) < 50
