"""Listen on a port: accept, sweep what holds a place without getting on, stop in good order."""

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from weft_core.authority import listen_host
from weft_router.errors import ApiError
from weft_router.http.budget import Budget
from weft_router.http.connection import Connection, Handler
from weft_router.http.connections import Connections
from weft_router.http.exchange import Exchange
from weft_router.http.head import Gate, Peer
from weft_router.http.limits import HttpLimits

BACKLOG = 4096
_TURNS = 3
"""Of the loop: what was accepted in the turn before the last is made known in the one after the next."""


class Listener:
    """A listening HTTP/1.1 server."""

    def __init__(
        self, handler: Handler, *, refused: Callable[[Exchange, ApiError], None], limits: HttpLimits,
        gate: Gate | None = None, budget: Budget | None = None,
    ) -> None:  # fmt: skip
        """Set ``limits`` for each client and a ``budget`` for all of them; no bound where there is none."""
        self.connections = Connections(handler, refused, limits, budget)
        self.connections.accept = self._accept
        self._limits = limits
        self._gate = gate
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """Return the port it listens on."""
        if self._server is None:
            raise RuntimeError("not listening")
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self, host: str, port: int, *, shared: bool = False, tls: ssl.SSLContext | None = None) -> None:
        """Listen; ``::`` is every address of both families.

        With ``shared`` other processes listen on the same port, too, and the kernel spreads connections.
        A context given as ``tls`` may load another certificate while it serves: new connections use it. Handshakes
        take no place of a connection, and end after ``handshake_s``.
        """
        limits = self._limits
        self._server = await asyncio.get_running_loop().create_server(
            self._accept, listen_host(host), port, backlog=BACKLOG, reuse_address=True, reuse_port=shared, ssl=tls,
            ssl_handshake_timeout=limits.handshake_s if tls is not None else None,
            ssl_shutdown_timeout=limits.linger_s if tls is not None else None,
        )  # fmt: skip
        self._sweep()

    def stop_accepting(self) -> None:
        """Refuse new connections; those that are open go on."""
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Close the remaining connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.stop_accepting()
        for _ in range(_TURNS):
            self.connections.abort()
            await asyncio.sleep(0)

    def _accept(self, peer: Peer | None = None) -> asyncio.Protocol:
        return cast(asyncio.Protocol, Connection(self.connections, self._limits, gate=self._gate, peer=peer))

    def _sweep(self) -> None:
        self.connections.check()
        self._sweeper = asyncio.get_running_loop().call_later(self._limits.sweep_s, self._sweep)
