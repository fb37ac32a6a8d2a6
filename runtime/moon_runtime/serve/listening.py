"""A uvicorn server that cuts slow clients and, when it is stopped, finishes what it accepted."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import time
from contextlib import suppress
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from moon_runtime.serve.app import Service
from moon_runtime.serve.batching import PATIENCE

DRAIN_SECONDS = 3.0  # for requests that were accepted, when the server is stopped; all of it takes less than 5
_NOTICE_SECONDS = 0.3  # in which new requests get 503, so that clients learn to go elsewhere
_HEADER_SECONDS = 10.0  # for the headers of a request, and for a connection without one
_LINGER_SECONDS = 1.0  # for a client to read a refusal and close
_MOST = 4  # times --max-connections, of which those beyond the limit are there for probes and refusals


def _answer(status: str, reason: str) -> bytes:
    body = f'{{"error":"{reason}"}}'
    return (f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
            f"content-length: {len(body)}\r\n\r\n{body}").encode()  # fmt: skip


class _Lingering:
    """A transport that is closed when the client has closed it, or after a second.

    If it were closed while the client is still sending, the client would see a reset connection, not the answer.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop, self._closes = transport, loop, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._closes or self._transport.is_closing()

    def close(self) -> None:
        if not self.is_closing():
            self._closes = True
            with suppress(OSError):  # the client has gone
                self._transport.write_eof()
            self._transport.resume_reading()
            self._loop.call_later(_LINGER_SECONDS, self._transport.close)


def make_protocol(service: Service, header_seconds: float = _HEADER_SECONDS) -> type[H11Protocol]:
    """uvicorn's HTTP protocol with limits: of connections, and of the time that a client may take.

    uvicorn closes a connection that is idle after a request, but waits for ever for the headers of the first one, and
    for clients that do not read their answer.

    Args:
        service: The application; its settings say the limits.
        header_seconds: The time for the headers of a request.
    """
    settings = service.settings
    longest = settings.body_timeout + PATIENCE * settings.timeout + header_seconds

    class Connection(H11Protocol):
        _timer: asyncio.TimerHandle | None = None
        _state: tuple[object, bool] = (None, True)
        _since = 0.0
        _header_seconds = header_seconds

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(_Lingering(transport, self.loop))  # type: ignore[arg-type]
            count = len(self.connections)
            if count > _MOST * settings.max_connections:
                self.transport.write(_answer("503 Service Unavailable", "too many connections; try again"))
                self.transport.close()
                return
            address = (self.client or ("",))[0]
            own = sum((getattr(other, "client", None) or ("",))[0] == address for other in self.connections)
            if count > settings.max_connections or (own > settings.max_connections / 2 and address != settings.proxy):
                self.app, self._header_seconds = service.when_full, header_seconds / 10
            self._since = self.loop.time()
            self._timer = self.loop.call_later(self._header_seconds / 4, self._look)

        def data_received(self, data: bytes) -> None:
            if not self.transport.is_closing():
                super().data_received(data)

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
            if now - self._since <= (self._header_seconds if is_idle else longest):
                self._timer = self.loop.call_later(self._header_seconds / 4, self._look)
            elif is_idle:
                if self.conn.trailing_data[0]:  # half of a request
                    self.transport.write(_answer("408 Request Timeout", "the headers did not come in time"))
                self.transport.close()
            else:
                self.transport.abort()

    return Connection


class Server(uvicorn.Server):
    """Serves until SIGTERM or Ctrl-C, then answers what was accepted; a second signal ends it at once.

    Args:
        service: The application.
    """

    def __init__(self, service: Service) -> None:
        super().__init__(uvicorn.Config(
            service, http=make_protocol(service), loop="asyncio", ws="none", lifespan="off", interface="asgi3",
            log_config=None, log_level="error", access_log=False, server_header=False,
            proxy_headers=service.settings.proxy is not None, forwarded_allow_ips=service.settings.proxy or "",
            timeout_graceful_shutdown=1, h11_max_incomplete_event_size=16_384,
        ))  # fmt: skip
        self._service = service
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # of open files, which connections are; -1: no limit
        wanted = _MOST * service.settings.max_connections + 64
        if 0 <= soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard < 0 else min(wanted, hard), hard))

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
