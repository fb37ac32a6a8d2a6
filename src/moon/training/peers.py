"""The other processes that train as one: join them, and say in one line that one of them is lost."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from moon.errors import RankLost
from moon.suggest import first_line

CONNECT = timedelta(seconds=60)  # to reach the store of torchrun, which serves it before it starts any process


def patience() -> int:
    """How long to wait for another process, in seconds: the environment variable MOON_RANK_SECONDS, or 1800."""
    text = os.environ.get("MOON_RANK_SECONDS", "1800")
    if not text.isdecimal() or not int(text):
        raise ValueError(f"MOON_RANK_SECONDS is {text!r}; expected a whole number of seconds, at least 1")
    return int(text)


def join(backend: str) -> None:
    """Join the processes that torchrun started, as torch's default group; `backend` is 'gloo' or 'nccl'.

    Raises RankLost if they cannot be reached, or do not all start in time.
    """
    limit = timedelta(seconds=patience())
    is_served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store, rank, count = next(rendezvous("env://", timeout=min(CONNECT, limit) if is_served else limit))
        store.set_timeout(limit)
        # After a restart torchrun's store still has the addresses of the processes that ended.
        store = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=limit)
    except RuntimeError as error:
        name = f"rank {os.environ.get('RANK', '?')} of {os.environ.get('WORLD_SIZE', '?')}"
        raise RankLost(f"{name} cannot join the others ({first_line(error)})") from error


def all_reduce(tensor: Tensor) -> None:
    """Replace a tensor by its sum over all processes, in place."""
    _run(dist.all_reduce, tensor)


def broadcast(tensor: Tensor) -> None:
    """Replace a tensor by that of the first process, in place."""
    _run(dist.broadcast, tensor, 0)


def barrier() -> None:
    """Wait for all processes."""
    _run(dist.barrier)


def _run(operation: Callable[..., Any], *arguments: Any) -> None:
    """Call a collective operation; raises RankLost if another process ended, or did not take part in time."""
    try:
        operation(*arguments)
    except RuntimeError as error:
        if type(error) is not RuntimeError:  # lack of memory, for example
            raise
        reason = re.sub(r"^\[\S+\] | \[\S+\]:\d+", "", str(error)).partition(". ")[0]  # without source line and address
        raise RankLost(f"rank {dist.get_rank()} of {dist.get_world_size()} lost another one ({reason})") from error
