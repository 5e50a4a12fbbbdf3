"""One request to an engine or another router process: sent, answered piece by piece, ended by one future."""

import asyncio
from time import monotonic
from typing import Protocol

from weft_router.errors import LegFailedError


class Carrier(Protocol):
    """The connection a leg runs over."""

    def pause(self) -> None:
        """Stop reading."""

    def resume(self) -> None:
        """Read again."""

    def drop(self) -> None:
        """Close at once."""


class Leg:
    """A call under way.

    ``until`` is the deadline, moved by whoever serves the leg; ``end`` caps it. What takes the answer is called from
    the connection's own callback, so nothing waits between a token's arrival and its departure.
    """

    __slots__ = ("_connecting", "_connection", "_paused", "answered", "done", "end", "idle_s", "lost", "until")

    def __init__(self, *, first_s: float, idle_s: float = 0.0, total_s: float = 0.0) -> None:
        """Allow ``first_s`` until the answer's first byte, ``idle_s`` after each (0: no more than before)."""
        now = monotonic()
        until = now + first_s
        self.end = end = now + total_s if total_s else until
        self.until = until if until < end else end
        self.idle_s = idle_s
        self.lost = ""
        self.answered = False
        """Whether a byte of the answer came."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection: Carrier | None = None
        self._connecting: asyncio.Timeout | None = None
        self._paused = False

    def connecting(self, scope: asyncio.Timeout | None) -> None:
        """Name what ends the wait for a connection when the leg fails meanwhile; None when there is no such wait."""
        self._connecting = scope

    def attach(self, connection: Carrier) -> None:
        """Run over a connection from now on."""
        self._connection = connection
        if self._paused:
            connection.pause()

    def again(self) -> None:
        """Forget a failure: the leg is sent once more."""
        self.lost = ""
        self.done = asyncio.get_running_loop().create_future()

    def extend(self, now: float) -> None:
        """Move the deadline: a piece of the answer came."""
        if self.idle_s:
            until = now + self.idle_s
            self.until = until if until < self.end else self.end

    def late(self, now: float) -> bool:
        """Tell whether its time is over; while it waits for the client only the end of all counts."""
        return (self.until < now and not self._paused) or self.end < now

    def fail(self, reason: str, detail: str = "") -> None:
        """End the leg: close its connection, which aborts the work at its other end."""
        if self.lost in ("", "disconnected"):
            self.lost = reason
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop()
        if self._connecting is not None:
            self._connecting.reschedule(0.0)
        if not self.done.done():
            self.done.set_exception(LegFailedError(self.lost, detail))
            self.done.exception()  # a leg that is lost while it connects has nobody to hear of it

    def finish(self) -> None:
        """End the leg well: its answer is whole."""
        self._connection = None
        if not self.done.done():
            self.done.set_result(None)

    def pause(self) -> None:
        """Read nothing more for now: the client does not keep up."""
        self._paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Read again."""
        self._paused = False
        self.extend(monotonic())
        if self._connection is not None:
            self._connection.resume()

    @property
    def paused(self) -> bool:
        """Tell whether it waits for the client."""
        return self._paused


class Whole:
    """Takes an answer in one piece, bounded."""

    __slots__ = ("_leg", "_limit", "_parts", "_size", "headers", "status")

    def __init__(self, leg: Leg, limit: int) -> None:
        self._leg = leg
        self._limit = limit
        self._parts: list[bytes] = []
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
            self._leg.fail("reply-too-large", f"more than {self._limit} bytes")
            return
        self._parts.append(chunk)

    @property
    def body(self) -> bytes:
        """Return the body so far."""
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
