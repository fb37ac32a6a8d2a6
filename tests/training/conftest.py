"""Fixtures that start several processes."""

import os
import subprocess
import sys

import pytest
import torch.distributed as dist


def _start_ranks():
    """A function that starts Python processes as torchrun does; those that still run after the test are killed."""
    started, stores = [], []

    def start(count: int, *arguments: object, **settings) -> list[subprocess.Popen]:
        # This process serves the store, so no port has to be chosen before somebody listens on it.
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        stores.append(store)
        common = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "WORLD_SIZE": str(count),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, *map(str, arguments)]
        environment = os.environ | common | settings.pop("env", {})
        for rank in range(count):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            started.append(subprocess.Popen(command, env=environment | own, **settings))
        return started[-count:]

    yield start
    for process in started:
        process.kill()
        process.communicate()


start_ranks = pytest.fixture(_start_ranks, name="start_ranks")
start_ranks_once = pytest.fixture(_start_ranks, name="start_ranks_once", scope="module")
