"""The package moon-runtime, which runs networks as plain data. It is a separate distribution and may be missing."""

from __future__ import annotations

from typing import Any

from moon.errors import MissingPackage


def runtime() -> Any:
    """Import moon_runtime.

    Returns:
        The module.

    Raises:
        MissingPackage: If it is not installed, or was compiled for another machine.
    """
    try:
        import moon_runtime
    except ModuleNotFoundError as error:
        if error.name != "moon_runtime":
            raise
        how = "pip install moon-runtime, or pip install ./runtime in moon's repository"
        raise MissingPackage(f"moon-runtime is not installed ({how})", name="moon_runtime") from None
    except (ImportError, OSError) as error:
        raise MissingPackage(f"moon-runtime cannot be loaded ({error})", name="moon_runtime") from error
    return moon_runtime
