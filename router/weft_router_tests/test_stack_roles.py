"""Workers whose roles change while they serve, and layouts in which workers have both roles."""

import asyncio
import logging
from time import monotonic
from typing import Any

import pytest

from weft_core.layouts import WorkerRole
from weft_core.policies.registry import POLICIES
from weft_router_tests.stack import Stack, is_so, router_json, until

pytestmark = pytest.mark.component

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
LONG: list[dict[str, Any]] = [{"role": "user", "content": "a long history that pays to be read " * 20}]


@pytest.fixture
def movable(stack: Stack) -> Stack:
    """Give a service, in both compositions, whose workers' roles may change."""
    stack.movable = True
    return stack


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read role files ten times as often, so that tests of many changes are short."""
    monkeypatch.setattr("weft_router.roles.role_switch.PERIOD_S", 0.1)


def then(talk: list[dict[str, Any]], answer: str, question: str = "and now?") -> list[dict[str, Any]]:
    """Return a conversation with an answer and a next question."""
    return [*talk, {"role": "assistant", "content": answer}, {"role": "user", "content": question}]


async def take(stack: Stack, name: str, role: WorkerRole) -> None:
    """Assign a role, and wait until every process has read of it."""
    stack.assign(name, role)
    hosts = {id(running): running for running in stack.processes.values()}

    async def known() -> bool:
        for running in hosts.values():
            app: Any = running.app
            record = app._registry.find(name)
            if record is None or record.role != role or record.draining:
                return False
        return True

    await until(known)


async def leave(stack: Stack, name: str) -> None:
    """Assign a decode worker that knows another one the role prefill, and wait until it hands its sessions over."""
    await until(lambda: is_so(len(stack.registry(name).ready("decode")) == 2))
    stack.assign(name, "prefill")
    await until(lambda: is_so(stack.worker_of(name).leaving))


@pytest.mark.parametrize("policy", sorted(POLICIES))
async def test_a_symmetric_layout_serves_under_every_policy(stack: Stack, policy: str) -> None:
    stack.config = router_json(routing={"policy": policy, "binding": "round-robin"})
    await stack.up(decode=0, prefill=0, both=2)
    routes = set()
    for i in range(4):
        talk = [*HELLO, {"role": "user", "content": f"prompt {i} " * 40}]
        first = await stack.chat(talk, session=f"s{i}", stream=i % 2 == 0)
        assert first.status == 200, first.raw
        second = await stack.chat(then(talk, first.text), session=f"s{i}", stream=i % 2 == 1)
        assert second.status == 200, second.raw
        assert second.headers["X-Weft-Worker"] == first.headers["X-Weft-Worker"]
        for answer in (first, second):
            routes.add(answer.headers["X-Weft-Route"])
            assert answer.headers.get("X-Weft-Prefill-Worker", "") != answer.headers["X-Weft-Worker"]
    if policy in ("always-remote", "remote-jsq"):
        assert "remote" in routes
    if policy == "always-local":
        assert routes == {"local"}


async def test_the_only_worker_prefills_for_itself(stack: Stack) -> None:
    stack.config = router_json(routing={"policy": "always-remote"})
    await stack.up(decode=0, prefill=0, both=1)
    answer = await stack.chat(LONG, session="s")
    assert (answer.status, answer.headers["X-Weft-Route"]) == (200, "local")


async def test_in_a_hybrid_layout_sessions_of_both_kinds_of_worker_use_all_prefill_workers(stack: Stack) -> None:
    stack.config = router_json(routing={"policy": "always-remote", "binding": "round-robin"})
    await stack.up(decode=1, prefill=1, both=1)
    served: dict[str, set[str]] = {}
    gate = asyncio.Event()
    for engine in stack.engines.values():
        engine.script.gate = gate
    asked = [asyncio.ensure_future(stack.chat(LONG, session=f"s{i}")) for i in range(8)]
    await until(lambda: is_so(sum(engine.running for engine in stack.engines.values()) >= 2))
    gate.set()
    for answer in await asyncio.gather(*asked):
        assert answer.status == 200
        worker = answer.headers["X-Weft-Worker"]
        served.setdefault(worker, set()).add(answer.headers.get("X-Weft-Prefill-Worker", ""))
    assert set(served) == {"b0", "d0"}
    assert served["b0"] == {"p0"}, "for its own sessions the other one prefills"
    assert served["d0"] == {"p0", "b0"}


async def test_a_prefill_worker_that_is_to_decode_does_so_at_once(
    movable: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("weft_router.roles.role_switch.PERIOD_S", 1.0)  # as it is
    caplog.set_level(logging.INFO, "weft_router.roles.role_switch")
    await movable.up(decode=1, prefill=2)
    gate = movable.engines["p0"].script.gate = asyncio.Event()
    started = asyncio.ensure_future(movable.chat(LONG, session="s"))
    other = asyncio.ensure_future(movable.chat(LONG, session="t"))
    await until(lambda: is_so(movable.engines["p0"].running == 1))
    start = monotonic()
    await take(movable, "p0", "decode")
    assert monotonic() - start <= 3
    gate.set()
    for answer in await asyncio.gather(started, other):
        assert answer.status == 200, "what ran at the change has finished"
    assert {answer.headers["X-Weft-Prefill-Worker"] for answer in (started.result(), other.result())} == {"p0", "p1"}
    seen = len(movable.engines["p0"].seen)
    workers = set()
    for i in range(6):
        answer = await movable.chat(LONG, session=f"u{i}")
        assert answer.status == 200
        assert answer.headers.get("X-Weft-Prefill-Worker") == "p1"
        workers.add(answer.headers["X-Weft-Worker"])
    assert workers == {"d0", "p0"}
    assert len(movable.engines["p0"].seen) > seen
    assert await movable.count("weft_router_role_changes_total", "p0", **{"from": "prefill", "to": "decode"}) == 1
    assert [record.message for record in caplog.records if "role" in record.message] == ["role_changed"]


async def test_prefills_that_wait_go_to_another_worker_when_theirs_is_to_decode(movable: Stack) -> None:
    movable.config = router_json(routing={"policy": "always-remote", "binding": "round-robin"})
    await movable.up(decode=2, prefill=1)
    gate = movable.engines["p0"].script.gate = asyncio.Event()
    asked = [asyncio.ensure_future(movable.chat(LONG, session=f"s{i}")) for i in range(4)]
    await until(lambda: is_so(len(movable.worker_of("p0").queue) == 4))
    await take(movable, "d1", "both")
    await take(movable, "p0", "decode")
    await until(lambda: is_so(movable.worker_of("p0").queue.waiting == 0))
    gate.set()
    answers = await asyncio.gather(*asked)
    assert {answer.status for answer in answers} == {200}
    assert {answer.headers.get("X-Weft-Prefill-Worker", "") for answer in answers} - {""} <= {"p0", "d1"}


async def test_a_decode_worker_hands_its_sessions_over_before_it_prefills(movable: Stack) -> None:
    await movable.up(decode=2, prefill=1)
    first = await movable.chat(LONG, session="s")
    bound = first.headers["X-Weft-Worker"]
    other = "d1" if bound == "d0" else "d0"
    assert sum(movable.engines[bound].held.values()) > 0, "the round left KV to be read"
    await leave(movable, bound)
    await until(lambda: is_so(movable.registry("c0").get(bound) is None))
    record = movable.registry("c0").find(bound)
    assert record is not None
    assert (record.role, record.draining) == ("decode", True), "its next round is waited for"

    second = await movable.chat(then(LONG, first.text), session="s")

    start = monotonic()
    assert (second.status, second.headers["X-Weft-Worker"]) == (200, other)
    assert second.headers["X-Weft-Reason"] == "moved"
    assert not movable.engines[bound].held, "the prefill worker read the history where it was"
    await take(movable, bound, "prefill")
    assert monotonic() - start <= 3
    assert await movable.count("weft_router_sessions_moved_total", other, by="handle") == 1
    third = await movable.chat(then(then(LONG, first.text), second.text), session="s")
    assert (third.status, third.headers["X-Weft-Worker"]) == (200, other)
    gate = movable.engines["p0"].script.gate = asyncio.Event()
    asked = [asyncio.ensure_future(movable.chat(LONG, session=f"u{i}")) for i in range(4)]
    await until(lambda: is_so(any(task.done() for task in asked)))
    gate.set()
    answers = await asyncio.gather(*asked)
    assert {answer.headers["X-Weft-Prefill-Worker"] for answer in answers} == {"p0", bound}
    assert await movable.count("weft_router_role_changes_total", bound, to="prefill") == 1


async def test_a_round_finds_the_worker_that_stays_when_most_leave_at_once(movable: Stack) -> None:
    await movable.up(decode=5, prefill=0)
    for name in ("d0", "d1", "d2", "d3"):
        movable.worker_of(name).leaving = True  # no heartbeat has said so yet
    answer = await movable.chat(HELLO, session="s")
    assert (answer.status, answer.headers["X-Weft-Worker"]) == (200, "d4")


async def test_live_rounds_finish_where_they_are_and_their_worker_prefills_then(movable: Stack) -> None:
    await movable.up(decode=2, prefill=0)
    bound = (await movable.chat(HELLO, session="s")).headers["X-Weft-Worker"]
    movable.engines[bound].script.gap_s = 0.1
    live = asyncio.ensure_future(movable.chat(HELLO, session="s", stream=True))
    await until(lambda: is_so(movable.engines[bound].running == 1))
    await leave(movable, bound)
    elsewhere = await movable.chat(HELLO, session="new")
    assert (elsewhere.status, elsewhere.headers["X-Weft-Worker"] != bound) == (200, True)
    assert (await live).whole
    await take(movable, bound, "prefill")


async def test_after_the_drain_time_a_round_goes_on_beside_prefills_and_its_session_follows(movable: Stack) -> None:
    await movable.up(decode=2, prefill=1)
    bound = (await movable.chat(HELLO, session="s")).headers["X-Weft-Worker"]
    switch_s = 0.3
    for running in movable.processes.values():
        assert running.settings.drain_s > switch_s
    movable.engines[bound].script.gap_s = 0.2
    live = asyncio.ensure_future(movable.chat(LONG, session="s", stream=True, max_tokens=60))
    await until(lambda: is_so(movable.engines[bound].streamed > 0))
    await take(movable, bound, "prefill")  # within the drain time of 5 s, the round takes 12
    assert not live.done()
    answer = await live
    assert answer.whole
    later = await movable.chat(then(LONG, answer.text), session="s")
    assert later.status == 200
    assert later.headers["X-Weft-Worker"] != bound
    assert later.headers["X-Weft-Reason"] == "moved", "its history is read where it was left"
    assert later.headers["X-Weft-Prefill-Worker"] == "p0", "no engine reads its own KV as if it were another's"
    assert await movable.count("weft_router_kv_handles_total", later.headers["X-Weft-Worker"], outcome="refused") == 0


async def test_an_assignment_that_is_taken_back_midway_leaves_the_sessions_where_they_are(
    movable: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "weft_router.roles.role_switch")
    await movable.up(decode=2, prefill=1)
    first = await movable.chat(LONG, session="s")
    bound = first.headers["X-Weft-Worker"]
    await leave(movable, bound)
    await until(lambda: is_so(movable.registry("c0").get(bound) is None))
    await take(movable, bound, "decode")
    second = await movable.chat(then(LONG, first.text), session="s")
    assert (second.status, second.headers["X-Weft-Worker"]) == (200, bound)
    assert await movable.count("weft_router_role_changes_total", bound) == 0
    said = [record.message for record in caplog.records if record.name.endswith("role_switch")]
    assert said == ["role_change_started", "role_change_abandoned"]


async def test_a_word_that_is_no_role_is_counted_once_and_changes_nothing(
    movable: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    await movable.up(decode=1, prefill=1)
    movable.assign("p0", "butler")
    await until(lambda: movable_errors(movable, "p0", 1))
    await asyncio.sleep(0.3)
    assert await movable_errors(movable, "p0", 1), "the same fault counts once"
    movable.role_file("p0").unlink()
    await until(lambda: movable_errors(movable, "p0", 2))
    assert movable.worker_of("p0").role == "prefill"
    assert "butler" in repr([record.__dict__ for record in caplog.records if record.message == "role_refused"])
    await take(movable, "p0", "both")


async def movable_errors(stack: Stack, name: str, count: int) -> bool:
    return await stack.count("weft_router_role_errors_total", name) == count


async def test_series_go_by_the_role_in_force(sidecars: Stack) -> None:
    sidecars.movable = True
    await sidecars.up(decode=1, prefill=2)
    assert await sidecars.count("weft_router_role", "p1", role="prefill") == 1
    await take(sidecars, "p1", "decode")
    for i in range(4):
        assert (await sidecars.chat(LONG, session=f"s{i}")).status == 200
    page = await sidecars.metrics("p1")
    assert page['weft_router_role{role="decode"}'] == 1
    assert page['weft_router_role{role="prefill"}'] == 0
    assert page['weft_router_requests_total{code="200",role="decode"}'] > 0
    front = await sidecars.metrics("c0")
    assert front['weft_router_workers{role="decode",state="ready"}'] == 2
    assert front['weft_router_workers{role="prefill",state="ready"}'] == 1
    await take(sidecars, "p1", "both")
    front = await sidecars.metrics("c0")
    assert front['weft_router_workers{role="decode",state="ready"}'] == 2
    assert front['weft_router_workers{role="prefill",state="ready"}'] == 2


async def test_fifty_changes_of_roles_under_load_fail_no_request_and_lose_no_session(movable: Stack) -> None:
    """Clients hold conversations while roles move; each later round has to go on with what its session had."""
    movable.config = router_json(routing={"policy": "weft", "binding": "round-robin"})
    await movable.up(decode=2, prefill=2, both=1)
    for engine in movable.engines.values():
        engine.script.gap_s = 0.005
    ended = asyncio.Event()
    failed: list[bytes] = []
    rounds = sessions = 0

    async def client(number: int) -> None:
        nonlocal rounds, sessions
        for conversation in range(10_000):
            talk, session = LONG, f"c{number}-{conversation}"
            for index in range(5):
                if ended.is_set():
                    return
                stream = (number + index) % 2 == 0
                answer = await movable.chat(talk, session=session, stream=stream)
                rounds += 1
                sessions += index == 0
                if answer.status != 200 or (stream and not answer.whole):
                    failed.append(answer.raw[-300:])
                    return
                talk = then(talk, answer.text, f"question {index}")

    clients = [asyncio.ensure_future(client(number)) for number in range(6)]
    swaps: list[tuple[tuple[str, WorkerRole], tuple[str, WorkerRole]]] = [
        (("p0", "decode"), ("d0", "prefill")),
        (("p1", "both"), ("b0", "prefill")),
        (("b0", "decode"), ("d1", "prefill")),
        (("d0", "decode"), ("p0", "prefill")),
        (("d1", "both"), ("p1", "prefill")),
    ]
    changes = 0
    try:
        while changes < 50:
            for swap in swaps:
                for name, role in swap:
                    if movable.worker_of(name).role != role:
                        await take(movable, name, role)
                        changes += 1
                assert not failed
    finally:
        ended.set()
        await asyncio.wait(clients, timeout=20)
    assert not failed
    assert all(task.done() and task.exception() is None for task in clients)
    assert rounds > 50
    hosts = {"c0"} if movable.composition == "standalone" else set(movable.engines)
    total = sum([await movable.count("weft_router_role_changes_total", host) for host in hosts])
    assert total == changes
    broken = sum([await movable.count("weft_router_broken_streams_total", host) for host in {*hosts, "c0"}])
    assert broken == 0
    begun = sum([await movable.count("weft_router_round_index_bucket", host, le="1.0") for host in hosts])
    assert begun == sessions, "a worker that did not know a session would count its round as a first one"
