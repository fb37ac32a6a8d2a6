"""A server in a process of its own, images with the answers that they must get, and requests as bytes."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import moon_runtime
import numpy as np
from PIL import Image


class Server(NamedTuple):
    """A running server."""

    process: subprocess.Popen[str]
    port: int
    start_seconds: float

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def memory(self) -> float:
        """Resident megabytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)

    @property
    def cpu_seconds(self) -> float:
        """What it has used of the CPUs so far; other load on the machine changes it less than elapsed time."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(*command: object, wait: float = 30) -> Iterator[Server]:
    """Run a server, which prints its address as its first line, until the end of the block."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if "http://" not in line:
            process.kill()
            raise RuntimeError(f"the server did not start: {line}{process.communicate()[1]}")
        port = int(line.partition("http://")[2].partition(" ")[0].rpartition(":")[2])
        while time.perf_counter() - began < wait:
            try:
                if request_once(port, get("/ready"))[0] == 200:
                    break
            except OSError:
                time.sleep(0.01)
        yield Server(process, port, time.perf_counter() - began)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def serve(model: Path | str, *options: object) -> Any:
    """A server of ours at any free port."""
    return serving("-m", "moon_runtime.serve", model, "--port", 0, *options)


def get(path: str, *headers: str) -> bytes:
    """The bytes of a GET request."""
    return "\r\n".join([f"GET {path} HTTP/1.1", "host: localhost", *headers, "", ""]).encode()


def post(body: bytes, kind: str = "image/png", *headers: str, length: int | None = None) -> bytes:
    """The bytes of a request for answers."""
    size = len(body) if length is None else length
    head = ["POST /predict HTTP/1.1", "host: localhost", f"content-type: {kind}", f"content-length: {size}", *headers]
    return "\r\n".join([*head, "", ""]).encode() + body


def form(images: Sequence[tuple[str, bytes]]) -> bytes:
    """The bytes of a request with several images."""
    parts = [
        f'--xxB\r\ncontent-disposition: form-data; name="f{i}"; filename="{name}"\r\n\r\n'.encode() + data + b"\r\n"
        for i, (name, data) in enumerate(images)
    ]  # fmt: skip
    return post(b"".join(parts) + b"--xxB--\r\n", "multipart/form-data; boundary=xxB")


def request_once(port: int, content: bytes, timeout: float = 10) -> tuple[int, dict[str, str], bytes]:
    """Send bytes over a new connection; status, headers and body of the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout) as connection:
        connection.sendall(content)
        return read_answer(connection)


def read_answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the next answer."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _more(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += _more(connection)
    return int(first.split()[1]), headers, body


def _more(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionError("the connection was closed")
    return data


def image_bytes(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    """An image file."""
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


class Case(NamedTuple):
    """An image file and its right answer, as JSON writes it."""

    data: bytes
    answer: dict[str, Any]


def cases(model: Path | str, count: int, seed: int = 0, is_prepared: bool = False) -> list[Case]:
    """Random images, each asked about alone: noise, blocks and gradients in several formats and sizes.

    Args:
        model: The file of the network.
        count: How many.
        seed: Of the images.
        is_prepared: Whether all have the size of the network's input, in PNG.
    """
    classifier = moon_runtime.load(model)
    rng, chooser = np.random.default_rng(seed), random.Random(seed)
    channels, rows, columns = classifier.input_shape
    made = []
    for _ in range(count):
        scale = 1.0 if is_prepared else chooser.uniform(0.5, 3)
        size = round(rows * scale), round(columns * scale)
        cells = rng.integers(0, 256, (chooser.randint(2, 9), chooser.randint(2, 9), 3), dtype=np.uint8)
        smooth = Image.fromarray(cells).resize(
            size[::-1], chooser.choice([Image.Resampling.NEAREST, Image.Resampling.BILINEAR])
        )
        pixels = np.asarray(smooth if channels == 3 else smooth.convert("L"))
        kind = "PNG" if is_prepared else chooser.choice(["PNG", "JPEG", "BMP", "WEBP"])
        data = image_bytes(pixels, kind)
        answer = classifier(BytesIO(data))[0].as_json()
        made.append(Case(data, json.loads(json.dumps(answer))))
    return made
