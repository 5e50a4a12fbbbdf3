"""What a decode worker's engine has of a session's history without a handle, as far as its KV events tell."""

from collections.abc import Mapping
from time import monotonic

from weft_router.sessions.session import PrefixMatch, Session
from weft_router.workers.worker import Worker

KvPlaces = Mapping[str, int]
"""How many tokens of a session are in each tier (weft_core.kv_index.TIERS), and nowhere (``none``)."""


def as_cached(worker: Worker, session: str, prefix_match: PrefixMatch) -> PrefixMatch:
    """Return a round's match with what was dropped of the history as new, and what tiers have of it as to be loaded."""
    cache = worker.kv_cache
    if cache is None or not prefix_match.continues or prefix_match.handle is not None:  # else it is kept to be read
        return prefix_match
    rank = worker.engine.rank_of(session)
    kept = cache.kept_tokens(session, rank)
    if kept is not None and kept < prefix_match.task.history:
        prefix_match = prefix_match.evicted(kept)
    below = cache.below(session, rank)
    return prefix_match.loaded(below) if below else prefix_match


def held_tokens(worker: Worker, session: str) -> tuple[int, Mapping[str, int]]:
    """Return how many tokens of a session's history the engine has, and those of them in tiers, by tier."""
    cache = worker.kv_cache
    return (0, {}) if cache is None else cache.held(session, worker.engine.rank_of(session))


def tier_copy(worker: Worker, session: str) -> tuple[str, int]:
    """Return a tier and how many tokens of a session's history it has, were they gone from GPU memory."""
    cache = worker.kv_cache
    return ("", 0) if cache is None else cache.in_tiers(session, worker.engine.rank_of(session))


async def kv_places(worker: Worker, key: str, session: Session) -> KvPlaces | None:
    """Return where the KV of a session is; None where that is not known."""
    cache, handle = worker.kv_cache, session.handle
    if cache is None or session.away:
        return None
    pinned = handle is not None and handle.live(monotonic())
    return await cache.places(key, tokens=session.tokens, pinned=pinned, rank=worker.engine.rank_of(key))
