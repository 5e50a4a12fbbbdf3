"""Bindings: one answer for all, kept without the store, given back to it, moved when their worker goes."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.heartbeat import WorkerRecord
from weft_core.policies.live_binding import Binding
from weft_core.policies.snapshot import BindingView
from weft_router.routing.binding_policies import BATCH_S, RECENT_S, BindingPolicies
from weft_router.state.bindings import Bindings
from weft_router.state.store import LESS, MemoryStore, StoreDownError
from weft_router_tests.passing_store import PassingStore


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Flaky(PassingStore):
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


async def test_the_store_keeps_a_binding_for_as_long_as_any_coordinator_goes_by_it() -> None:
    class Timed(Flaky):
        """Tells when its bindings end."""

        until = 0.0

        async def bind(self, session: str, worker: str, *, replaces: str, ttl_s: int) -> str:
            self.until = clock.now + ttl_s
            return await super().bind(session, worker, replaces=replaces, ttl_s=ttl_s)

    store, clock = Timed(), Clock()
    bindings = coordinator(store, clock=clock)
    await resolve(bindings, "a")
    for step in (0.0, 24.0, 20.0, 25.0, 10.0):  # each use is within a quarter of the time to live, or just beyond it
        clock.now += step
        assert bindings.bound("s") == "a"
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert store.until > clock.now + 100, "the session lives here until then"


class Held(Flaky):
    """A store whose answers are held up."""

    def __init__(self) -> None:
        super().__init__()
        self.come, self.go = asyncio.Event(), asyncio.Event()
        self.go.set()

    async def bind(self, session: str, worker: str, *, replaces: str, ttl_s: int) -> str:
        self.come.set()
        await self.go.wait()
        return await super().bind(session, worker, replaces=replaces, ttl_s=ttl_s)

    async def bind_all(self, bindings: Sequence[tuple[str, str]], *, ttl_s: int) -> None:
        self.come.set()
        await self.go.wait()
        await super().bind_all(bindings, ttl_s=ttl_s)


@pytest.mark.parametrize("how", ["publish", "republish"])
async def test_a_binding_that_is_being_published_does_not_bring_an_ended_session_back(how: str) -> None:
    store, clock = Held(), Clock()
    bindings = coordinator(store, clock=clock)
    await resolve(bindings, "a")
    store.come.clear()
    store.go.clear()
    clock.now = 50.0
    work = None
    if how == "publish":
        assert bindings.bound("s") == "a"
    else:
        work = asyncio.create_task(bindings.republish())
    await store.come.wait()
    assert bindings.forget("s") == "a"
    ending = asyncio.create_task(bindings.unbind("s"))
    await asyncio.sleep(0)
    store.go.set()
    await ending
    if work is not None:
        await work
    for _ in range(5):  # what is still under way ends
        await asyncio.sleep(0)
    assert await store.unbind("s") is None


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


async def test_a_front_that_has_its_store_alone_keeps_bindings_itself() -> None:
    clock, store = Clock(), MemoryStore(alone=True)
    bindings = Bindings(store, ttl_s=100, store_up=lambda: True, clock=clock)
    assert bindings.bound("s") is None
    assert await resolve(bindings, "a") == "a"
    assert await resolve(bindings, "b") == "a"
    assert await resolve(bindings, "b", session="t") == "b"
    clock.now = 90
    assert bindings.bound("s") == "a"
    assert await resolve(bindings, "c", session="t", usable="ac") == "c", "its worker is gone"
    clock.now = 180
    assert (bindings.bound("s"), bindings.bound("t")) == ("a", "c")
    assert len(store._bindings) == 0
    assert (bindings.forget("s"), await bindings.unbind("s")) == ("a", None)
    clock.now = 290
    assert bindings.bound("t") is None
    assert len(bindings) == 0


def record(name: str, *, used: int, capacity: int = 1000, sessions: int = 0) -> WorkerRecord:
    return WorkerRecord(name, "decode", "http://x", 1, capacity, kv_used=used, sessions=sessions, ready=True)


def test_sessions_go_where_kv_is_free_counting_those_just_placed() -> None:
    clock = Clock()
    placement = BindingPolicies({"default": "kv-headroom"}, clock=clock)
    workers = [record("a", used=100), record("b", used=300)]
    assert [placement.choose(workers, needed_kv=150) for _ in range(4)] == ["a", "a", "b", "a"]
    clock.now = 10
    assert placement.choose(workers, needed_kv=150) == "a"
    assert placement.choose(workers, needed_kv=150, avoid={"a"}) == "b"
    assert placement.choose([], needed_kv=1) is None


def test_full_workers_still_serve_the_least_full_first() -> None:
    placement = BindingPolicies({"default": "kv-headroom"}, clock=Clock())
    assert placement.choose([record("a", used=990), record("b", used=900)], needed_kv=500) == "b"


def test_what_one_class_placed_counts_for_the_others() -> None:
    placement = BindingPolicies({"default": "kv-headroom", "batch": "round-robin"}, clock=Clock())
    workers = [record("a", used=100), record("b", used=300)]
    assert placement.choose(workers, needed_kv=400, class_="batch") == "a"
    assert placement.choose(workers, needed_kv=1) == "b", "a has 500 of 1000 in use by now"
    assert placement.choose(workers, needed_kv=1, class_="batch") == "b"


@given(
    st.sampled_from(["kv-headroom", "least-requests", "round-robin", "prefix-aware"]),
    st.lists(
        st.tuples(
            st.floats(0, 1.5) | st.floats(0, 2 * BATCH_S),
            st.integers(1, 400),
            st.sampled_from(["", "a", "b"]),
            st.integers(0, 3),
        ),
        max_size=25,
    ),
)
def test_what_is_kept_between_two_choices_changes_none(rule: str, steps: list[tuple[float, int, str, int]]) -> None:
    clock = Clock()
    placement, binding = BindingPolicies({"default": rule}, clock=clock), Binding(rule)
    workers = [record(name, used=i * 90, capacity=1000 + 500 * (i == 1)) for i, name in enumerate("bca")]
    placed: list[tuple[float, str, int]] = []
    for later, needed_kv, avoided, beat in steps:
        clock.now += later
        if beat < len(workers):  # a heartbeat
            workers[beat] = replace(workers[beat], seq=workers[beat].seq + 1, kv_used=needed_kv, batch=needed_kv % 3)
        placed = [one for one in placed if one[0] >= clock.now - RECENT_S]
        views = []
        for r in workers:
            mine = [tokens for _, name, tokens in placed if name == r.worker]
            seen = BindingView(r.worker, r.kv_used + sum(mine), r.capacity, r.sessions + len(mine), r.batch + len(mine))
            views += [seen] if r.worker != avoided else []
        expected = binding.choose(views, needed_kv=needed_kv)
        if expected is None:
            expected = min(views, key=lambda v: (v.kv_used / v.kv_capacity, v.sessions, v.worker)).worker
        assert placement.choose(workers, needed_kv=needed_kv, avoid={avoided} - {""}) == expected
        began = max((at for at, name, _ in placed if name == expected), default=-1.0)
        placed.append((began if clock.now < began + BATCH_S else clock.now, expected, needed_kv))


def test_bindings_change_and_whoever_stays_knows_whose_turn_it_is() -> None:
    placement = BindingPolicies({"default": "round-robin", "batch": "round-robin"}, clock=Clock())
    workers = [record(name, used=0) for name in "abc"]
    assert placement.choose(workers, needed_kv=500) == "a"
    assert placement.choose(workers, needed_kv=1, class_="batch") == "b", "classes of one rule take turns together"
    placement.reload({"default": "kv-headroom", "batch": "round-robin"})
    assert placement.choose(workers, needed_kv=1, class_="batch") == "c"
    placement.reload({"default": "kv-headroom"})
    assert placement.choose(workers, needed_kv=1, class_="batch") == "b", (
        "a was given 500; b has the first name of the others"
    )


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
    most = LESS + 3
    monkeypatch.setattr("weft_router.state.store.MOST_KEPT", most)
    store = MemoryStore()
    await store.put_head("old", "s", ttl_s=-1)
    for k in range(most):
        await store.put_head(f"h{k}", f"s{k}", ttl_s=60)
    assert await store.sessions_of(["old", "h0"]) == [None, "s0"]
    await store.put_head("one more", "s", ttl_s=60)
    assert len(store._heads) == 3
    kept = ["h0", f"h{most - 3}", f"h{most - 2}", f"h{most - 1}", "one more"]
    assert await store.sessions_of(kept) == [None, None, f"s{most - 2}", f"s{most - 1}", "s"]


async def test_where_a_prompt_was_prefilled_outlives_its_decode_worker() -> None:
    clock = Clock()
    bindings = coordinator(Flaky(), clock=clock)
    bindings.note_prefill("s", "p1", 3000)
    assert bindings.last_prefill("s") is None, "no such session"
    await resolve(bindings, "a")
    assert bindings.last_prefill("s") is None
    clock.now = 5.0
    bindings.note_prefill("s", "p1", 3000)
    await resolve(bindings, "b", usable="b")
    assert bindings.peek("s") == "b"
    assert bindings.last_prefill("s") == ("p1", 3000, 5.0)
