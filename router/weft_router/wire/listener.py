"""Listen on a port: accept, sweep what holds a place without getting on, stop in good order."""

import asyncio
import ssl
from collections.abc import Callable

from weft_router.errors import ApiError
from weft_router.wire.connection import BODY_S, Connection, Connections, Handler
from weft_router.wire.exchange import Exchange
from weft_router.wire.request import Gate

BACKLOG = 4096
STALL_S = 30.0
"""How long a client may leave its buffer full."""
SWEEP_S = 0.5


class Listener:
    """A listening HTTP/1.1 server."""

    def __init__(
        self, handler: Handler, *, refused: Callable[[Exchange, ApiError], None], max_body: int,
        gate: Gate | None = None, body_s: float = BODY_S, stall_s: float = STALL_S,
    ) -> None:  # fmt: skip
        self.connections = Connections(handler, refused)
        self._max_body = max_body
        self._gate = gate
        self._body_s = body_s
        self._stall_s = stall_s
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """Return the port it listens on."""
        if self._server is None:
            raise RuntimeError("not listening")
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self, host: str, port: int, *, shared: bool = False, tls: ssl.SSLContext | None = None) -> None:
        """Listen; with ``shared`` other processes listen on the same port, too, and the kernel spreads connections."""
        self._server = await asyncio.get_running_loop().create_server(
            self._accept, host, port, backlog=BACKLOG, reuse_address=True, reuse_port=shared, ssl=tls
        )
        self._sweep()

    def stop_accepting(self) -> None:
        """Refuse new connections; those that are open go on."""
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Cut off whoever is still connected."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.stop_accepting()
        self.connections.abort()
        await asyncio.sleep(0)

    def _accept(self) -> Connection:
        return Connection(
            self.connections, max_body=self._max_body, gate=self._gate, body_s=self._body_s, stall_s=self._stall_s
        )

    def _sweep(self) -> None:
        self.connections.check()
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
