"""Links between the router's processes: who asks for them, and the endpoint that begins one."""

from weft_core.keys import derive
from weft_router.config import Settings
from weft_router.errors import ApiError
from weft_router.http.exchange import Exchange
from weft_router.http.link import PROTOCOL
from weft_router.http.pool import ConnectionPool

SIDECAR_KEEPALIVE_S = 30.0
"""The rest of connections to sidecars, and of links without one."""


def linked_pool(settings: Settings) -> ConnectionPool:
    """Return connections to sidecars, each of which proved itself, over a link to each one that carries them."""
    return ConnectionPool(
        connect_s=settings.config.timeouts.connect, keepalive_s=SIDECAR_KEEPALIVE_S, links=True,
        hop_key=derive(settings.token, "hop"),
    )  # fmt: skip


async def serve_link(exchange: Exchange) -> None:
    """Carry streams over the connection of a request from now on.

    Raises:
        ApiError: it asks for something else.
    """
    if exchange.headers.get("upgrade") != PROTOCOL:
        raise ApiError(f"upgrade: this path speaks {PROTOCOL} only", status=426)
    exchange.switch()
