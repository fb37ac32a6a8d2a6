"""The images of a request: its body is read in pieces, with limits of size and time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from moon_runtime.serve.refusals import Refused, busy
from moon_runtime.serve.settings import Settings

_MAX_NAME = 200  # characters of a file's name that are kept
_RAW = ("application/octet-stream", "binary/octet-stream", "")
Receive = Callable[[], Awaitable[Any]]


class Upload(NamedTuple):
    """An image file as it was sent."""

    name: str | None
    data: bytes


class ClientGone(Exception):
    """The client closed the connection before it had sent all."""


class Budget:
    """The memory that all bodies together may use; those of one client at most half of it.

    Args:
        limit: In bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._used_by: Counter[str] = Counter()

    def take(self, count: int, client: str) -> None:
        """Use more; raises `Refused` (429) if there is not enough."""
        if self.used + count > self.limit or self._used_by[client] + count > self.limit // 2:
            raise busy("too many large requests at the same time; try again")
        self._add(count, client)

    def give_back(self, count: int, client: str) -> None:
        """Use less again."""
        self._add(-count, client)

    def _add(self, count: int, client: str) -> None:
        self.used += count
        self._used_by[client] += count
        if not self._used_by[client]:
            del self._used_by[client]


class _Raw:
    """A body that is one image."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, chunk: bytes) -> None:
        self._data += chunk

    def finish(self) -> list[Upload]:
        return [Upload(None, bytes(self._data))] if self._data else []


class _Multipart:
    """A form: every part is an image."""

    def __init__(self, boundary: bytes, settings: Settings) -> None:
        self._limit = settings.max_images
        self._uploads: list[Upload] = []
        self._name: str | None = None
        self._key, self._value, self._data = bytearray(), bytearray(), bytearray()
        self._is_complete = False
        self._parser = MultipartParser(boundary, {
            "on_part_begin": self._begin, "on_header_field": self._add_key, "on_header_value": self._add_value,
            "on_header_end": self._end_header, "on_part_data": self._add_data, "on_part_end": self._end,
            "on_end": self._complete,
        })  # fmt: skip

    def write(self, chunk: bytes) -> None:
        try:
            self._parser.write(chunk)
        except FormParserError:
            raise Refused(400, "the body is not valid multipart/form-data") from None

    def finish(self) -> list[Upload]:
        if not self._is_complete:
            raise Refused(400, "the multipart body is incomplete: its last boundary is missing")
        return self._uploads

    def _begin(self) -> None:
        if len(self._uploads) == self._limit:
            raise Refused(413, f"more than {self._limit} images in one request; send several requests")
        self._name, self._data = None, bytearray()

    def _add_key(self, data: bytes, start: int, end: int) -> None:
        self._key += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._key.lower() == b"content-disposition":
            _, options = parse_options_header(bytes(self._value))
            self._name = _readable(options.get(b"filename") or options.get(b"name") or b"")
        self._key, self._value = bytearray(), bytearray()

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        self._data += data[start:end]

    def _end(self) -> None:
        self._uploads.append(Upload(self._name, bytes(self._data)))
        self._data = bytearray()

    def _complete(self) -> None:
        self._is_complete = True


def _readable(name: bytes) -> str | None:
    """A file's name without folders, at most 200 characters."""
    text = name.decode("utf-8", "replace").replace("\\", "/").rpartition("/")[2]
    return text[:_MAX_NAME] or None


def _reader(content_type: bytes, settings: Settings) -> _Raw | _Multipart:
    kind, options = parse_options_header(content_type)
    kind = kind.decode("latin-1").lower()
    if kind == "multipart/form-data":
        boundary = options.get(b"boundary", b"")
        if not 0 < len(boundary) <= 200:
            raise Refused(400, "multipart/form-data needs a boundary of 1 to 200 characters")
        return _Multipart(boundary, settings)
    if kind.startswith("image/") or kind in _RAW:
        return _Raw()
    raise Refused(
        415, "send an image (content type image/* or application/octet-stream) or several as multipart/form-data"
    )


def _length(headers: dict[bytes, bytes]) -> int:
    """The declared size of the body; 0 if it is not known (chunked). HTTP's own parser has checked the number."""
    text = headers.get(b"content-length", b"")
    return int(text) if text.isdigit() else 0


async def read_uploads(
    headers: dict[bytes, bytes], receive: Receive, settings: Settings, budget: Budget, client: str
) -> tuple[list[Upload], int]:
    """Read the images of a request.

    Args:
        headers: The headers of the request, with names in lower case.
        receive: Returns the next part of the body, as in ASGI.
        settings: The limits.
        budget: The memory for all bodies. What is used must be given back by the caller.
        client: Who sends it.

    Returns:
        The images, and how much of the budget they use.

    Raises:
        Refused: If a limit is exceeded, or the body cannot be understood.
        ClientGone: If the client is gone.
    """
    too_large = Refused(413, f"the request is larger than {settings.max_body:,} bytes")
    if _length(headers) > settings.max_body:
        raise too_large
    reader = _reader(headers.get(b"content-type", b""), settings)
    size = reserved = 0  # what is declared is not reserved: clients that send nothing must not stop the others
    try:
        async with asyncio.timeout(settings.body_timeout):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                chunk = message.get("body", b"")
                size += len(chunk)
                if size > settings.max_body:
                    raise too_large
                budget.take(size - reserved, client)
                reserved = size
                reader.write(chunk)
                if not message.get("more_body", False):
                    break
        uploads = reader.finish()
        if not uploads:
            raise Refused(422, "the request contains no image")
        return uploads, reserved
    except TimeoutError:
        budget.give_back(reserved, client)
        raise Refused(
            408, f"the request was not complete after {settings.body_timeout:g} seconds", is_last=True
        ) from None
    except BaseException:
        budget.give_back(reserved, client)
        raise
