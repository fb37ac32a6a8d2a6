"""Terminals that are narrow or lack characters, and messages of the library."""

import io
import logging
import shutil
import sys

import pytest
from rich.console import Group
from rich.table import Table

from moon import cli
from moon.cli import methods
from moon.cli.output import printable, replace_unprintable, show_group, show_table
from moon.errors import DataError
from moon.results.layout import compact_table


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_characters_that_the_terminal_lacks_become_ascii(monkeypatch, encoding):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    replace_unprintable()
    print("✓here ✗gone 1.0±0.2 more… K×K 語 \udcff")
    stream.flush()
    shown = stream.buffer.getvalue().decode(encoding)
    assert (
        shown
        == {
            "ascii": "+here -gone 1.0+-0.2 more... KxK ? ?\n",
            "latin-1": "+here -gone 1.0±0.2 more... K×K ? ?\n",
            "utf-8": "✓here ✗gone 1.0±0.2 more… K×K 語 ?\n",
        }[encoding]
    )


@pytest.mark.parametrize("arguments", [("methods",), ("data",), ("--help",), ("train", "--help")])
def test_commands_print_to_an_ascii_terminal(data_root, monkeypatch, tmp_path, arguments):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOON_DATA", str(data_root))
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    assert stop.value.code == 0


def numbers() -> Table:
    table = Table("name", title="Times")
    for heading in ("milliseconds", "ratio"):
        table.add_column(heading, no_wrap=True, justify="right")
    table.add_row("cross-entropy", "12345.678", "1.000 ±0.001")
    table.add_row("moon", "23456.789", "")
    return table


def test_a_table_that_is_too_wide_is_printed_in_lines(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    show_table(numbers())
    assert "│ 12345.678 │ 1.000 ±0.001 │" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setenv("COLUMNS", "30")
    show_table(numbers())
    assert capsys.readouterr().out == (
        "Times\n\nname: cross-entropy\nmilliseconds: 12345.678\nratio: 1.000 ±0.001\n"
        "\nname: moon\nmilliseconds: 23456.789\n\n"
    )


def scored() -> Group:
    table = compact_table()
    table.add_column("detector", no_wrap=True)
    table.add_column("method")
    for heading in ("cifar100-part", "near\nmean", "far\nmean"):
        table.add_column(heading, justify="right")
    table.add_row("msp", "LogitNorm + vote", *["71.3 ± 2.4\n100.0 ± 10.6"] * 3)
    table.add_row("fisher:msp+knn", "moon-logitnorm lr_start=0.1", *["-"] * 3)
    return Group("AUROC %", table)


@pytest.mark.parametrize("width", [40, 47, 59, 72, 80, 99])
def test_no_number_is_cut_and_no_word_broken_at_any_width(monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    show_group(scored())
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    for number in ("71.3", "± 2.4", "100.0", "± 10.6"):
        assert out.count(number) == 3
    for word in ("LogitNorm", "fisher:", "knn", "moon-", "logitnorm", "lr_start=", "0.1", "cifar100-", "part"):
        assert word in out
    rows = [line for line in out.splitlines() if "71.3" in line or "± 2.4" in line]
    is_split = out.count("msp") > 2  # into tables with some of the columns
    assert is_split or all(row.count("71.3") in (0, 3) and row.count("± 2.4") in (0, 3) for row in rows)
    assert not is_split or width < 50


def test_a_warning_of_the_library_is_one_line_on_stderr(moon, monkeypatch):
    def act(_):
        logger = logging.getLogger("moon.data")
        logger.warning("first\n  second %s", "third")
        logger.info("told")

    monkeypatch.setattr(methods, "act", act)
    assert moon("methods") == (0, "told\n", "warning: first second third\n")


HOSTILE = "a\x1b[2Jb\x9bc\u202ed\ne\rf\x07g\u2028h"
SHOWN = r"a\x1b[2Jb\x9bc\u202ed\ne\rf\x07g\u2028h"


def test_characters_that_control_a_terminal_are_escaped():
    assert printable(HOSTILE) == SHOWN
    assert printable("Ünïcödé 語 ✓ [/x]") == "Ünïcödé 語 ✓ [/x]"
    assert printable("\udcff") == r"\udcff"
    assert printable("x" * 5000) == "x" * 4000 + "... (1,000 more characters)"


def test_messages_are_one_line_without_control_characters(moon, monkeypatch):
    def act(_):
        logging.getLogger("moon.data").info("told: %s", HOSTILE)
        raise DataError(f"{HOSTILE}: cannot be read")

    monkeypatch.setattr(methods, "act", act)
    assert moon("methods") == (3, f"told: {SHOWN}\n", f"moon methods: {SHOWN}: cannot be read\n")


@pytest.mark.slow
@pytest.mark.parametrize("columns", ["200", "60"])
def test_brackets_in_paths_are_no_markup(moon, tmp_path, data_root, trained_runs, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    place = tmp_path / "a[b]c[" / "d]"  # a[b]c[/d]
    shutil.copytree(data_root, place / "data")
    for seed in (0, 1):
        shutil.copytree(trained_runs(epochs=3, objective="cross-entropy", seed=0), place / "runs" / f"copy{seed}")
    for arguments in (
        ("data", "--data", place / "data"),
        ("data", "verify", "--data", place / "data"),
        ("grid", "mnist", "--plan", "--out", place / "grid", "--data", place / "data"),
        ("score", place / "runs", "--detector", "msp", "--data", place / "data"),
        ("report", place / "runs", "--out", place / "report.html"),
    ):
        code, out, err = moon(*arguments)
        assert code == 0, err
        assert "MarkupError" not in err
    code, out, _ = moon("score", place / "runs", "--detector", "msp", "--data", place / "data")
    assert "a[b]c[/d]/runs/copy1" in "".join(out.split())
