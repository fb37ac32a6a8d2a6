"""Collective operations of several processes that detect when one of them is lost.

torch waits forever for a process that was stopped, and does not say which one ended. Here each process writes a
heartbeat to the common store every second, which distinguishes a slow process from a lost one. This needs gloo; with
NCCL, torch's own watchdog ends the processes.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent import futures
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor
from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from moon.errors import RankLost
from moon.suggest import first_line

HEARTBEAT_SECONDS = 1.0  # from one heartbeat to the next
GRACE_SECONDS = 5.0  # to find out which processes were lost, and for the others to do so
CONNECT_SECONDS = 60.0  # to reach the store of torchrun, which serves it before it starts any process
T = TypeVar("T")
_NOTICED, _CLOSED = "noticed", "closed"  # the last heartbeats of a process that knows of a loss, and of one that ends


def patience() -> float:
    """How long a process may send no heartbeat, in seconds: the environment variable MOON_RANK_SECONDS, or 300.

    Raises a ValueError if it is not a number, or too small for a heartbeat every second.
    """
    text = os.environ.get("MOON_RANK_SECONDS", "300")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 3 <= seconds < 1e9:
        raise ValueError(f"MOON_RANK_SECONDS is {text!r}; expected a number of seconds, at least 3")
    return seconds


class Peers(threading.Thread):
    """The other processes: a thread that tells them that this one is alive, and listens to them.

    Only the thread talks to the store, through a connection of its own: if the process that serves it is stopped,
    nothing else has to wait.
    """

    def __init__(self, store: Store, rank: int, count: int) -> None:
        super().__init__(name="moon-peers", daemon=True)
        self.rank, self.count, self.seconds = rank, count, patience()
        self._store = store
        self._others = [other for other in range(count) if other != rank]
        self._heartbeats = dict.fromkeys(self._others, 0)  # how many heartbeats were heard from each
        self._last = dict.fromkeys(self._others, "")  # the last heartbeat of each; "" until it has sent one
        self._lost: list[int] = []
        self._leaving = threading.Event()
        self._deadline: float | None = None  # for the end of this thread, once it is to end
        self._is_server = rank == 0 and not _torchrun_serves_the_store()
        store.set(str(rank), "")

    def run(self) -> None:
        """Send heartbeats and listen to those of the others. Ends with `close`, or when the store is gone."""
        keys = [str(other) for other in self._others]
        try:
            for number in itertools.count(1):
                deadline, is_leaving = self._deadline, self._leaving.is_set()
                own = _CLOSED if deadline is not None else _NOTICED if is_leaving else str(number)
                self._store.set(str(self.rank), own)
                if deadline is not None and not self._is_needed(deadline):
                    return
                for other, value in zip(self._others, self._store.multi_get(keys), strict=True):
                    heartbeat = value.decode()
                    self._heartbeats[other] += heartbeat != self._last[other]
                    self._last[other] = heartbeat
                if is_leaving:
                    time.sleep(0.02)
                else:
                    self._leaving.wait(HEARTBEAT_SECONDS)
        except RuntimeError:  # the connection to the store was closed; is_alive() is now False
            return

    def _is_needed(self, deadline: float) -> bool:
        """Whether others still read from the store of this process."""
        readers = [other for other in self._others if other not in self._lost and self._last[other] != _CLOSED]
        return self._is_server and bool(readers) and time.monotonic() < deadline

    def finish(self, work: dist.Work) -> None:
        """Wait for a collective operation. Raises RankLost if it failed, or another process was silent for too long."""
        quiet, before = dict.fromkeys(self._others, 0), dict(self._heartbeats)
        while True:
            try:
                work.wait(timedelta(seconds=HEARTBEAT_SECONDS))
                return
            except RuntimeError as error:
                if work.is_completed():
                    if type(error) is not RuntimeError:  # lack of memory, for example
                        raise
                    raise self._lost_by(error) from error
            # Waits are counted, not seconds: if all processes were stopped and continued, none is lost.
            now = dict(self._heartbeats)
            quiet = {other: quiet[other] + 1 if now[other] == before[other] else 0 for other in self._others}
            before = now
            silent = [other for other, waits in quiet.items() if waits * HEARTBEAT_SECONDS >= self.seconds]
            if silent:
                text = f"sent no heartbeat for {self.seconds:g} s (limit: MOON_RANK_SECONDS)"
                raise self._lost_are([0] if silent == self._others and self.rank else silent, text)

    def _lost_by(self, error: RuntimeError) -> RankLost:
        """The error of a failed operation; it names the processes that do not answer."""
        start, deadline = dict(self._heartbeats), time.monotonic() + GRACE_SECONDS
        self._leaving.set()  # the others see that this process is not the lost one
        while True:
            # A process may have sent one more heartbeat before it was lost.
            silent = [
                other for other in self._others if self._heartbeats[other] < start[other] + 2 and not self._knows(other)
            ]
            if len(silent) <= 1 or not self.is_alive() or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        reason = re.sub(r"^\[\S+\] | \[\S+\]:\d+", "", str(error)).partition(". ")[0]  # without source line and address
        return self._lost_are(silent if self.is_alive() else [0], f"was lost ({reason})")

    def _knows(self, other: int) -> bool:
        return self._last[other] in (_NOTICED, _CLOSED)

    def _lost_are(self, ranks: list[int], text: str) -> RankLost:
        self._lost = ranks
        names = f"rank {', '.join(map(str, ranks))} of {self.count}" if ranks else f"one of {self.count} ranks"
        return RankLost(f"{names} {text}")

    def close(self) -> None:
        """End the thread. If this process serves the store, wait a moment until the others have left."""
        self._deadline = time.monotonic() + GRACE_SECONDS
        self._leaving.set()
        self.join(2 * GRACE_SECONDS)


_peers: Peers | None = None


def join(backend: str) -> None:
    """Join the processes that torchrun started, as torch's default group; `backend` is 'gloo' or 'nccl'.

    Raises RankLost if they cannot be reached, or do not all start within half an hour.
    """
    global _peers
    try:
        made = _in_a_thread(lambda: _join(backend))
    except RuntimeError as error:
        name = f"rank {os.environ.get('RANK', '?')} of {os.environ.get('WORLD_SIZE', '?')}"
        raise RankLost(f"{name} cannot join the others ({first_line(error)})") from error
    if made is not None:
        _peers = made
        made.start()
        atexit.register(close)


def _join(backend: str) -> Peers | None:
    limit = default_pg_timeout
    if _torchrun_serves_the_store():  # if it was killed while its processes started, nothing will ever answer them
        limit = timedelta(seconds=min(CONNECT_SECONDS, patience()))
        _reach_the_store(limit.total_seconds())
    store, rank, count = next(rendezvous("env://", timeout=limit))
    store.set_timeout(default_pg_timeout)
    # After a restart torchrun's store still has the addresses of the processes that ended.
    store = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    made = None
    if backend == "gloo":
        made = Peers(PrefixStore("alive", store.clone()), rank, count)  # pyright: ignore[reportAttributeAccessIssue]
    dist.init_process_group(backend, store=store, rank=rank, world_size=count)
    return made


def _torchrun_serves_the_store() -> bool:
    """Whether torchrun itself serves the store; otherwise the first process does."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _reach_the_store(seconds: float) -> None:
    """Wait for the store of torchrun to accept a connection: where torch itself times out, it prints C++ traces.

    Raises a RuntimeError if it does not within some seconds.
    """
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not host or not port:  # torch says what is missing
        return
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=max(0.1, deadline - time.monotonic())).close()
            return
        except OSError as error:
            if time.monotonic() >= deadline:
                reason = error.strerror or str(error)
                text = f"timed out after {seconds:g} s: no connection to torchrun at {host}:{port}, {reason}"
                raise RuntimeError(text) from error
        time.sleep(0.1)


