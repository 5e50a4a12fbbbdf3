"""The page of sessions: sorted, bounded, and with what is known of each session's KV."""

import asyncio
from typing import Any

import orjson
import pytest

from weft_router.engines.handles import KvHandle
from weft_router.errors import InvalidRequestError
from weft_router.openai.prompt_history import history_of
from weft_router.sessions.session_table import SessionTable
from weft_router.sessions.session_view import MOST, ORDERS, Entry, sessions_page
from weft_router_tests.test_session_table import FIRST, Clock, chat


def handle(deadline: float, holder: str = "") -> KvHandle:
    return KvHandle(params={}, tokens=100, deadline=deadline, digest=None, holder=holder)


def table(clock: Clock, *rounds: tuple[str, int, KvHandle | None], class_: str = "") -> SessionTable:
    """Return sessions that ended one second after the other, with these tokens and handles."""
    sessions = SessionTable(ttl_s=600, clock=clock)
    for key, tokens, kept in rounds:
        sessions.finish(
            key,
            prompt_history=history_of(chat(FIRST)),
            tokens=tokens,
            chars=1,
            handle=kept,
            prefilled={},
            class_=class_,
        )
        clock.now += 1.0
    return sessions


async def nothing(_: Entry) -> None:
    return None


def page(tables: dict[str, SessionTable], query: str, now: float, places_of: Any = nothing) -> Any:
    return orjson.loads(asyncio.run(sessions_page(tables, query.encode(), now=now, places_of=places_of)))


def test_a_row_says_where_the_kv_is_as_far_as_it_is_known() -> None:
    clock = Clock()
    sessions = table(clock, ("a", 500, handle(clock.now + 100)), ("b", 90, handle(clock.now + 1)), class_="gold")
    found = page({"w0": sessions}, "", clock.now + 8)
    assert found["total"] == 2
    first, second = found["sessions"]
    assert first == {
        "session": "a",
        "worker": "w0",
        "kvWorker": "w0",
        "class": "gold",
        "tokens": 500,
        "rounds": 1,
        "tier": "gpu",
        "kv": None,
        "handleSeconds": 90.0,
        "idleSeconds": 10.0,
    }
    assert (second["tier"], second["handleSeconds"]) == (None, None), "its handle is over: only the engine knows"


def test_a_row_has_the_tokens_by_tier_where_they_are_known() -> None:
    async def places_of(entry: Entry) -> dict[str, int]:
        return {"gpu": entry[2].tokens - 1, "none": 1}

    clock = Clock()
    (row,) = page({"w0": table(clock, ("a", 500, None))}, "", clock.now, places_of)["sessions"]
    assert row["kv"] == {"gpu": 499, "none": 1}


def test_kv_may_still_be_on_the_worker_that_a_session_left() -> None:
    clock = Clock()
    sessions = table(clock, ("a", 500, handle(clock.now + 100, holder="w9")))
    session = sessions.hand_over("a")
    assert session is not None
    session.away = True
    sessions.take_over("a", session)
    (row,) = page({"w0": sessions}, "", clock.now)["sessions"]
    assert (row["worker"], row["kvWorker"]) == ("w0", "w9")


@pytest.mark.parametrize(("sort", "order"), [("tokens", "bca"), ("idle", "abc"), ("handle", "cab"), ("rounds", "abc")])
def test_orders(sort: str, order: str) -> None:
    clock = Clock()
    now = clock.now
    one = table(clock, ("a", 1, handle(now + 60)), ("b", 3, None))
    other = table(clock, ("c", 2, handle(now + 50)))
    rows = page({"w0": one, "w1": other}, f"sort={sort}", clock.now)["sessions"]
    assert "".join(row["session"] for row in rows) == order
    assert len(page({"w0": one, "w1": other}, f"sort={sort}&n=2", clock.now)["sessions"]) == 2


def test_sessions_are_found_by_the_begin_of_their_hash() -> None:
    clock = Clock()
    sessions = table(clock, ("abc", 1, None), ("abd", 2, None), ("b", 3, None))
    rows = page({"w0": sessions}, "session=ab", clock.now)["sessions"]
    assert [row["session"] for row in rows] == ["abd", "abc"]


@pytest.mark.parametrize("query", ["n=0", f"n={MOST + 1}", "n=x", "sort=size", "other=1", "n=1&n=2", "a=1&" * 9])
def test_queries_that_cannot_be_are_refused(query: str) -> None:
    with pytest.raises(InvalidRequestError):
        page({}, query, now=0.0)


def test_the_orders_have_names_that_commands_know() -> None:
    assert set(ORDERS) == {"tokens", "idle", "rounds", "handle"}
