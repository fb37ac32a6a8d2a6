"""Requests that are refused: a status code and one clear line."""

from __future__ import annotations


class Refused(Exception):
    """A request that gets an error as its answer.

    Args:
        status: The HTTP status code.
        reason: One line: what is wrong, and what to do.
        retry_after: Seconds after which the client may try again.
        is_last: Whether the connection is closed.
    """

    def __init__(self, status: int, reason: str, *, retry_after: int | None = None, is_last: bool = False) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason
        self.headers: dict[str, str] = {}
        if retry_after is not None:
            self.headers["retry-after"] = str(retry_after)
        if is_last:
            self.headers["connection"] = "close"


def busy(reason: str) -> Refused:
    """Too much to do: try again soon."""
    return Refused(429, reason, retry_after=1)


def unavailable(reason: str, *, is_last: bool = False) -> Refused:
    """Not now: try again, here or elsewhere."""
    return Refused(503, reason, retry_after=1, is_last=is_last)
