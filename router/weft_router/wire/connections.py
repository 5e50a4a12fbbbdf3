"""Close connections that hold a place without asking for anything: silent ones, and headers that never end.

aiohttp has no deadline for the first request of a connection; one client could hold every descriptor.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Protocol

HEADERS_S = 10.0
"""From the connection to the end of its first request's headers."""
IDLE_S = 80.0
"""Between two requests; aiohttp's own keep-alive of 75 s ends quiet connections, this one those that trickle."""
CHECK_S = 1.0


class Connection(Protocol):
    """One accepted connection."""

    def force_close(self) -> None:
        """Close it at once."""


class Listening(Protocol):
    """A server that knows its connections."""

    @property
    def connections(self) -> Sequence[Connection]:
        """Return them."""


class Connections:
    """Who is connected to one server, and since when without being served."""

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._since: dict[Connection, float] = {}
        self._served: set[Connection] = set()

    @contextmanager
    def serving(self, connection: Connection) -> Iterator[None]:
        """Count a connection as busy while its request is served."""
        self._served.add(connection)
        self._since[connection] = float("inf")
        try:
            yield
        finally:
            self._since[connection] = self._clock()

    def check(self, server: Listening) -> int:
        """Close what has been idle for too long; return how many connections that were."""
        now = self._clock()
        live = set(server.connections)
        self._since = {connection: self._since.get(connection, now) for connection in live}
        self._served &= live
        late = [c for c, since in self._since.items() if now - since > (IDLE_S if c in self._served else HEADERS_S)]
        for connection in late:
            connection.force_close()
        return len(late)

    def close_idle(self, server: Listening) -> None:
        """Close every connection that is not being served; its last reply told the client so."""
        for connection in set(server.connections):
            if self._since.get(connection) != float("inf"):
                connection.force_close()

    async def watch(self, server: Listening) -> None:
        """Check every second until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            self.check(server)
