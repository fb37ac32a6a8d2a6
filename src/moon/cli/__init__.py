"""The command line, one file per verb: `moon VERB ...`."""

from moon.cli.main import main

__all__ = ["main"]
