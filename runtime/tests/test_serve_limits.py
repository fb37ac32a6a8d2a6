"""Limits of the server: slow clients, signals, bad options."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")

import moon_runtime
from moon_runtime.serve.app import Service
from moon_runtime.serve.listening import Server, listen, make_protocol
from moon_runtime.serve.settings import Settings
from serving import cases, get, post, read_answer, request_once, serve, serving

FILE = Path(__file__).parent / "kept" / "format1.moon"
KNOWN = cases(FILE, 2)


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
        with socket.create_connection(("127.0.0.1", port), 20) as connection, pytest.raises(ConnectionError):
            read_answer(connection)
        assert request_once(port, get("/ready"))[0] == 200
    finally:
        server.handle_exit(0, None)
        thread.join()


def test_a_body_that_does_not_come_is_408() -> None:
    server, port, thread = running(service_with(body_timeout=0.2))
    try:
        status, headers, body = request_once(port, post(b"abc", length=100))
        assert (status, headers["connection"]) == (408, "close")
        assert "not complete after 0.2 seconds" in json.loads(body)["error"]
    finally:
        server.handle_exit(0, None)
        thread.join()


def test_one_client_with_too_many_connections_stops_neither_probes_nor_others() -> None:
    server, port, thread = running(service_with(max_connections=8), header_seconds=20)
    held = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(7)]
    try:
        for connection in held[:4]:  # half of the limit
            connection.sendall(b"POST /predict HTTP/1.1\r\nhost: local")
        for path in ("/health", "/ready"):
            assert request_once(port, get(path))[0] == 200
        status, headers, body = request_once(port, post(KNOWN[0].data))
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        assert json.loads(body) == {"error": "too many connections; try again"}
        with socket.create_connection(("127.0.0.1", port), 60, ("127.0.0.2", 0)) as other:
            other.sendall(post(KNOWN[0].data))
            assert read_answer(other)[0] == 200
    finally:
        for connection in held:
            connection.close()
        server.handle_exit(0, None)
        thread.join()


@pytest.mark.parametrize(
    "request_of",
    [
        lambda: b"POST /predict HTTP/1.1\r\nhost: local",  # the rest of the headers does not come
        lambda: post(b"x" * 8_000_000, "image/png", "connection: close"),
        lambda: b"no HTTP\r\n\r\n" + b"x" * 8_000_000,
    ],
)
def test_a_refusal_arrives_while_the_client_still_sends(request_of: Callable[[], bytes]) -> None:
    server, port, thread = running(service_with(max_body_mb=0.2), header_seconds=0.2)
    try:
        assert request_once(port, request_of(), 60)[0] in (400, 408, 413)
    finally:
        server.handle_exit(0, None)
        thread.join()


def test_behind_a_proxy_clients_have_addresses_of_their_own() -> None:
    service = service_with(proxy="127.0.0.1")
    clients: list[str] = []

    async def answer(uploads: Any, client: str) -> list[str]:
        clients.append(client)
        return ["no image"]

    service.batcher.answer = answer  # type: ignore[assignment,method-assign]
    server, port, thread = running(service)
    try:
        request_once(port, post(KNOWN[0].data, "image/png", "x-forwarded-for: 192.0.2.7"))
        assert clients == ["192.0.2.7"]
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
        service._budget.take(service._budget.limit // 2, "127.0.0.1")  # one client
        assert request_once(port, post(KNOWN[0].data))[0] == 429
        service._budget.take(service._budget.limit // 2, "127.0.0.2")  # there is room for others
        for client in ("127.0.0.1", "127.0.0.2"):
            service._budget.give_back(service._budget.limit // 2, client)
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


def test_what_is_only_declared_uses_no_memory() -> None:
    service = service_with()
    idle = service._budget.limit // service.settings.max_body + 1
    server, port, thread = running(service)
    held = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(idle)]
    try:
        for connection in held:
            connection.sendall(post(b"abc", length=service.settings.max_body))
        while service._budget.used < 3 * idle:
            time.sleep(0.01)
        assert service._budget.used == 3 * idle
        assert request_once(port, post(KNOWN[0].data))[0] == 200
        for connection in held:
            connection.close()
        while service.in_flight:
            time.sleep(0.01)
        assert service._budget.used == 0
    finally:
        for connection in held:
            connection.close()
        server.handle_exit(0, None)
        thread.join()


def served_with(change: str, *options: object) -> Any:
    """A server in a process of its own, in which something is changed."""
    imports = "import sys, threading; from moon_runtime.serve import __main__, listening"
    return serving("-c", f"{imports}; {change}; sys.exit(__main__.main())", FILE, "--port", 0, *options)


def test_sigterm_finishes_what_was_accepted_and_refuses_the_rest() -> None:
    with served_with("listening.DRAIN_SECONDS = 300") as server:  # however slow this machine is
        request = post(KNOWN[0].data)
        with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
            connection.sendall(request[:-20])
            while b"moon_requests_in_flight 1" not in request_once(server.port, get("/metrics"))[2]:
                time.sleep(0.01)
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
        assert server.process.wait(60) == 0


def test_an_image_that_is_being_decoded_does_not_stop_the_end() -> None:
    change = "from moon_runtime.classifier import Classifier; Classifier.prepare = lambda *_: threading.Event().wait()"
    with served_with(change, "--timeout", 0.2) as server:
        for _ in range(4):  # each thread decodes for ever, and one image waits
            assert request_once(server.port, post(KNOWN[0].data))[0] == 503
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0


def test_a_client_that_never_ends_does_not_stop_the_end() -> None:
    with serve(FILE) as server, socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall(post(b"abc", length=100))
        while b"moon_requests_in_flight 1" not in request_once(server.port, get("/metrics"))[2]:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert read_answer(connection)[0] == 503


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["no.moon"], "no.moon: no such .moon file"),
        ([__file__], "not a .moon file"),
        ([FILE, "--max-queue", "0"], "--max-queue must be above 0, not 0"),
        ([FILE, "--token", "a\nb"], "the token must be one or more printable ASCII characters"),
        ([FILE, "--token", ""], "the token must be one or more printable ASCII characters"),
        ([FILE, "--max-queue", "8"], "--max-images 32 is more than --max-queue 8"),
        ([FILE, "--host", "256.0.0.1", "--port", "0"], "moon serve: "),
    ],
)
def test_what_cannot_be_served_is_one_line(options: list[Any], reason: str) -> None:
    command = [sys.executable, "-m", "moon_runtime.serve", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert reason in done.stderr


def test_an_empty_token_of_the_environment_does_not_open_the_server() -> None:
    command = [sys.executable, "-m", "moon_runtime.serve", str(FILE), "--port", "0", "--max-queue", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | {"MOON_TOKEN": ""})
    assert done.returncode == 1
    assert "the token must be one or more printable ASCII characters; without a token, leave it out" in done.stderr


def test_a_port_that_is_taken_is_one_line() -> None:
    with listen("127.0.0.1", 0) as sock:
        command = [sys.executable, "-m", "moon_runtime.serve", str(FILE), "--port", str(sock.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "of 127.0.0.1 is in use; choose another one (--port)" in done.stderr


def test_listening_to_everyone_without_a_token_is_warned_of() -> None:
    for options, is_warned in (
        (["--host", "0.0.0.0"], True),
        (["--host", "0.0.0.0", "--token", "x"], False),
        ([], False),
    ):
        with serve(FILE, *options) as server:
            server.process.send_signal(signal.SIGTERM)
            _, err = server.process.communicate(timeout=20)
        assert server.process.returncode == 0
        assert ("everyone who can reach this machine can use it" in err) == is_warned


def test_a_client_that_is_gone_is_counted_and_costs_nothing() -> None:
    service = service_with()
    server, port, thread = running(service)
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as connection:
            connection.sendall(post(b"abc", length=100))
            while not service.in_flight:
                time.sleep(0.01)
        while service.in_flight:
            time.sleep(0.01)
        text = request_once(port, get("/metrics"))[2].decode()
        assert 'moon_requests_total{path="/predict",method="POST",code="499"} 1\n' in text
        assert service._budget.used == 0
    finally:
        server.handle_exit(0, None)
        thread.join()
