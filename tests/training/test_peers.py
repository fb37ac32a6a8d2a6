"""Processes that cannot join the others end with one line."""

import socket

import pytest
import torch

from moon.errors import RankLost
from moon.training.peers import patience
from moon.training.ranks import Ranks


def test_a_process_that_cannot_join_says_why(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": taken.getsockname()[1], "RANK": 0, "WORLD_SIZE": 2}
        for name, value in settings.items():
            monkeypatch.setenv(name, str(value))
        with pytest.raises(RankLost, match=r"^rank 0 of 2 cannot join the others \(.*EADDRINUSE.*\)$"):
            Ranks.join(torch.device("cpu"))


def test_a_process_whose_torchrun_is_gone_does_not_wait_for_half_an_hour(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": 1, "WORLD_SIZE": 2}
    settings |= {"TORCHELASTIC_USE_AGENT_STORE": True, "MOON_RANK_SECONDS": 3}
    for name, value in settings.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(RankLost, match=rf"^rank 1 of 2 cannot join the others \(.*timed out.*127.0.0.1, {port}.*\)$"):
        Ranks.join(torch.device("cpu"))


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "nan", "inf"])
def test_an_invalid_limit(monkeypatch, text):
    monkeypatch.setenv("MOON_RANK_SECONDS", text)
    with pytest.raises(ValueError, match=r"MOON_RANK_SECONDS is .* expected a whole number of seconds, at least 1"):
        patience()
