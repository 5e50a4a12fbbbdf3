"""Bindings: one answer for all, kept without the store, given back to it, moved when their worker goes."""

from collections.abc import Sequence

import pytest

from weft_router.rounds.placement import Placement
from weft_router.state.bindings import Bindings
from weft_router.state.store import MemoryStore, StoreDownError, WorkerRecord


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Flaky(MemoryStore):
    """A store that can fail, counting how often it is asked."""

    down = False
    asked = 0

    async def bind(self, session: str, worker: str, *, replaces: str, ttl_s: int) -> str:
        self.asked += 1
        if self.down:
            raise StoreDownError("scripted")
        return await super().bind(session, worker, replaces=replaces, ttl_s=ttl_s)


def coordinator(store: Flaky, *, up: bool = True, clock: Clock | None = None) -> Bindings:
    return Bindings(store, ttl_s=100, store_up=lambda: up, clock=clock or Clock())


async def resolve(bindings: Bindings, chosen: str | None, *, usable: str = "abc", session: str = "s") -> str | None:
    return await bindings.resolve(session, usable=lambda worker: worker in usable, choose=lambda: chosen)


async def test_the_first_answer_holds_for_all_coordinators_and_is_asked_once() -> None:
    store = Flaky()
    one, two = coordinator(store), coordinator(store)
    assert await resolve(one, "a") == "a"
    assert await resolve(two, "b") == "a"
    for bindings in (one, two, one):
        assert await resolve(bindings, "c") == "a"
    assert store.asked == 2


async def test_a_session_moves_when_its_worker_is_unusable_and_the_others_follow() -> None:
    store = Flaky()
    one, two = coordinator(store), coordinator(store)
    await resolve(one, "a")
    await resolve(two, "a")
    assert await resolve(one, "b", usable="bc") == "b"
    assert await resolve(two, "c", usable="bc") == "b"
    assert await resolve(coordinator(store), "c", usable="c") == "c"
    assert await resolve(one, None, usable="") is None


async def test_without_the_store_choices_are_kept_and_published_later() -> None:
    store = Flaky()
    clock = Clock()
    up = False
    alone = Bindings(store, ttl_s=100, store_up=lambda: up, clock=clock)
    assert await resolve(alone, "a") == "a"
    assert store.asked == 0
    store.down = up = True
    assert await resolve(alone, "b", session="t") == "b"
    store.down = False
    await alone.republish()
    assert await resolve(coordinator(store), "c") == "a"
    assert await resolve(coordinator(store), "c", session="t") == "b"


async def test_idle_sessions_expire_and_used_ones_do_not() -> None:
    clock = Clock()
    bindings = coordinator(Flaky(), clock=clock)
    await resolve(bindings, "a")
    clock.now = 90
    assert await resolve(bindings, "b") == "a"
    clock.now = 180
    bindings.expire()
    assert bindings.peek("s") == "a"
    clock.now = 191
    assert bindings.peek("s") is None
    await resolve(bindings, "a", session="u")
    clock.now = 300
    bindings.expire()
    assert len(bindings) == 0


def record(name: str, *, used: int, capacity: int = 1000, sessions: int = 0) -> WorkerRecord:
    return WorkerRecord(name, "decode", "http://x", 1, capacity, kv_used=used, sessions=sessions, ready=True)


def test_sessions_go_where_kv_is_free_counting_those_just_placed() -> None:
    clock = Clock()
    placement = Placement("kv-headroom", clock=clock)
    workers = [record("a", used=100), record("b", used=300)]
    assert [placement.choose(workers, need=150) for _ in range(4)] == ["a", "a", "b", "a"]
    clock.now = 10
    assert placement.choose(workers, need=150) == "a"
    assert placement.choose(workers, need=150, avoid={"a"}) == "b"
    assert placement.choose([], need=1) is None


def test_full_workers_still_serve_the_least_full_first() -> None:
    placement = Placement("kv-headroom", clock=Clock())
    assert placement.choose([record("a", used=990), record("b", used=900)], need=500) == "b"


async def test_a_session_that_expires_while_it_is_published_again_does_no_harm() -> None:
    clock = Clock()

    class Slow(Flaky):
        async def bind_all(self, bindings: Sequence[tuple[str, str]], *, ttl_s: int) -> None:
            clock.now = 101.0
            one.expire()
            await super().bind_all(bindings, ttl_s=ttl_s)

    one = coordinator(Slow(), clock=clock)
    await resolve(one, "a")
    clock.now = 100.0
    await one.republish()
    assert len(one) == 0


async def test_a_store_in_memory_forgets_what_is_over_and_keeps_no_more_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("weft_router.state.store.MOST_KEPT", 3)
    store = MemoryStore()
    await store.put_head("old", "s", ttl_s=-1)
    for k in range(5):
        await store.put_head(f"h{k}", f"s{k}", ttl_s=60)
    assert await store.sessions_of(["old", "h0", "h1", "h2", "h4"]) == [None, None, None, "s2", "s4"]
    assert len(store._heads) == 3
