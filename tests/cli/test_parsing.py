"""Misspelled commands, actions, options and values."""

import argparse

import pytest

from moon.cli.parsing import Parser


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("trian",), "moon: unknown command 'trian' (did you mean 'train'?); see moon --help"),
        (("--verison",), "moon: unknown option '--verison' (did you mean '--version'?); see moon --help"),
        (("data", "imprt"), "moon data: unknown action 'imprt' (did you mean 'import'?); see moon data --help"),
        (("data", "--dta", "x", "list"), "moon data: unknown option '--dta' (did you mean '--data'?); see moon data "),
        (("paper", "shwo"), "moon paper: unknown action 'shwo' (did you mean 'show'?)"),
        (
            ("train", "digits", "--objctive=moon"),
            "moon train: unknown option '--objctive' (did you mean '--objective'?)",
        ),
        (("train", "digits", "--lr-start", "1"), "moon train: unknown option '--lr-start' (did you mean '--lr'?)"),
        (("train", "--qqqq"), "moon train: unknown option '--qqqq'; see moon train --help"),
        (
            ("grid", "digits", "--sparcity", "0.9"),
            "moon grid: unknown option '--sparcity' (did you mean '--sparsity'",
        ),
        (("methods", "a", "b"), "moon methods: unrecognized arguments: b; see moon methods --help"),
    ],
)
def test_one_line_with_the_nearest_word_and_exit_code_2(moon, arguments, message):
    code, out, err = moon(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(message), err
    assert len(err.splitlines()) == 1


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    made = Parser(prog="test")
    made.add_argument("name", nargs="?")
    made.add_argument("--title")
    made.add_argument("--size", choices=("small", "large"))
    return made


def test_values_of_options(parser, capsys):
    with pytest.raises(SystemExit):
        parser.parse_args(["--size", "smal"])
    assert capsys.readouterr().err == "test: unknown value 'smal' of --size (did you mean 'small'?); see test --help\n"
    with pytest.raises(SystemExit):
        parser.parse_args(["--size", "x"])
    assert "unknown value 'x' of --size; choose from: small, large" in capsys.readouterr().err


def test_values_that_look_like_options_are_accepted_where_argparse_accepts_them(parser):
    assert parser.parse_args(["--title=--x"]).title == "--x"
    assert parser.parse_args(["--title", "--my title"]).title == "--my title"
    assert parser.parse_args(["--", "--file"]).name == "--file"
