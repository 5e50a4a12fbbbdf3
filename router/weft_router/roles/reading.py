"""Read a request's body within what one request, and all of them, may take."""

from weft_router.api.body import Json, measured
from weft_router.api.nodes import AT_ONCE, NODE_BYTES, bound_in_turns
from weft_router.wire.budget import EACH
from weft_router.wire.exchange import Exchange

FEW = EACH // NODE_BYTES
"""Nodes that are counted with every request."""


async def read(exchange: Exchange, most: int) -> Json:
    """Return the JSON object in a request's body; while a long one is looked at, others are served.

    Raises:
        InvalidRequestError: it is none.
        TooLargeError: it has more than ``most`` nodes.
        UnavailableError: there is no room now for what it makes.
    """
    if len(exchange.body) > AT_ONCE:
        await bound_in_turns(exchange.body, most)
    return read_at_once(exchange, most)


def read_at_once(exchange: Exchange, most: int) -> Json:
    """Do as ``read`` does, in one step; a body above ``AT_ONCE`` has been looked at.

    Raises:
        ApiError: as ``read`` does.
    """
    body, nodes = measured(exchange.body, most)
    if nodes > FEW:
        exchange.hold(nodes * NODE_BYTES)
    return body
