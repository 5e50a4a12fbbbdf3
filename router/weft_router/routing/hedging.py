"""Race a prefill of the top class in two places; the slower one is cancelled at its engine, or its KV released."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Literal

from weft_router.sessions.round import PrefilledKv
from weft_router.telemetry.metrics import Metrics

HERE: Final = "local"
"""The decode worker's own engine: its prefix cache holds the prompt then, and there is no KV to read."""
Start = Callable[[str], Awaitable[PrefilledKv | Literal["local"] | None]]


async def race_prefills(
    start: Start, first: str, second: str, *, metrics: Metrics, unread: Callable[[PrefilledKv], None]
) -> PrefilledKv | Literal["local"] | None:
    """Return what came first from either place, None when neither gave anything; the other one is given up.

    ``unread`` is called with a finished prefill whose KV will not be read.
    """
    won: PrefilledKv | Literal["local"] | None = None
    legs = {place: asyncio.ensure_future(start(place)) for place in (first, second)}
    pending = set(legs.values())
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for leg in [leg for leg in legs.values() if leg in done]:
                won = leg.result()
                if won is not None:
                    metrics.hedges.labels("first" if leg is legs[first] else "second").inc()
                    return won
        metrics.hedges.labels("neither").inc()
        return None
    finally:
        for leg in legs.values():
            leg.cancel()
        for made in await asyncio.gather(*legs.values(), return_exceptions=True):
            if isinstance(made, PrefilledKv) and made is not won:
                unread(made)
