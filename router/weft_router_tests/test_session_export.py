"""What moves with a session from a draining worker, and which sessions are waited for."""

from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from weft_core.cost import CostProfileError
from weft_core.heartbeat import WorkerRecord
from weft_core.kv_tiers import SPEEDS
from weft_core.policies.snapshot import PrefillTask
from weft_router.engines.handles import KvHandle
from weft_router.sessions import session_export
from weft_router.sessions.session import CachedPrompt, KvOrigin
from weft_router.sessions.session_export import SessionExport, dump_session, load_session
from weft_router.sessions.session_table import SessionTable
from weft_router_tests.test_session_table import FIRST, FOLLOW, Clock, begin, handle, started

PEERS = [WorkerRecord("p0", "prefill", "http://x", 1, 1000)]


class Costs:
    """A profile by which reading takes so many seconds, computing one."""

    kv_bytes_per_token = 25e6
    """A thousand tokens a second from the CPU's memory."""

    def __init__(self, read_s: float | None) -> None:
        self.read_s = read_s

    def t_kv(self, _tokens: float, **_: object) -> float:
        if self.read_s is None:
            raise CostProfileError("no such way")
        return self.read_s

    def t_pre(self, **_: object) -> float:
        return 1.0


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, kept: KvHandle | None, read_s: float | None = 0.1) -> None:
        self.clock = Clock()
        monkeypatch.setattr(session_export, "monotonic", self.clock)
        self.sessions = started(self.clock, kept)
        self.given_back: list[KvHandle] = []
        self.prefill_workers = PEERS
        self.elsewhere = True
        self.held: tuple[int, dict[str, int]] = (0, {})
        self.healthy = True
        config = SimpleNamespace(engine=SimpleNamespace(lease_seconds=30.0, tier_speeds=lambda: SPEEDS))
        costs = Costs(read_s)
        settings: Any = SimpleNamespace(degree=1, profile=costs, profile_of=lambda _: costs, config=config, worker="d0")
        self.session_export = SessionExport(
            settings,
            sessions=self.sessions,
            prefill_workers=lambda: self.prefill_workers,
            elsewhere=lambda: self.elsewhere,
            give_back=self.given_back.append,
            held=lambda _: self.held,
            healthy=lambda: self.healthy,
        )


def test_a_session_arrives_as_it_left(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KvHandle(params={"remote_host": "h"}, tokens=100, deadline=1100.0, digest=b"\1\2")
    world = World(monkeypatch, kept)
    found = world.session_export.export("s")
    assert found is not None
    there = Clock()
    there.now = 5.0  # another machine's clock
    arrived = load_session(orjson.loads(orjson.dumps(found)), there.now, source="d0")
    assert arrived is not None
    sessions = SessionTable(ttl_s=600, clock=there)
    sessions.take_over("s", arrived)
    there.now = 15.0
    prefix_match = begin(sessions, FOLLOW)
    assert prefix_match.away
    assert (prefix_match.handle, prefix_match.task) == (
        KvHandle(kept.params, 100, 105.0, b"\1\2", holder="d0"),
        PrefillTask(110, 20),
    )
    assert prefix_match.prefilled == {"p0": CachedPrompt(100, 5.0)}, "as long ago as it was there"
    assert (prefix_match.index, prefix_match.gap_s) == (1, 10.0)
    assert not prefix_match.continues, "nothing of it is here"
    assert len(world.sessions) == 0
    assert world.session_export.export("s") is None, "it is given away once"
    assert world.session_export.moved == {"handle": 1, "cache": 0, "prefill": 0}


def test_an_edited_history_is_not_read_from_the_worker_it_left(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, handle())
    found = world.session_export.export("s")
    assert found is not None
    sessions = SessionTable(ttl_s=600, clock=world.clock)
    arrived = load_session(found, world.clock.now, source="d0")
    assert arrived is not None
    sessions.take_over("s", arrived)
    prefix_match = begin(sessions, [*FIRST, {"role": "assistant", "content": "other"}, FOLLOW[2]])
    assert (prefix_match.handle, prefix_match.away, prefix_match.lost) == (None, False, "history_changed")
    assert prefix_match.spare is not None, "its KV is given back"
    assert prefix_match.task.history == 0
    assert prefix_match.forgone == 110


def test_a_handle_that_nobody_should_read_stays_and_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    dear = World(monkeypatch, handle(), read_s=2.0)
    alone = World(monkeypatch, handle())
    alone.prefill_workers = []
    for world in (dear, alone):
        assert world.session_export.waiting() == 0
        found = world.session_export.export("s")
        assert found is not None
        assert found["handle"] is None
        assert len(world.given_back) == 1
        assert world.session_export.moved == {"handle": 0, "cache": 0, "prefill": 1}
        assert not world.session_export.unread
    unknown = World(monkeypatch, handle(), read_s=None)
    assert unknown.session_export.waiting() == 1


def test_a_session_is_waited_for_as_long_as_sessions_usually_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, handle(deadline=1e6))
    world.clock.now += session_export.UNKNOWN_S
    assert world.session_export.waiting() == 1
    for k in range(100):
        world.session_export.paused(2.0 if k < 99 else 500.0)
    assert world.session_export.waiting() == 0, "it has paused longer than nearly all others did: it is over"
    world.clock.now = 1000.0 + session_export.SLACK * 2.0 + 0.9
    assert world.session_export.waiting() == 1


