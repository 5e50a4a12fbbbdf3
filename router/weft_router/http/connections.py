"""All clients' connections of one listening server: places, deadlines, the end."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import cast

from weft_router.errors import ApiError
from weft_router.http.budget import Budget
from weft_router.http.connection import Connection, Handler
from weft_router.http.deadlines import IDLE
from weft_router.http.exchange import Exchange
from weft_router.http.head import Peer
from weft_router.http.limits import HttpLimits
from weft_router.http.link import Link
from weft_router.http.link_dialer import carry_link
from weft_router.http.stream import Stream

log = logging.getLogger(__name__)

POLITE = 256
"""Number of clients beyond the limit that get an error response; further ones are disconnected."""


class Connections:
    """The connections that are open; ``cut`` counts those that were ended, by reason."""

    def __init__(
        self, handler: Handler, refused: Callable[[Exchange, ApiError], None], limits: HttpLimits,
        budget: Budget | None = None,
    ) -> None:  # fmt: skip
        self.handler = handler
        self.refused = refused
        self.budget = budget if budget is not None else Budget()
        self.closing = False
        self.cut: Counter[str] = Counter()
        self._over = False
        self._most = limits.max_connections
        self._live: set[Connection] = set()
        self._links: set[Link] = set()
        self._quiet_s = limits.keep_alive_s
        self.accept: Callable[[Peer], asyncio.Protocol] | None = None
        """Makes the connection that a link's stream is: the peer is that of the link."""

    def __len__(self) -> int:
        """Return how many clients are connected."""
        return len(self._live)

    def add(self, connection: Connection) -> bool:
        """Know a new connection; tell whether there is a place for it."""
        self._live.add(connection)
        if self._over:  # the loop had accepted it, and says so only now
            connection.abort()
            return True
        if len(self._live) <= self._most:
            return True
        self.cut["too many"] += 1
        if len(self._live) > self._most + POLITE:
            connection.abort()
        return False

    def remove(self, connection: Connection) -> None:
        """Forget a lost one."""
        self._live.discard(connection)

    def carry(self, transport: asyncio.Transport, peer: Peer) -> None:
        """Turn a connection into a link, whose streams are served as connections; a stream cannot become a link."""
        if self._over or isinstance(cast(object, transport), Stream):
            transport.abort()
            return
        accept = None if self.accept is None else partial(self.accept, peer)
        link = Link(accept=accept, on_lost=self._links.discard)
        self._links.add(link)
        carry_link(transport, link)

    def check(self) -> int:
        """Close the connections that hold a place without getting on; return how many that were."""
        now = monotonic()
        late = [why for connection in list(self._live) if (why := connection.check(now)) is not None]
        for link in list(self._links):
            if not link.streams and now - link.quiet_since > self._quiet_s:
                link.close()
        for why in late:
            self.cut[why] += 1
            if why != IDLE:
                log.info("connection_closed", extra={"reason": why})
        return len(late)

    def close_after_replies(self, *, idle: bool) -> None:
        """Close every present and future connection after its next response; with ``idle`` close idle ones now."""
        self.closing = True
        for connection in list(self._live):
            connection.closing = True
            if idle and not connection.busy:
                connection.close()

    def abort(self) -> None:
        """Cut all off, and those to come."""
        self._over = True
        for connection in list(self._live):
            connection.abort()
        for link in list(self._links):
            link.close()
