"""Kill `moon serve` while it starts, loads its file, answers or ends after SIGTERM, and start it again.

A part of `tests.torture.kill`. A server writes nothing, so after each kill everything in its folder must be as before:
names, times and bytes, and no temporary file. Answers that arrived completely must be right. A new server on the same
port must then be ready and answer exactly as an undisturbed one, and end with code 0 on SIGTERM.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import selectors
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from tests.torture import phases
from tests.torture.common import LONGEST, Process, differing, fork, fresh, spawn
from tests.torture.workers import Report

FILE = "packed.moon"
CLIENTS = 4  # connections that ask at the same time
PORTS = range(20_000, 32_000)  # the system gives others to clients, which could take one between two servers
MOMENTS = ("start", "loading", "answering", "draining")

Answer = tuple[int, Any]  # status and JSON


@dataclass
class Server:
    """`moon serve` as a command that is killed, and what an undisturbed one answers."""

    name: str
    is_forked: bool
    seconds: float = 0.0  # until it was ready
    requests: list[bytes] = field(default_factory=list)
    expected: dict[str, Answer] = field(default_factory=dict)  # by the numbers of the requests

    def answers(self, port: int) -> dict[str, Answer]:
        """What a server that has just started answers to the requests, one after another."""
        return {str(number): ask(port, request) for number, request in enumerate(self.requests)}

    def start(self, place: Path, port: int) -> Process:
        """Start it in a folder, in which its temporary files would be as well."""
        phases.PHASES.clear()
        argv, temporary = ["serve", FILE, "--port", str(port)], str(place / "temporary")
        if self.is_forked:
            return fork(argv, place, lambda: setattr(tempfile, "tempdir", temporary))
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = temporary
        try:
            return spawn(argv, place)
        finally:
            os.environ.pop("TMPDIR") if before is None else os.environ.update(TMPDIR=before)


def make_requests(data: Path) -> list[bytes]:
    """Requests: about the file, about one image each, about several, and about one that is damaged."""
    import numpy as np  # here, because tests/torture/common.py first sets the number of threads
    from PIL import Image

    with np.load(data / "mnist" / "test.npz") as file:
        pixels = file["images"][..., 0]
    images = []
    for image in pixels[:8]:
        buffer = BytesIO()
        Image.fromarray(image).save(buffer, "PNG")
        images.append(buffer.getvalue())
    parts = [b'--B\r\ncontent-disposition: form-data; name="f%d"; filename="%d.png"\r\n\r\n%s\r\n' % (i, i, content)
             for i, content in enumerate([*images[:3], images[0][:50]])]  # fmt: skip
    form = b"".join([*parts, b"--B--\r\n"])
    return [
        b"GET /model HTTP/1.1\r\nhost: localhost\r\n\r\n",
        *(_post(b"image/png", image) for image in images),
        _post(b"multipart/form-data; boundary=B", form),
        _post(b"image/png", images[0][:50]),
    ]


def _post(kind: bytes, body: bytes) -> bytes:
    return b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (
        kind, len(body), body
    )  # fmt: skip


def free_port() -> int:
    """A port that nobody listens on; each process begins to search at another one."""
    for number in range(len(PORTS)):
        port = PORTS[(50 * os.getpid() + number) % len(PORTS)]
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("no port is free")


class Connection:
    """A client that sends a request and may receive its answer later, without a thread."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), LONGEST)
        self.received, self.request = b"", -1

    def send(self, request: int, content: bytes) -> None:
        self.received, self.request = b"", request
        self.socket.sendall(content)

    def receive(self) -> Answer | None:
        """The answer, if the next bytes complete it. Raises a ConnectionError if the server has closed."""
        more = self.socket.recv(65536)
        if not more:
            raise ConnectionError("closed")
        self.received += more
        head, _, body = self.received.partition(b"\r\n\r\n")
        sizes = [line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if not sizes or len(body) < int(sizes[0]):
            return None
        return int(head.split()[1]), json.loads(body)


def ask(port: int, content: bytes) -> Answer:
    """Send a request over a new connection, and wait for the answer."""
    connection = Connection(port)
    with connection.socket:
        connection.send(0, content)
        while (answer := connection.receive()) is None:
            pass
        return answer


def wait_until_ready(process: Process, port: int) -> bool:
    """Wait for a server; whether it is ready."""
    while process.poll() is None and time.monotonic() - process.started < LONGEST:
        with suppress(OSError):
            if ask(port, b"GET /ready HTTP/1.1\r\nhost: localhost\r\n\r\n")[0] == 200:
                return True
        time.sleep(0.002)
    return False


class Clients:
    """Several connections, each of which sends the next request as soon as it has an answer.

    Attributes:
        wrong: What the server did wrong, as text.
    """

    def __init__(self, server: Server, port: int, rng: random.Random) -> None:
        self.server, self.rng, self.wrong = server, rng, list[str]()
        self.selector = selectors.DefaultSelector()
        for _ in range(CLIENTS):
            connection = Connection(port)
            self.selector.register(connection.socket, selectors.EVENT_READ, connection)
            self._send(connection)

    def run(self, seconds: float, is_stopping: bool = False) -> None:
        """Ask for some time; at the end each connection waits for an answer. A server that is stopping may refuse."""
        end = time.monotonic() + seconds
        while self.selector.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in self.selector.select(left):
                connection: Connection = key.data
                try:
                    if (answer := connection.receive()) is not None:
                        self._check(answer, connection.request, is_stopping)
                        self._send(connection)
                except OSError as error:
                    self._drop(connection)
                    if not is_stopping:
                        self.wrong.append(f"a connection was lost ({error})")

    def close(self) -> None:
        for key in list(self.selector.get_map().values()):
            self._drop(key.data)
        self.selector.close()

    def _send(self, connection: Connection) -> None:
        request = self.rng.randrange(len(self.server.requests))
        connection.send(request, self.server.requests[request])

    def _drop(self, connection: Connection) -> None:
        self.selector.unregister(connection.socket)
        connection.socket.close()

    def _check(self, answer: Answer, request: int, is_stopping: bool) -> None:
        right = self.server.expected[str(request)]
        # Whether the inputs have drifted depends on the requests before this one.
        is_right = answer[0] == right[0] and _without_drift(answer[1]) == _without_drift(right[1])
        if not is_right and not (is_stopping and answer[0] == 503):
            self.wrong.append(f"request {request} was answered with {answer}, not {right}"[:300])


def _without_drift(body: Any) -> Any:
    return {key: value for key, value in body.items() if key != "drift_alarm"}


def state(place: Path) -> dict[str, tuple[Any, ...]]:
    """Everything in a folder: kind, mode, time of the last change and, of a file, a digest."""
    found = {}
    for path in sorted(place.rglob("*")):
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(place))] = status.st_mode, status.st_mtime_ns, content
    return found