def test_what_was_lent_is_waited_for_until_its_lease_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, handle(deadline=1e6))
    brief = World(monkeypatch, handle(deadline=1001.0))
    told = World(monkeypatch, handle(deadline=1e6))
    for each in (world, brief, told):
        monkeypatch.setattr(session_export, "monotonic", world.clock)
        each.session_export.export("s")
        assert each.session_export.unread
    told.session_export.mark_read("s")
    assert not told.session_export.unread
    world.clock.now = 1002.0
    assert [each.session_export.unread for each in (world, brief)] == [True, False]
    world.clock.now = 1031.0
    assert not world.session_export.unread


def test_without_another_decode_worker_no_session_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, handle())
    assert world.session_export.waiting() == 1
    world.elsewhere = False
    assert world.session_export.waiting() == 0


def test_what_another_version_gives_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    found = World(monkeypatch, handle()).session_export.export("s")
    assert found is not None
    good = dict(found)
    for wrong in ({}, {**good, "transcript": []}, {**good, "tokens": "x"}, {**good, "handle": {"params": {}}}):
        assert load_session(wrong, 0.0, source="d0") is None
    assert load_session({**good, "transcript": {**good["transcript"], "kind": "image"}}, 0.0, source="d0") is None  # type: ignore[dict-item]
    again = load_session(good, 0.0, source="d0")
    assert again is not None
    assert dump_session(again, 0.0) == {**good, "handle": {**good["handle"], "holder": "d0"}}  # type: ignore[dict-item]


def test_kv_stays_with_its_holder_when_a_session_moves_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    found = World(monkeypatch, handle()).session_export.export("s")
    assert found is not None
    for source in ("d0", "d1"):
        arrived = load_session(found, 0.0, source=source)
        assert arrived is not None
        assert arrived.handle is not None
        assert arrived.handle.holder == "d0"
        found = dump_session(arrived, 0.0)


def test_tokens_are_counted_where_their_kv_is(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, handle())
    assert world.sessions.tokens == 110
    found = world.session_export.export("s")
    assert world.sessions.tokens == 0
    assert found is not None
    arrived = load_session(found, world.clock.now, source="d0")
    assert arrived is not None
    world.sessions.take_over("s", arrived)
    assert world.sessions.tokens == 0, "its KV is still on the other worker"
    world.sessions.finish("s", prompt_history=arrived.prompt_history, tokens=200, chars=1, handle=None, prefilled={})
    assert world.sessions.tokens == 200
    world.sessions.close("s")
    assert world.sessions.tokens == 0


def test_without_a_handle_a_session_moves_by_what_the_engine_has_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading takes 0.1 s and loading half a second, of the second that computing it would take."""
    world = World(monkeypatch, None)
    assert world.session_export.waiting() == 0
    world.held = 800, {"cpu": 500}
    assert world.session_export.waiting() == 1
    assert not world.session_export.lends("s")
    found = world.session_export.export("s")
    assert found is not None
    assert world.session_export.moved == {"handle": 0, "cache": 1, "prefill": 0}
    assert world.session_export.lends("s"), "it prefills the session's next round"
    assert world.session_export.unread

    arrived = load_session(orjson.loads(orjson.dumps(found)), world.clock.now, source="d0")
    assert arrived is not None
    assert arrived.origin == KvOrigin("d0", 800, 0.5)
    sessions = SessionTable(ttl_s=600, clock=world.clock)
    sessions.take_over("s", arrived)
    prefix_match = begin(sessions, FOLLOW)
    assert prefix_match.origin == arrived.origin
    assert (prefix_match.away, prefix_match.task.history, prefix_match.forgone) == (False, 0, 110)
    edited = begin(sessions, [*FIRST, {"role": "assistant", "content": "other"}, FOLLOW[2]])
    assert edited.origin is None, "that engine has another history"
    world.session_export.mark_read("s")
    assert not world.session_export.lends("s")
    world.clock.now += 31
    assert not world.session_export.unread


def test_what_loads_longer_than_it_computes_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, None)
    world.held = 1000, {"cpu": 950}
    assert world.session_export.waiting() == 0
    found = world.session_export.export("s")
    assert found is not None
    assert found["origin"] is None


def test_an_engine_that_is_gone_has_no_kv_but_its_sessions_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, handle())
    world.held, world.healthy = (800, {}), False
    found = world.session_export.export("s")
    assert found is not None
    assert (found["handle"], found["origin"], world.given_back) == (None, None, [])
    assert found["prefilled"], "which prefill worker may still have its prompt"
