"""What a server may be told, and its limits. This module needs the standard library only."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from ipaddress import ip_address
from typing import Any


@dataclass(frozen=True)
class Settings:
    """What a server accepts; the options of the command line describe it.

    Raises:
        ValueError: If a limit is out of range.
    """

    host: str = "127.0.0.1"
    allow_host: Sequence[str] = ()
    allow_origin: Sequence[str] = ()
    proxy: str | None = None
    token: str | None = None
    max_batch: int = 32
    batch_wait_ms: float = 2.0
    max_queue: int = 256
    max_images: int = 32
    max_body_mb: float = 16.0
    max_pixels: int = 2**24
    timeout: float = 10.0
    body_timeout: float = 20.0
    max_connections: int = 512
    false_alarm: float = 0.01

    def __post_init__(self) -> None:
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token):
            raise ValueError("the token must be one or more printable ASCII characters; without a token, leave it out")
        if self.token is not None and self.token != self.token.strip():
            raise ValueError("the token must not begin or end with a space, which clients cannot send")
        if not 0 < self.false_alarm < 1:
            raise ValueError(f"--false-alarm must be a fraction between 0 and 1, not {self.false_alarm}")
        for field in fields(self):
            value: Any = getattr(self, field.name)
            is_limit = isinstance(value, int | float) and field.name not in ("false_alarm", "batch_wait_ms")
            if is_limit and not 0 < value < float("inf"):
                raise ValueError(f"--{field.name.replace('_', '-')} must be above 0, not {value}")
        if not 0 <= self.batch_wait_ms <= 1000:
            raise ValueError(f"--batch-wait-ms must be from 0 to 1000, not {self.batch_wait_ms:g}")
        if self.max_images > self.max_queue:
            raise ValueError(
                f"--max-images {self.max_images} is more than --max-queue {self.max_queue}: such a request could never "
                "be answered; give a smaller --max-images or a larger --max-queue"
            )

    @property
    def max_body(self) -> int:
        """The limit of a request's body in bytes."""
        return round(self.max_body_mb * 1e6)

    @property
    def max_memory(self) -> int:
        """The limit of all bodies that are held at the same time, in bytes."""
        return max(256_000_000, 2 * self.max_body)

    def is_own_name(self, host: str) -> bool:
        """Whether a Host header names this server: any does, unless it serves this machine only or has a list."""
        if not self.allow_host and not is_loopback(self.host):
            return True
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        return is_loopback(name) or name.lower() in self.allow_host


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a server to a parser. `moon serve` has the same; a test compares them."""
    add, default = parser.add_argument, Settings()
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine only)")
    add("--allow-host", action="append", default=[], metavar="NAME",
        help="accept requests whose Host is NAME (default: any; with a loopback --host, only its names)")  # fmt: skip
    add("--allow-origin", action="append", default=[], metavar="ORIGIN",
        help="accept requests from pages of another site, such as https://example.org")  # fmt: skip
    add("--proxy", metavar="ADDRESS", help="address of a reverse proxy that sets X-Forwarded-For")
    add("--port", type=int, default=8000, help="port to listen on; 0: any free one (default: %(default)s)")
    add("--threads", type=int, default=1, help="threads that compute the network (default: %(default)s)")
    add("--limit", type=float, default=1, metavar="N",
        help="allow a file that you trust N times the memory and time (default: %(default)s)")  # fmt: skip
    add("--token", default=os.environ.get("MOON_TOKEN"), metavar="SECRET",
        help="clients must send it as a bearer token (default: $MOON_TOKEN, which other users cannot see)")  # fmt: skip
    add("--max-batch", type=int, default=default.max_batch, metavar="N",
        help="images that are computed at once (default: %(default)s)")  # fmt: skip
    add("--batch-wait-ms", type=float, default=default.batch_wait_ms, metavar="MS",
        help="how long an image waits for others that are being decoded (default: %(default)g)")  # fmt: skip
    add("--max-queue", type=int, default=default.max_queue, metavar="N",
        help="images that may wait; above it, requests get 429 (default: %(default)s)")  # fmt: skip
    add("--max-images", type=int, default=default.max_images, metavar="N",
        help="images in one request (default: %(default)s)")  # fmt: skip
    add("--max-body-mb", type=float, default=default.max_body_mb, metavar="MB",
        help="size of a request (default: %(default)g)")  # fmt: skip
    add("--max-pixels", type=int, default=default.max_pixels, metavar="N",
        help="pixels of one image (default: %(default)s)")  # fmt: skip
    add("--timeout", type=float, default=default.timeout, metavar="S",
        help="seconds until a request that waits for its answer gets 503 (default: %(default)g)")  # fmt: skip
    add("--body-timeout", type=float, default=default.body_timeout, metavar="S",
        help="seconds in which a client must have sent its request (default: %(default)g)")  # fmt: skip
    add("--max-connections", type=int, default=default.max_connections, metavar="N",
        help="connections at a time (default: %(default)s)")  # fmt: skip
    add("--false-alarm", type=float, default=default.false_alarm, metavar="P",
        help="probability of a false drift alarm, for each 10,000 images (default: %(default)g)")  # fmt: skip


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The settings that parsed options give.

    Raises:
        ValueError: If a limit is out of range.
    """
    return Settings(**{field.name: getattr(arguments, field.name) for field in fields(Settings)})
