"""Run a grid on a Ray cluster, local or of several machines that share the folders."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from moon.suggest import first_line


class RayWorkers:
    """One Ray task per run; a fraction of a GPU lets several runs share one.

    The address is "local", "auto" or that of a cluster; all machines must be able to read the data root. If a task dies
    with its process or machine, the grid starts it again, and it resumes from the checkpoint in its folder.
    """

    places = 10**6  # Ray limits the number of concurrent runs

    def __init__(
        self,
        address: str,
        data: Path,
        cpus: float = 1.0,
        gpus: float = 0.0,
        checkpoint_seconds: float = 30.0,
        exact: bool = True,
    ) -> None:
        try:
            import ray
        except ImportError:
            raise ValueError("Ray is not installed; pip install ray") from None
        self._ray = ray
        where = None if address == "local" else address
        if not ray.is_initialized():
            try:
                ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
            except TypeError:  # an existing cluster has its own dashboard
                ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError) as error:
                raise ValueError(
                    f"no Ray cluster at '{address}' ({first_line(error)}); start one with: ray start --head"
                ) from None
        self._warnings: dict[Any, list[str]] = {}  # of runs that have ended
        self._settings = str(data.resolve()), max(1, int(cpus)), checkpoint_seconds, exact
        self._task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(_task)

    def start(self, folder: Path) -> Any:
        return self._task.remote(str(folder.resolve()), *self._settings)

    def ended(self, handle: Any) -> str | None:
        ready, _ = self._ray.wait([handle], timeout=0)
        if not ready:
            return None
        try:
            self._warnings[handle] = self._ray.get(handle)
        except Exception as error:  # any error that ended the task
            return (str(error).strip().splitlines() or [type(error).__name__])[0]
        return ""

    def warnings(self, handle: Any) -> list[str]:
        return self._warnings.pop(handle, [])  # at the end of the run; before, they are in Ray's log of the task

    def stop(self, handles: list[Any]) -> None:
        if not handles:
            return
        for handle in handles:
            self._ray.cancel(handle, force=False)
        self._ray.wait(handles, num_returns=len(handles), timeout=20)


def _task(folder: str, data: str, threads: int, checkpoint_seconds: float, exact: bool) -> list[str]:
    """The Ray task; it returns the warnings that the driver should show."""
    import ray
    import torch

    from moon.grid.worker import Warnings, log_to_stderr, work
    from moon.run import learning

    log_to_stderr()
    torch.set_num_threads(threads)
    found: list[str] = []
    logger, handler = logging.getLogger(learning.__name__), Warnings(found.append)
    logger.addHandler(handler)  # removed at the end, as a process of Ray executes several tasks
    try:
        work(Path(folder), Path(data), "cuda" if ray.get_gpu_ids() else "cpu", checkpoint_seconds, exact)
    finally:
        logger.removeHandler(handler)
    return found
