"""Where the KV of each session is: for ``/debug/sessions``. Sessions go by the hashes by which logs name them."""

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from heapq import nsmallest
from typing import Final
from urllib.parse import parse_qs

import orjson

from weft_router.errors import InvalidRequestError
from weft_router.sessions.engine_kv import KvPlaces
from weft_router.sessions.session import Session
from weft_router.sessions.session_table import SessionTable

SHOWN: Final = 100
MOST: Final = 1000
FIELDS: Final = ("n", "sort", "session")
Entry = tuple[str, str, Session]
"""A worker, a session's key, and its state."""

ORDERS: Mapping[str, Callable[[Session, float], float]] = {
    "tokens": lambda session, _: -session.tokens,
    "idle": lambda session, _: session.ended_at,
    "rounds": lambda session, _: -session.rounds,
    "handle": lambda session, now: _left_s(session, now) or math.inf,
}
"""What each order sorts by, the smallest first: most tokens, longest idle, most rounds, the handle that ends first."""


async def sessions_page(
    tables: Mapping[str, SessionTable],
    query: bytes,
    *,
    now: float,
    places_of: Callable[[Entry], Awaitable[KvPlaces | None]],
) -> bytes:
    """Return the JSON for ``/debug/sessions?n=…&sort=…&session=…``; tables by worker, ``now`` on the monotonic clock.

    ``places_of`` says where a session's KV is, None where that is not known.

    Raises:
        InvalidRequestError: a field is unknown, given twice, or out of range.
    """
    n, order, wanted = _parsed(query)
    by = ORDERS[order]
    shown = nsmallest(n, _entries(tables, wanted), key=lambda entry: by(entry[2], now))
    total = sum(len(table) for table in tables.values())
    rows = [row_of(*entry, now=now, kv=await places_of(entry)) for entry in shown]
    return orjson.dumps({"total": total, "sessions": rows})


def row_of(worker: str, key: str, session: Session, *, now: float, kv: KvPlaces | None) -> dict[str, object]:
    """Return what is known of one session.

    ``tier`` is "gpu" while a handle keeps the KV in GPU memory; afterwards only the engine knows, and it is null.
    ``kv`` has the tokens by tier, where the engine's events tell them.
    ``kvWorker`` is another worker while the KV is still on the one that the session left.
    """
    left_s = _left_s(session, now)
    return {
        "session": key,
        "worker": worker,
        "kvWorker": session.handle.holder if session.away and session.handle is not None else worker,
        "class": session.class_ or "default",
        "tokens": session.tokens,
        "rounds": session.rounds,
        "tier": "gpu" if left_s is not None else None,
        "kv": kv,
        "handleSeconds": None if left_s is None else round(left_s, 1),
        "idleSeconds": round(max(0.0, now - session.ended_at), 1),
    }


def _entries(tables: Mapping[str, SessionTable], wanted: str) -> Iterator[Entry]:
    for worker, table in tables.items():
        found: Iterable[tuple[str, Session]] = table.items()
        for key, session in found:
            if key.startswith(wanted):
                yield worker, key, session


def _left_s(session: Session, now: float) -> float | None:
    """Return how long a session's handle may still be offered, None without one that may."""
    handle = session.handle
    return handle.deadline - now if handle is not None and handle.live(now) else None


def _parsed(query: bytes) -> tuple[int, str, str]:
    try:
        fields = parse_qs(query.decode("latin-1"), keep_blank_values=True, max_num_fields=8)
    except ValueError as error:
        raise InvalidRequestError(f"too many fields; use {', '.join(FIELDS)}") from error
    for name, values in fields.items():
        if name not in FIELDS:
            raise InvalidRequestError(f"there is no such field; use {', '.join(FIELDS)}", param=name[:32])
        if len(values) > 1:
            raise InvalidRequestError(f"{name}: give it once", param=name)
    n, order = fields.get("n", [str(SHOWN)])[0], fields.get("sort", ["tokens"])[0]
    if not (n.isascii() and n.isdigit() and 1 <= int(n[:9]) <= MOST):
        raise InvalidRequestError(f"n: give a number from 1 to {MOST}", param="n")
    if order not in ORDERS:
        raise InvalidRequestError(f"sort: give one of {', '.join(ORDERS)}", param="sort")
    return int(n), order, fields.get("session", [""])[0]
