"""A side stream of the GPU, for work that only the weight update waits for, such as the gradients of weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class SideStream:
    """A second CUDA stream. On a CPU the work runs immediately.

    `before_latest` is an event recorded before the latest work; None on a CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._kept_alive: list[Tensor] = []
        self.before_latest: torch.Event | None = None

    @contextmanager
    def run(self, *uses: Tensor) -> Iterator[None]:
        """Context whose work runs on the side stream, in parallel with what follows it.

        The tensors that the work `uses` are kept alive until `clear`.
        """
        if self._stream is None:
            yield
            return
        self._kept_alive.extend(uses)
        self._stream.wait_stream(torch.cuda.current_stream())
        self.before_latest = self._stream.record_event()
        with torch.cuda.stream(self._stream):
            yield

    def wait(self) -> None:
        """Make the current stream wait for the side stream."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    def clear(self) -> None:
        """Wait, and release the tensors that were kept alive."""
        self.wait()
        self._kept_alive.clear()
