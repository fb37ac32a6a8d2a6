"""The exit code of an error, and the line to print."""

from __future__ import annotations

from moon.errors import DamagedCheckpoint, DataError, DiskFull, Diverged, MissingPackage, RankLost, RunLocked
from moon.files import full_disk
from moon.recipe import PARAMETERS

# The first match wins, because a DataError is also a ValueError.
EXIT_CODES: dict[type[Exception], int] = {
    DiskFull: 7,
    DataError: 3,
    DamagedCheckpoint: 4,
    Diverged: 5,
    RunLocked: 6,
    RankLost: 8,
    ValueError: 2,
    MissingPackage: 2,
    OSError: 3,
    Exception: 1,
}

# Arguments of the library that are flags but not parameters of a run.
_FLAGS = {
    "accept": "--accept",
    "data": "--data",
    "force": "--force",
    "image_root": "--root",
    "replace": "--replace",
    "val_share": "--val-share",
}


def explained(error: Exception) -> tuple[int, str]:
    """The exit code of an error and its message in the words of the command line."""
    error = full_disk(error) or error
    code = next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
    text = with_flags(str(error))
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f"{error.filename}: "
        text = f"{where}{error.strerror[0].lower()}{error.strerror[1:]}"
    if code == 1:
        text = f"{type(error).__name__}: {(text.splitlines() or [''])[0]}"
        if isinstance(error, MemoryError) or "can't allocate memory" in text or "out of memory" in text:
            text = "out of memory; training with smaller batches (--batch-size) or a smaller network needs less"
        text += " (--debug shows the traceback)"
    return code, text


def with_flags(message: str) -> str:
    """The message of the library with flags for the parameters that it names in parentheses, or that it begins with."""
    flags = {parameter.setting: f"--{parameter.name.replace('_', '-')}" for parameter in PARAMETERS.values()} | _FLAGS
    for setting, flag in flags.items():
        message = message.replace(f"({setting})", f"({flag})")
        if message.startswith(f"{setting} ") and flag != f"--{setting}":  # a name that a user has not seen
            message = flag + message.removeprefix(setting)
    return message
