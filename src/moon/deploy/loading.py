"""Load what was trained: a run as a PyTorch network, or a packed network that answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from moon.data.limits import open_file
from moon.errors import DamagedCheckpoint
from moon.export.runtime import runtime

if TYPE_CHECKING:
    import torch


def load(path: Path | str, device: torch.device | str = "cpu", *, threads: int = 1, limit: float = 1) -> Any:
    """Load a run or a packed network. The data root is not needed.

    Args:
        path: The folder of a finished run, or a `.moon` file.
        device: Where to put the network of a run.
        threads: How many threads a packed network uses.
        limit: More than 1 for a `.moon` file that you trust and that needs more memory or time than a file may
            (`moon_runtime.Network`).

    Returns:
        The network of a run, an `nn.Module` in evaluation mode; or the `moon_runtime.Classifier` of a file, which takes
        images and returns a class or "unknown" for each.

    Raises:
        ValueError: If there is neither a finished run nor a packed network.
        DamagedCheckpoint: If the network is damaged.
        MissingPackage: If moon-runtime, which packed networks need, is not installed.

    Example:
        >>> import tempfile
        >>> import moon
        >>> recipe = moon.make_recipe("digits", "cross-entropy", topology="static", epochs=1, batch_size=512)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = moon.train_run(recipe, folder, moon.BenchmarkImages.open("data", "digits"))
        ...     model = moon.load(folder)
        >>> model.fc.out_features
        10
    """
    path = Path(path)
    if path.is_dir():
        from moon.run.folder import load as load_run

        return load_run(path, device)
    if not path.exists():
        raise ValueError(f"{path}: no such run folder or .moon file")
    open_file(path).close()  # a DataError if it is a named pipe, for example
    package = runtime()
    try:
        return package.load(path, threads=threads, limit=limit)
    except package.NetworkError as error:
        if "limit" in str(error):
            raise ValueError(str(error)) from error
        raise DamagedCheckpoint(f"{error}; copy it again, or write it again with `moon pack`") from error
