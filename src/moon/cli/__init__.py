"""The command line, one file a verb: `moon VERB ...`."""

from moon.cli.main import main

__all__ = ["main"]
