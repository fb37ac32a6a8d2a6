"""A uvicorn server that cuts slow clients and, when it is stopped, finishes what it accepted."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from moon_runtime.serve.app import Service

DRAIN_SECONDS = 3.0  # for requests that were accepted, when the server is stopped; all of it takes less than 5
_NOTICE_SECONDS = 0.3  # in which new requests get 503, so that clients learn to go elsewhere
_HEADER_SECONDS = 10.0  # for the headers of a request, and for a connection without one
_TOO_MANY = (
    b'HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n'
    b'content-length: 38\r\n\r\n{"error":"too many connections; wait"}'
)  # fmt: skip


def make_protocol(service: Service, header_seconds: float = _HEADER_SECONDS) -> type[H11Protocol]:
    """uvicorn's HTTP protocol with limits: of connections, and of the time that a client may take.

    uvicorn closes a connection that is idle after a request, but waits for ever for the headers of the first one, and
    for clients that do not read their answer.

    Args:
        service: The application; its settings say the limits.
        header_seconds: The time for the headers of a request.
    """
    settings = service.settings
    longest = settings.body_timeout + settings.timeout + header_seconds

    class Connection(H11Protocol):
        _timer: asyncio.TimerHandle | None = None
        _state: tuple[object, bool] = (None, True)
        _since = 0.0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > settings.max_connections:
                transport.write(_TOO_MANY)
                transport.close()
                return
            self._since = self.loop.time()
            self._timer = self.loop.call_later(header_seconds / 4, self._look)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._timer:
                self._timer.cancel()
            super().connection_lost(exc)

        def _look(self) -> None:
            """Close the connection if nothing has changed for too long."""
            is_idle = self.cycle is None or self.cycle.response_complete
            state, now = (self.cycle, is_idle), self.loop.time()
            if state != self._state:
                self._state, self._since = state, now
            if now - self._since > (header_seconds if is_idle else longest):
                self.transport.abort()
            else:
                self._timer = self.loop.call_later(header_seconds / 4, self._look)

    return Connection


class Server(uvicorn.Server):
    """Serves until SIGTERM or Ctrl-C, then answers what was accepted; a second signal ends it at once.

    Args:
        service: The application.
    """

    def __init__(self, service: Service) -> None:
        super().__init__(uvicorn.Config(
            service, http=make_protocol(service), loop="asyncio", ws="none", lifespan="off", interface="asgi3",
            log_config=None, log_level="error", access_log=False, server_header=False, proxy_headers=False,
            timeout_graceful_shutdown=1, h11_max_incomplete_event_size=16_384,
        ))  # fmt: skip
        self._service = service

    def handle_exit(self, sig: int, frame: Any) -> None:
        """On a signal. It is not raised again afterwards, so a stopped server is a success."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self._service.is_ready = False

    async def main_loop(self) -> None:
        await super().main_loop()
        began = time.monotonic()
        while not self.force_exit:
            waited = time.monotonic() - began
            if waited > DRAIN_SECONDS or (waited > _NOTICE_SECONDS and not self._service.in_flight):
                break
            await asyncio.sleep(0.02)


def listen(host: str, port: int) -> socket.socket:
    """Open a socket.

    Raises:
        OSError: If the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OSError(
                f"port {port} of {host} is in use; choose another one (--port), or stop that server"
            ) from None
        raise
    # Connections inherit it. asyncio sets it only for sockets whose protocol is given as TCP, which this one's is not;
    # without it, each answer waits 40 ms for the client's acknowledgement of its headers.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