def undisturbed(server: Server, folder: Path) -> Server:
    """Run a server without kills, and keep its answers."""
    place = prepared(folder, folder / f"{server.name} done")
    server.requests = make_requests(folder / "data")
    port = free_port()
    process = server.start(place, port)
    if not wait_until_ready(process, port):
        sys.exit(f"kill: moon {server.name} fails undisturbed:\n{process.text()}")
    server.seconds = time.monotonic() - process.started
    server.expected = server.answers(port)
    process.kill()
    return server


def prepared(done: Path, place: Path) -> Path:
    """A copy of the folder with the packed network, and a folder for temporary files in it."""
    place = fresh(done / "pack done", place)
    (place / "temporary").mkdir()
    return place


def disturb(server: Server, process: Process, port: int, rng: random.Random) -> tuple[str, str, list[str]]:
    """Wait for a moment at which to kill a server; what was chosen, the phase, and what went wrong until then."""
    moment = rng.choice(MOMENTS if server.is_forked else [name for name in MOMENTS if name != "loading"])
    if moment == "start":
        seconds = rng.uniform(0, server.seconds)
        process.wait(seconds)
        return f"{1000 * seconds:.0f} ms after its start", phases.PHASES.now(), []
    if moment == "loading":
        count, delay = rng.randint(1, 2), rng.expovariate(1000)
        while process.poll() is None and not phases.PHASES.reached("loading", count):
            time.sleep(0.0001)
        time.sleep(delay)
        return f"{1000 * delay:.1f} ms after load {count}", phases.PHASES.now(), []
    if not wait_until_ready(process, port):
        return "before it was ready", "start", ["it was never ready"]
    clients, seconds = Clients(server, port, rng), rng.uniform(0, 0.4)
    clients.run(seconds)
    how = f"after {1000 * seconds:.0f} ms of answers"
    if moment == "draining":
        seconds = rng.uniform(0, 0.35)
        os.kill(process.pid, signal.SIGTERM)
        clients.run(seconds, is_stopping=True)
        how += f" and SIGTERM {1000 * seconds:.0f} ms before"
        process.wait(0)
    clients.close()
    return how, moment, clients.wrong


def trial(server: Server, done: Path, place: Path, port: int, rng: random.Random, report: Report) -> None:
    """Kill a server a few times, then start one that must answer as if nothing had happened."""
    place = prepared(done, place)
    before = state(place)
    report.counts["runs"] += 1
    story, problems = [], []
    for _ in range(rng.randint(1, 3) if server.is_forked else 1):
        process = server.start(place, port)
        how, phase, wrong = disturb(server, process, port, rng)
        problems += wrong
        if process.poll() is None:
            process.kill()
            report.counts["kills"] += 1
            report.counts[f"{server.name}, {phase}"] += 1
        elif phase != "draining" or process.code:
            problems.append(f"it ended with code {process.code}: {process.text()[-300:]}")
        else:
            how += " (too late)"
        story.append(how)
        problems += [f"{name} changed" for name in differing(before, state(place))]
    process = server.start(place, port)
    if wait_until_ready(process, port):
        names = differing(server.expected, server.answers(port))
        problems += [f"a new one answers differently to request {name}" for name in names]
        os.kill(process.pid, signal.SIGTERM)
        code = process.wait()
        problems += [f"{name} changed" for name in differing(before, state(place))]
        if code != 0:
            problems.append(f"a new one ended with code {code} after SIGTERM: {process.text()[-300:]}")
        kind = "different" if problems else ""
    else:
        kind = "lost"
        problems.append(f"a new one is not ready: {process.text()[-300:]}")
    process.kill()
    if kind:
        report.finding(kind, f"moon {server.name}, killed {', '.join(story)}: {'; '.join(problems)}")
    else:
        report.counts["identical"] += 1
