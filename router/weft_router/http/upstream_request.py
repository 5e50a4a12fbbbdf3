"""One request to an engine or another router process: its state from sending to its end."""

import asyncio
from abc import ABC, abstractmethod
from time import monotonic
from typing import Protocol

from weft_router.errors import UpstreamFailedError
from weft_router.http.inline_task import Signal


class UpstreamTransport(Protocol):
    """The connection that a request runs over."""

    def pause(self) -> None:
        """Stop reading."""

    def resume(self) -> None:
        """Read again."""

    def drop(self) -> None:
        """Close at once."""


class RequestSender(ABC):
    """Who sends a request. A base and no protocol: compiled code calls methods of its own classes directly."""

    @abstractmethod
    def lost(self, request: "UpstreamRequest") -> bool:
        """Handle the failure of a request; tell whether it is sent once more."""

    @abstractmethod
    def ended(self, request: "UpstreamRequest") -> None:
        """Handle the end of a request."""


class UpstreamRequest(Signal):
    """One request in progress.

    ``until`` is the deadline, moved by whoever serves it; ``end`` caps it. What takes the answer is called from
    the connection's own callback, so nothing waits between a token's arrival and its departure; ``on_done`` is, too,
    once the answer is whole, and in a later iteration of the event loop when it failed, with the UpstreamFailedError.
    """

    __slots__ = (
        "_connecting", "_connection", "again", "answered", "began", "end", "fresh", "idle_s", "lost", "paused",
        "resent", "sender", "until",
    )  # fmt: skip

    def __init__(self, *, first_s: float, idle_s: float = 0.0, total_s: float = 0.0) -> None:
        """Time out ``first_s`` after the start, or where ``idle_s`` is above 0, ``idle_s`` after the last byte."""
        self.error = None
        self.over = False
        self.on_done = None
        self.began = began = monotonic()
        until = began + first_s
        self.end = end = began + total_s if total_s else until
        self.until = until if until < end else end
        self.idle_s = idle_s
        self.lost = ""
        self.answered = False
        """Whether a byte of the answer came."""
        self.fresh = False
        """Whether one came since the deadline was last looked at."""
        self.paused = False
        """Whether it waits for the client."""
        self.sender: RequestSender | None = None
        """Who sent it; set by the sender."""
        self.resent = False
        """Whether it was sent once more: the first time it may have reached its server."""
        self.again: object = None
        """What its sender keeps to send it once more."""
        self._connection: UpstreamTransport | None = None
        self._connecting: asyncio.Task[None] | None = None

    def connecting(self, task: "asyncio.Task[None] | None") -> None:
        """Name what to cancel when the request fails while it waits for a connection; None when it does not wait."""
        self._connecting = task

    def attach(self, connection: UpstreamTransport) -> None:
        """Run over a connection from now on."""
        self._connection = connection
        if self.paused:
            connection.pause()

    def late(self, now: float) -> bool:
        """Return whether its time is over; while it waits for the client only the end of all counts."""
        if self.fresh:
            self.fresh = False
            if self.idle_s:
                self.until = min(now + self.idle_s, self.end)
        return (self.until < now and not self.paused) or self.end < now

    def fail(self, reason: str, detail: str = "") -> None:
        """End the request: close its connection, which aborts the work at its other end."""
        if self.lost in ("", "disconnected"):
            self.lost = reason
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop()
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
        if self.over or (self.sender is not None and self.sender.lost(self)):
            return
        self.over = True
        self.error = UpstreamFailedError(self.lost, detail)
        if self.sender is not None:
            self.sender.ended(self)
            self.notify_soon()

    def notify_soon(self) -> None:
        """Report the end in a later iteration of the event loop: it may occur within a call of the receiver."""
        asyncio.get_running_loop().call_soon(self.notify)

    def cancel(self) -> None:
        """End the request without reporting it."""
        self.on_done = None
        self.fail("cancelled")

    def finish(self) -> None:
        """End the request well: its answer is whole."""
        self._connection = None
        if self.over:
            return
        self.over = True
        if self.sender is not None:
            self.sender.ended(self)
        self.notify()

    def pause(self) -> None:
        """Read nothing more for now: the client does not keep up."""
        self.paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Read again."""
        self.paused = False
        self.fresh = True
        if self._connection is not None:
            self._connection.resume()


class BufferedResponse:
    """Takes an answer in one piece, bounded."""

    __slots__ = ("_first", "_limit", "_parts", "_request", "_size", "headers", "status")

    def __init__(self, request: UpstreamRequest, limit: int) -> None:
        self._request = request
        self._limit = limit
        self._first = b""
        self._parts: list[bytes] | None = None
        """All pieces, where there is more than the first."""
        self._size = 0
        self.status = 0
        self.headers: dict[str, str] = {}

    def head(self, status: int, headers: dict[str, str]) -> None:
        """Take the head."""
        self.status = status
        self.headers = headers

    def data(self, chunk: bytes) -> None:
        """Take a piece."""
        self._size += len(chunk)
        if self._size > self._limit:
            self._request.fail("reply-too-large", f"more than {self._limit} bytes")
            return
        if self._parts is not None:
            self._parts.append(chunk)
        elif self._first:
            self._parts = [self._first, chunk]
        else:
            self._first = chunk

    @property
    def body(self) -> bytes:
        """Return the body so far."""
        return self._first if self._parts is None else b"".join(self._parts)
