"""Limits of the server: full queues, slow clients, signals, bad options; and how images become batches."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("uvicorn")

from serving import cases, get, post, read_answer, request_once, serve

import moon_runtime
from moon_runtime.answers import Answers
from moon_runtime.serve.app import Service
from moon_runtime.serve.batching import Batcher
from moon_runtime.serve.bodies import Upload
from moon_runtime.serve.listening import Server, listen, make_protocol
from moon_runtime.serve.metrics import Metrics
from moon_runtime.serve.refusals import Refused
from moon_runtime.serve.settings import Settings
from moon_runtime.serve.watching import Watch

FILE = Path(__file__).parent / "kept" / "format1.moon"
KNOWN = cases(FILE, 40)
UPLOADS = [Upload(None, case.data) for case in KNOWN]


class Gate:
    """The classifier, which computes only while the gate is open."""

    def __init__(self) -> None:
        self._classifier, self.sizes = moon_runtime.load(FILE), []
        self.is_open, self.is_entered = threading.Event(), threading.Event()
        self.prepare = self._classifier.prepare

    def __call__(self, images: np.ndarray) -> Answers:
        self.is_entered.set()
        assert self.is_open.wait(30)
        self.sizes.append(len(images))
        return self._classifier(images)


def with_batcher(test: Callable[[Batcher, Gate], Any], **settings: Any) -> None:
    """Run a coroutine function with a batcher and the gate before its network."""
    gate = Gate()
    batcher = Batcher(gate, Settings(**settings), Metrics(), Watch(np.arange(5.0)))  # type: ignore[arg-type]
    try:
        asyncio.run(test(batcher, gate))
    finally:
        gate.is_open.set()
        batcher.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def test_images_that_wait_are_computed_together_and_get_their_own_answers() -> None:
    async def test(batcher: Batcher, gate: Gate) -> None:
        asked = [asyncio.create_task(batcher.answer([upload])) for upload in UPLOADS]
        await until(lambda: gate.is_entered.is_set() and batcher._decoding == 0)
        assert batcher.waiting == 40
        gate.is_open.set()
        answers = [(await task)[0] for task in asked]
        assert [json.loads(json.dumps(a.as_json())) for a in answers] == [case.answer for case in KNOWN]  # type: ignore[union-attr]
        assert sum(gate.sizes) == 40
        assert max(gate.sizes) == 8  # as many as allowed
        assert (batcher.waiting, batcher._metrics.batches.sum) == (0, 40)

    with_batcher(test, max_batch=8)


def test_a_full_queue_refuses() -> None:
    async def test(batcher: Batcher, gate: Gate) -> None:
        first = asyncio.create_task(batcher.answer(UPLOADS[:3]))
        await until(gate.is_entered.is_set)
        with pytest.raises(Refused, match="3 images wait already") as refused:
            await batcher.answer(UPLOADS[:3])
        assert (refused.value.status, refused.value.headers) == (429, {"retry-after": "1"})
        second = asyncio.create_task(batcher.answer(UPLOADS[:2]))  # there is room for two
        gate.is_open.set()
        assert (len(await first), len(await second)) == (3, 2)
        assert len(await batcher.answer(UPLOADS[:5])) == 5

    with_batcher(test, max_queue=5)


def test_an_answer_that_takes_too_long_is_given_up() -> None:
    async def test(batcher: Batcher, gate: Gate) -> None:
        with pytest.raises(Refused, match=r"no answer within 0.05 seconds") as refused:
            await batcher.answer(UPLOADS[:3])
        assert (refused.value.status, refused.value.headers) == (503, {"retry-after": "1"})
        assert batcher.waiting  # what is being computed still counts
        gate.is_open.set()
        await until(lambda: batcher.waiting == 0)

    with_batcher(test, timeout=0.05)


def test_a_failure_is_for_those_who_were_part_of_it() -> None:
    async def test(batcher: Batcher, gate: Gate) -> None:
        gate.is_open.set()
        classifier, gate._classifier = gate._classifier, lambda images: 1 / 0  # type: ignore[assignment]
        with pytest.raises(Refused, match="could not be computed"):
            await batcher.answer(UPLOADS[:2])
        gate._classifier = classifier
        assert len(await batcher.answer(UPLOADS[:2])) == 2
        assert batcher.waiting == 0

    with_batcher(test)


def test_the_watch_forgets_after_a_round_without_an_alarm() -> None:
    rng = np.random.default_rng(0)
    watch = Watch(rng.normal(size=500), 0.01, round_size=300)
    watch.update(rng.normal(size=250))
    assert not watch.alarm
    watch.update(np.concatenate([rng.normal(size=50), rng.normal(-2, 1, 300), [np.nan, np.inf]]))
    assert watch.alarm
    watch.update(rng.normal(size=299))
    assert watch.alarm  # of the round before
    watch.update(rng.normal(size=1))
    assert not watch.alarm
    assert watch.seen == 900
    nothing = Watch(np.array([np.nan]))
    nothing.update(np.zeros(1000))
    assert not nothing.alarm


def running(service: Service, **options: Any) -> tuple[Server, int, threading.Thread]:
    """A server in a thread of this process."""
    server, sock = Server(service), listen("127.0.0.1", 0)
    server.config.http = make_protocol(service, **options)
    thread = threading.Thread(target=server.run, args=([sock],))
    thread.start()
    return server, sock.getsockname()[1], thread


def service_with(**settings: Any) -> Service:
    content = FILE.read_bytes()
    return Service(moon_runtime.load(content), content, Settings(**settings))


def test_clients_that_send_nothing_are_cut() -> None:
    server, port, thread = running(service_with(), header_seconds=0.2)
    try:
        for begin in (b"", b"GET /ready HTT"):
            with socket.create_connection(("127.0.0.1", port), 20) as connection:
                connection.sendall(begin)
                with pytest.raises(ConnectionError):
                    read_answer(connection)
        assert request_once(port, get("/ready"))[0] == 200
    finally:
        server.handle_exit(0, None)
        thread.join()


def test_a_body_that_does_not_come_is_408_and_too_many_connections_503() -> None:
    server, port, thread = running(service_with(body_timeout=0.2, max_connections=2))
    try:
        status, headers, body = request_once(port, post(b"abc", length=100))
        assert (status, headers["connection"]) == (408, "close")
        assert "not complete after 0.2 seconds" in json.loads(body)["error"]
        held = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(2)]
        for connection in held:
            connection.sendall(get("/ready"))
            assert read_answer(connection)[0] == 200
        with socket.create_connection(("127.0.0.1", port), 10) as third:
            status, headers, body = read_answer(third)
        assert (status, headers["retry-after"], json.loads(body)) == (503, "1", {"error": "too many connections; wait"})
        for connection in held:
            connection.close()
    finally:
        server.handle_exit(0, None)
        thread.join()


def test_memory_of_all_requests_is_limited() -> None:
    service = service_with()
    service._budget.used = service._budget.limit - 10
    server, port, thread = running(service)
    try:
        status, headers, body = request_once(port, post(KNOWN[0].data))
        assert (status, headers["retry-after"]) == (429, "1")
        service._budget.used = 0
        assert request_once(port, post(KNOWN[0].data))[0] == 200
        assert service._budget.used == 0
        service.batcher.answer = None  # type: ignore[assignment,method-assign]
        status, headers, body = request_once(port, post(KNOWN[0].data))  # something unforeseen
        assert (status, headers["retry-after"]) == (503, "1")
        assert json.loads(body) == {"error": "something failed; try again"}
        assert service._budget.used == service.in_flight == 0
    finally:
        server.handle_exit(0, None)
        thread.join()


def test_sigterm_finishes_what_was_accepted_and_refuses_the_rest() -> None:
    with serve(FILE) as server:
        request = post(KNOWN[0].data)
        with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
            connection.sendall(request[:-20])
            while b"moon_requests_in_flight 1" not in request_once(server.port, get("/metrics"))[2]:
                time.sleep(0.01)
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            while (found := request_once(server.port, get("/ready")))[0] == 200:
                time.sleep(0.01)
            assert (found[0], found[1]["retry-after"], found[1]["connection"]) == (503, "1", "close")
            status, headers, body = request_once(server.port, request)
            assert (status, headers["retry-after"]) == (503, "1")
            assert json.loads(body) == {"error": "the server is stopping; try again"}
            connection.sendall(request[-20:])
            status, _, body = read_answer(connection)
            assert (status, json.loads(body)["answers"]) == (200, [{"file": None} | KNOWN[0].answer])
        assert server.process.wait(10) == 0
        assert time.monotonic() - began < 5


def test_a_client_that_never_ends_does_not_stop_the_end() -> None:
    with serve(FILE) as server, socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall(post(b"abc", length=100))
        while b"moon_requests_in_flight 1" not in request_once(server.port, get("/metrics"))[2]:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        assert read_answer(connection)[0] == 503


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["no.moon"], "no.moon: no such .moon file"),
        ([__file__], "not a .moon file"),
        ([FILE, "--port", "70000"], "--port must be from 0 to 65535, not 70000"),
        ([FILE, "--max-queue", "0"], "--max-queue must be above 0, not 0"),
        ([FILE, "--timeout", "nan"], "--timeout must be above 0, not nan"),
        ([FILE, "--batch-wait-ms", "-1"], "--batch-wait-ms must be from 0 to 1000, not -1"),
        ([FILE, "--false-alarm", "2"], "--false-alarm must be a fraction"),
        ([FILE, "--token", "a\nb"], "the token must be one or more printable ASCII characters"),
        ([FILE, "--host", "256.0.0.1", "--port", "0"], "moon serve: "),
        ([FILE, "--threads", "0"], "the number of threads must be between 1 and 256"),
    ],
)
def test_what_cannot_be_served_is_one_line(options: list[Any], reason: str) -> None:
    command = [sys.executable, "-m", "moon_runtime.serve", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert reason in done.stderr


def test_a_port_that_is_taken_is_one_line() -> None:
    with listen("127.0.0.1", 0) as sock:
        command = [sys.executable, "-m", "moon_runtime.serve", str(FILE), "--port", str(sock.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "in use" in done.stderr


def test_a_missing_package_is_one_line() -> None:
    code = (
        "import sys; sys.modules['starlette'] = None; sys.argv = ['x', 'a.moon']\n"
        "from moon_runtime.serve.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == (
        "moon serve: a server needs starlette; install it with: pip install 'moon-runtime[serve]'\n"
    )


def test_listening_to_everyone_without_a_token_is_warned_of() -> None:
    for options, is_warned in ((["--host", "0.0.0.0"], True), (["--host", "0.0.0.0", "--token", "x"], False), ([], False)):
        with serve(FILE, *options) as server:
            server.process.send_signal(signal.SIGTERM)
            out, err = server.process.communicate(timeout=20)
        assert server.process.returncode == 0
        assert ("everyone who can reach this machine can use it" in err) == is_warned
