"""The generator of the pages of results, `results/documents.py`: what is stale, unknown or missing is reported."""

import json
from pathlib import Path
from statistics import mean

import documents
import intact
import pytest

from moon.metrics import interval

ROOT = Path(__file__).parents[2]
ACCURACY = "demo/rigl95/plain accuracy"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with one page and the runs of the demo; nothing else is read."""
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "demo").symlink_to(ROOT / "results" / "demo")
    (tmp_path / "README.md").write_text("# A page without numbers\n")
    monkeypatch.setattr(documents, "write_paper_files", lambda kept, check: [])
    monkeypatch.setattr(documents, "write_csv_files", lambda kept, check: [])
    monkeypatch.setattr(intact, "problems", lambda kept: [])
    return tmp_path


def page_of(repository: Path, text: str) -> Path:
    page = repository / "docs" / "results" / "page.md"
    page.write_text(text)
    return page


def true_accuracy() -> float:
    return 100 * mean(accuracies("cross-entropy").values())


def accuracies(objective: str) -> dict[str, float]:
    """The accuracy of the demo with an objective, by seed."""
    found = json.loads((ROOT / "results" / "demo" / "scores.json").read_text())["runs"]
    runs = {name: run["known"]["accuracy"] for name, run in found.items() if f"-{objective}-s" in name}
    return {name.split("-s")[1][0]: accuracy for name, accuracy in runs.items()}


def test_a_changed_number_is_reported_and_rewritten(repository, capsys):
    page = page_of(repository, f"# Title\n\nAccuracy is 12.34<!-- {ACCURACY} --> percent.\n")
    assert documents.main(["--check"], repository) == 1
    right = f"{true_accuracy():.2f}"
    assert capsys.readouterr().err.splitlines() == [
        f"docs/results/page.md:3: says 12.34, should say {right} ({ACCURACY}); run make results"
    ]
    assert documents.main([], repository) == 0
    assert page.read_text() == f"# Title\n\nAccuracy is {right}<!-- {ACCURACY} --> percent.\n"
    assert documents.main(["--check"], repository) == 0


def test_a_changed_table_is_reported_and_rewritten(repository, capsys):
    page = page_of(repository, "above\n\n<!-- table demo -->\n<!-- end -->\n\nbelow\n")
    assert documents.main([], repository) == 0
    fresh = page.read_text()
    assert fresh.startswith("above\n\n<!-- table demo -->\n| ")
    assert fresh.endswith(" |\n<!-- end -->\n\nbelow\n")
    stale = fresh.replace("| plain RigL | 3 |", "| plain RigL | 4 |")
    assert stale != fresh
    page.write_text(stale)
    capsys.readouterr()
    assert documents.main(["--check"], repository) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("docs/results/page.md:6: table demo: says '| plain RigL | 4 |")
    assert "should say '| plain RigL | 3 |" in line
    assert line.endswith("run make results")
    assert documents.main([], repository) == 0
    assert page.read_text() == fresh


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<!-- table dem -->\n<!-- end -->", "table dem: there is no such table (did you mean 'demo'?)"),
        (
            "1.0<!-- demo/rigl95/plan accuracy -->",
            "no run of 'demo/rigl95/plan' is kept (did you mean 'rigl95/plain'?)",
        ),
        ("1.0<!-- dmo/rigl95/plain accuracy -->", "there is no collection 'dmo' (did you mean 'demo'?)"),
        ("1.0<!-- demo/rigl95/plain acuracy -->", "there is no metric 'acuracy' (did you mean 'accuracy'?)"),
        ("1.0<!-- demo/rigl95/plain -->", "is not of the form NETWORK [- NETWORK] METRIC [STATISTIC]"),
        ("1.0<!-- demo/rigl95/plain fisher near -->", "'fisher near' of demo/rigl95/plain was not measured"),
        ("1.0<!-- demo/rigl95/plain accuracy p:summary -->", "only a difference of two networks has a p-value"),
        ("1.0<!-- demo/rigl95/plain/s0 accuracy low -->", "one value, which says nothing about its spread"),
        (
            "1.0<!-- paper/rigl95/moon - plain msp near low -->",
            "the paper's numbers have no seeds, so only the difference is known",
        ),
        (
            "1.0<!-- demo/rigl95/moon - demo/rigl95/plain accuracy p:sumary -->",
            "there is no family of comparisons 'sumary' (did you mean 'summary'?)",
        ),
        ("1.0<!-- demo/rigl95/moon - demo/rigl95/plain accuracy p:rivals -->", "is not in the family 'rivals'"),
        ("about<!-- demo/rigl95/plain accuracy -->", "is neither right after a number, nor a table with <!-- end -->"),
        ("<!-- table demo -->", "is neither right after a number, nor a table with <!-- end -->"),
        ("1.0<!-- nonsense -->", "is neither right after a number, nor a table with <!-- end -->"),
    ],
)
def test_unknown_names_are_reported(repository, capsys, text, reason):
    page = page_of(repository, f"first\n{text}\n")
    for arguments in (["--check"], []):
        assert documents.main(arguments, repository) == 1
        lines = capsys.readouterr().err.splitlines()
        assert lines[0].startswith("docs/results/page.md:2: ")
        assert reason in lines[0]
    assert page.read_text() == f"first\n{text}\n"  # what cannot be written stays as it is


def test_nothing_is_written_unless_all_runs_are_there(repository, monkeypatch, capsys):
    page = page_of(repository, f"12.34<!-- {ACCURACY} -->\n")
    monkeypatch.setattr(intact, "problems", lambda kept: iter(["results/mnist: has 16 runs, not 17"]))
    for arguments in ([], ["--check"]):
        assert documents.main(arguments, repository) == 1
        assert capsys.readouterr() == (
            "",
            "results/mnist: has 16 runs, not 17\nnothing was written or checked: tables need all kept runs\n",
        )
    assert page.read_text() == f"12.34<!-- {ACCURACY} -->\n"


def test_numbers_without_a_source_are_reported(repository, capsys):
    text = "# Version 1.5\n\n`1.5` and [1,234](x1.5.md) of 0.3.0, 12, w_f=0.5\n1.5<!-- fixed --> but 2.5 and -3.75.\n"
    page_of(repository, text)
    (repository / "docs" / "other.md").write_text("Other pages may have 2.5 of anything.\n")
    assert documents.main(["--check"], repository) == 1
    assert capsys.readouterr().err.splitlines() == [
        "docs/results/page.md:3: the number 0.5 has no source",
        "docs/results/page.md:4: the number 2.5 has no source",
        "docs/results/page.md:4: the number -3.75 has no source",
    ]


@pytest.mark.parametrize(
    ("value", "shown", "text"),
    [
        (91.678, "0.0", "91.7"),
        (91.678, "7", "92"),
        (1.26, "+0.0", "+1.3"),
        (-1.26, "+0.0", "-1.3"),
        (-1.26, "0.0", "-1.3"),
        (-0.01, "-0.5", "0.0"),
        (6.345e15, "0.00e16", "0.63e16"),
    ],
)
def test_numbers_keep_their_format(value, shown, text):
    assert documents.formatted(value, shown) == text


def test_an_interval_is_rewritten_with_its_number(repository):
    page = page_of(repository, "It gains 0.0 [0.0, 0.00]<!-- demo/rigl95/moon - plain accuracy --> points.\n")
    assert documents.main([], repository) == 0
    both = [accuracies(name) for name in ("moon", "cross-entropy")]
    differences = [100 * (both[0][seed] - both[1][seed]) for seed in sorted(both[0])]
    low, high = interval(differences)
    text = f"{mean(differences):.1f} [{low:.1f}, {high:.2f}]"
    assert page.read_text() == f"It gains {text}<!-- demo/rigl95/moon - plain accuracy --> points.\n"
