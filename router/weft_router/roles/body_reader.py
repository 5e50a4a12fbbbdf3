"""Read a request's body within what one request, and all of them, may take."""

from weft_router.http.budget import EACH
from weft_router.http.exchange import Exchange
from weft_router.openai.body import Json, measured
from weft_router.openai.nodes import AT_ONCE, NODE_BYTES, bound_in_turns
from weft_router.openai.widths import widening, widening_in_turns

FEW = EACH // NODE_BYTES
"""Nodes that are counted with every request."""
SHORT = EACH // 3
"""Bodies up to here take no more than that, however wide their texts are."""


async def read_body(exchange: Exchange, most: int) -> Json:
    """Return the JSON object in a request's body; while a long one is looked at, others are served.

    Raises:
        InvalidRequestError: it is none.
        TooLargeError: it has more than ``most`` nodes.
        UnavailableError: there is no room now for what it makes.
    """
    raw = exchange.body
    if len(raw) > AT_ONCE:
        await bound_in_turns(raw, most)
        wider = await widening_in_turns(raw)
    else:
        wider = widening(raw) if len(raw) > SHORT else 0
    if wider:
        exchange.hold(wider * len(raw))
    body, nodes = measured(raw, most)
    if nodes > FEW:
        exchange.hold(nodes * NODE_BYTES)
    return body
