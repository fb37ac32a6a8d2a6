"""The exceptions that callers tell apart; every other error is a ValueError or comes from Python itself."""

from __future__ import annotations


class DataError(ValueError):
    """Data that cannot be used. The message names the file or line, what is wrong and what to do.

    Example:
        >>> from moon.data import DataError, load
        >>> try:
        ...     load("nowhere", "cifar10", "test")
        ... except DataError as error:
        ...     print(str(error).split(";")[0])
        nowhere/cifar10/test.npz: no such file
    """


class DamagedCheckpoint(Exception):
    """A file of a run differs from what was written."""


class Diverged(Exception):
    """The loss or a weight became NaN or infinite."""


class RunLocked(Exception):
    """Another process uses this run folder."""


class RankLost(Exception):
    """One of the processes that train together ended, or sends no heartbeat."""


class DiskFull(OSError):
    """A file cannot be written because the disk, or the user's quota on it, is full."""


class MissingPackage(ImportError):
    """A package that only some commands need is not installed. The message says how to install it."""
