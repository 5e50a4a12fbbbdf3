"""One request to an engine or another router process: sent, answered piece by piece, ended by one future."""

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

from weft_router.errors import LegFailedError

if TYPE_CHECKING:
    from weft_router.wire.pool import Upstream


class Leg:
    """A call under way.

    ``until`` is the deadline, moved by whoever serves the leg; ``end`` caps it. What takes the answer is called from
    the connection's own callback, so nothing waits between a token's arrival and its departure.
    """

    __slots__ = ("_connection", "_paused", "answered", "connected", "done", "end", "idle_s", "lost", "until")

    def __init__(self, *, first_s: float, idle_s: float = 0.0, total_s: float = 0.0) -> None:
        """Allow ``first_s`` until the answer's first byte, ``idle_s`` after each (0: no more than before)."""
        now = monotonic()
        self.end = now + (total_s or first_s)
        self.until = min(now + first_s, self.end)
        self.idle_s = idle_s
        self.lost = ""
        self.answered = False
        """Whether a byte of the answer came."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection: Upstream | None = None
        self._paused = False

    def attach(self, connection: "Upstream") -> None:
        """Run over a connection from now on."""
        self._connection = connection
        if self._paused:
            connection.pause()

    def detach(self) -> None:
        """Run over no connection."""
        self._connection = None

    def extend(self, now: float) -> None:
        """Move the deadline: a piece of the answer came."""
        if self.idle_s:
            until = now + self.idle_s
            self.until = until if until < self.end else self.end

    def fail(self, reason: str, detail: str = "") -> None:
        """End the leg: close its connection, which aborts the work at its other end."""
        self.lost = self.lost or reason
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop()
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
