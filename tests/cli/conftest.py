"""Fixtures that run commands."""

import pytest

from moon import cli


@pytest.fixture
def moon(data_root, tmp_path, monkeypatch, capsys):
    """A function that runs a command in an empty folder and returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOON_DATA", str(data_root))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return run