def _in_a_thread(function: Callable[[], T]) -> T:
    """Call a function of torch that blocks without returning to Python; signals are handled while it does."""
    future: futures.Future[T] = futures.Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, name="moon-join", daemon=True).start()
    return future.result()


def close() -> None:
    """Tell the other processes that this one ends. Called at exit; call it before `os._exit`."""
    global _peers
    if _peers is not None:
        _peers.close()
        _peers = None


def all_reduce(tensor: Tensor) -> None:
    """Replace a tensor by its sum over all processes, in place. Raises RankLost if one is lost."""
    _run(dist.all_reduce, tensor)


def broadcast(tensor: Tensor) -> None:
    """Replace a tensor by that of the first process, in place. Raises RankLost if a process is lost."""
    _run(dist.broadcast, tensor, 0)


def barrier() -> None:
    """Wait for all processes. Raises RankLost if one is lost."""
    _run(dist.barrier)


def _run(operation: Callable[..., Any], *arguments: Any) -> None:
    if _peers is None:
        operation(*arguments)
        return
    try:
        _peers.finish(operation(*arguments, async_op=True))
    except BaseException:
        # The operation may go on, and the end of the group would wait for it as long as torch does, half an hour if a
        # process is stopped. With one reference too many, the group never ends, and the process can.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))
        raise
