"""Signs of life: which process is lost, and which one only takes long."""

import socket
import time

import pytest
import torch
import torch.distributed as dist

from moon.errors import RankLost
from moon.training import peers
from moon.training.peers import Peers, patience
from moon.training.ranks import Ranks


class Work:
    """A collective operation: each wait calls the next function, and times out unless that raises or is None."""

    def __init__(self, *waits):
        self.waits, self.failed = list(waits), False

    def wait(self, _):
        if (action := self.waits.pop(0)) is None:
            return
        action()
        raise RuntimeError("Operation timed out!")

    def is_completed(self):
        return self.failed

    def fail(self, error):
        self.failed = True
        raise error


@pytest.fixture
def make(monkeypatch):
    """A function that makes the first of several processes, with a limit of five waits; and the common store."""
    monkeypatch.setattr(peers, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(peers, "GRACE_SECONDS", 600)
    store, made = dist.HashStore(), []

    def start(count, rank=0, store=store):
        for other in range(count):
            store.set(str(other), b"")
        made.append(Peers(store, rank, count))
        made[0].seconds = 5 * peers.HEARTBEAT_SECONDS
        made[0].start()
        return made[0], store

    yield start
    if made[0].is_alive():
        made[0]._lost = made[0]._others  # nobody to wait for
        made[0].close()


def sign_of(rank, first, store):
    """A function that sends a heartbeat of another process and waits until it was heard."""

    def give():
        heard = first._heartbeats[rank]
        store.set(str(rank), str(time.monotonic_ns()).encode())
        while first._heartbeats[rank] == heard:
            assert first.is_alive()
            time.sleep(0.001)

    return give


def nothing():
    pass


def test_a_process_that_sends_heartbeats_is_waited_for(make):
    first, store = make(2)
    first.finish(Work(*[sign_of(1, first, store)] * 30, None))


def test_a_silent_process_is_lost_and_named(make):
    first, store = make(3)
    with pytest.raises(RankLost, match=r"^rank 1 of 3 sent no heartbeat for 0.05 s \(limit: MOON_RANK_SECONDS\)$"):
        first.finish(Work(*[sign_of(2, first, store)] * 30))


def test_a_process_that_was_silent_for_a_while_is_not_lost(make):
    first, store = make(2)
    time.sleep(0.1)
    first.finish(Work(*[nothing] * 3, sign_of(1, first, store), *[nothing] * 4, None))


def test_if_nobody_answers_the_process_that_serves_the_store_is_lost(make):
    second, _ = make(3, rank=1)
    with pytest.raises(RankLost, match=r"^rank 0 of 3 sent no heartbeat"):
        second.finish(Work(*[nothing] * 30))


CLOSED = "[/build/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:21712. This is typically caused"


@pytest.mark.parametrize("sign", [b"noticed", b"closed"])
def test_after_a_failed_operation_the_process_that_does_not_answer_is_named(make, sign):
    first, store = make(3)
    work = Work(lambda: work.fail(RuntimeError(CLOSED)))
    store.set("1", sign)
    with pytest.raises(RankLost, match=r"^rank 2 of 3 was lost \(Connection closed by peer\)$"):
        first.finish(work)
    assert store.get("0") == b"noticed"  # so that no other process names this one


def test_if_the_store_is_gone_too_its_process_is_lost(make):
    class Gone(dist.HashStore):
        def multi_get(self, _):
            raise RuntimeError("Broken pipe")

    second, _ = make(3, rank=1, store=Gone())
    work = Work(lambda: work.fail(RuntimeError(CLOSED)))
    with pytest.raises(RankLost, match=r"^rank 0 of 3 was lost"):
        second.finish(work)


def test_other_errors_of_an_operation_are_not_a_lost_process(make):
    first, _ = make(2)
    work = Work(lambda: work.fail(MemoryErrorOfTorch("no memory")))
    with pytest.raises(MemoryErrorOfTorch):
        first.finish(work)


class MemoryErrorOfTorch(RuntimeError):
    """As torch.OutOfMemoryError."""


def test_the_process_that_serves_the_store_ends_after_the_others(make):
    first, store = make(3)
    first._deadline = time.monotonic() + 600
    first._leaving.set()
    store.set("1", b"closed")
    time.sleep(0.1)
    assert first.is_alive()
    store.set("2", b"closed")
    first.join(600)
    assert not first.is_alive()
    assert store.get("0") == b"closed"


def test_a_process_that_cannot_join_says_why(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": taken.getsockname()[1], "RANK": 0, "WORLD_SIZE": 2}
        for name, value in settings.items():
            monkeypatch.setenv(name, str(value))
        with pytest.raises(RankLost, match=r"^rank 0 of 2 cannot join the others \(.*EADDRINUSE.*\)$"):
            Ranks.join(torch.device("cpu"))


def test_a_process_whose_torchrun_is_gone_does_not_wait_for_half_an_hour(monkeypatch, capfd):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": 1, "WORLD_SIZE": 2}
    settings |= {"TORCHELASTIC_USE_AGENT_STORE": True, "MOON_RANK_SECONDS": 3}
    for name, value in settings.items():
        monkeypatch.setenv(name, str(value))
    reason = f"timed out after 3 s: no connection to torchrun at 127.0.0.1:{port}, Connection refused"
    with pytest.raises(RankLost, match=rf"^rank 1 of 2 cannot join the others \({reason}\)$"):
        Ranks.join(torch.device("cpu"))
    assert capfd.readouterr() == ("", "")  # torch prints a C++ trace if it waits itself


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "nan", "inf"])
def test_an_invalid_limit(monkeypatch, text):
    monkeypatch.setenv("MOON_RANK_SECONDS", text)
    with pytest.raises(ValueError, match=r"MOON_RANK_SECONDS is .* expected a number of seconds, at least 3"):
        patience()


def test_the_default_limit_is_five_minutes(monkeypatch):
    monkeypatch.delenv("MOON_RANK_SECONDS", raising=False)
    assert patience() == 300
