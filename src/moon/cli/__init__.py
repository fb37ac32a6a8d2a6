"""The command line, one file per command: `moon COMMAND ...`."""

from moon.cli.main import main

__all__ = ["main"]
