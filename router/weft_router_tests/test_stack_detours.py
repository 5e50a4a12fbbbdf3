"""A round that went another way than decided says nothing about the prediction that its decision was made from."""

import asyncio
from typing import Any

import pytest

from weft_core.heartbeat import WorkerRecord
from weft_core.policies.snapshot import PrefillTask
from weft_router.engines.adapter import Call
from weft_router.http import pool
from weft_router.workers.prefill_client import PrefillClient, PrefillResponse
from weft_router.workers.scheduling_priority import SchedulingPriority
from weft_router_tests.stack import Stack, is_so, router_json, until

pytestmark = pytest.mark.component

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


LONG: list[dict[str, Any]] = [{"role": "user", "content": "a prompt that takes a while " * 20}]


class Seen:
    """The rounds of a decode worker at their first token: whether each was a detour, its route and prefill worker."""

    def __init__(self, stack: Stack) -> None:
        self.rounds: list[tuple[bool, str, str]] = []
        accounting = stack.decoding("d0").executor._accounting
        learn = accounting._observed

        def observed(rnd: Any, seconds: float) -> None:
            self.rounds.append((rnd.retried, rnd.route, rnd.prefill_worker))
            learn(rnd, seconds)

        accounting._observed = observed


async def test_a_round_that_went_as_decided_is_learned_from(stack: Stack) -> None:
    await stack.up(prefill=2)
    seen = Seen(stack)
    assert (await stack.chat(HELLO, stream=True)).status == 200
    ((retried, route, _),) = seen.rounds
    assert (retried, route) == (False, "remote")


async def test_kv_that_cannot_be_loaded_is_a_detour(stack: Stack) -> None:
    await stack.up()
    seen = Seen(stack)
    stack.engines["d0"].script.refuse_handles = True
    answer = await stack.chat(HELLO, stream=True)
    assert answer.headers["X-Weft-Reason"] == "kv-load-failed"
    assert seen.rounds == [(True, "local", "")]


async def test_a_prefill_that_is_done_elsewhere_is_a_detour(stack: Stack) -> None:
    await stack.up(prefill=2)
    seen = Seen(stack)
    await stack.engines["p0"].stop()
    assert (await stack.chat(HELLO, stream=True)).headers["X-Weft-Prefill-Worker"] == "p1"
    assert seen.rounds == [(True, "remote", "p1")]


async def test_a_prefill_that_is_done_twice_by_one_worker_is_a_detour(stack: Stack) -> None:
    await stack.up()
    first = await stack.chat(HELLO, session="s")
    seen = Seen(stack)
    stack.engines["p0"].script.refuse_handles = True
    told = [*HELLO, {"role": "assistant", "content": first.text}, {"role": "user", "content": "more " * 100}]
    assert (await stack.chat(told, session="s", stream=True)).status == 200
    assert seen.rounds == [(True, "remote", "p0")]


@pytest.mark.parametrize("engine", [{"type": "sglang"}, {"type": "neuron"}])
async def test_a_second_pair_of_legs_is_a_detour(stack: Stack, engine: dict[str, Any]) -> None:
    stack.config = router_json(engine={**engine, "bidirectional": False})
    await stack.up(prefill=2)
    seen = Seen(stack)
    stack.engines["d0"].script.delay_s = 0.2  # the first pair's decode leg is still waiting when its prefill is lost
    stack.engines["p0"].script.status = 500
    answer = await stack.chat(HELLO, stream=True)
    assert answer.status == 200
    assert stack.engines["p0"].seen
    assert seen.rounds == [(True, "remote", "p1")]


async def test_no_engine_is_asked_twice_to_meet_under_one_number(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "RESEND_WITHIN_S", 10.0)
    stack.config = router_json(engine={"type": "sglang", "bidirectional": False})
    await stack.up()
    p0 = stack.engines["p0"]
    assert (await stack.chat(HELLO)).status == 200
    p0.script.die_at, p0.script.times = "before_headers", 1  # on a connection that was kept
    p0.seen.clear()
    stack.engines["d0"].script.delay_s = 1.0
    await stack.chat(HELLO)
    rooms = [body["bootstrap_room"] for body in p0.seen]
    assert p0.died == 1
    assert len(rooms) == len(set(rooms))


async def racing(stack: Stack) -> None:
    """Start two prefill workers for one whose own queue is long, so that each prefill is raced on both."""
    stack.config = router_json(routing={"hedge": {"mode": "auto", "top": 0, "risk": 0}})
    await stack.up(prefill=2)
    await stack.worker_of("d0").queue.acquire("another", PrefillTask(0, 10_000))


class Both:
    """A way to prefill workers that gives an answer when the other worker's is there, too."""

    def __init__(self, way: PrefillClient) -> None:
        self._way = way
        self._met = asyncio.Barrier(2)

    async def prefill(
        self, record: WorkerRecord, call: Call, task: PrefillTask, request_id: str, scheduling: SchedulingPriority
    ) -> PrefillResponse:
        found = await self._way.prefill(record, call, task, request_id, scheduling)
        await self._met.wait()
        return found


@pytest.mark.parametrize(("slow", "won", "outcome"), [("p0", "p1", "second"), ("p1", "p0", "first")])
async def test_a_race_that_the_second_worker_won_is_a_detour(stack: Stack, slow: str, won: str, outcome: str) -> None:
    await racing(stack)
    seen = Seen(stack)
    stack.engines[slow].script.hang = True
    assert (await stack.chat(HELLO, stream=True)).status == 200
    assert seen.rounds == [(outcome == "second", "remote", won)]
    assert await stack.count("weft_router_hedges_total", "d0", outcome=outcome) == 1
    assert stack.engines[slow].aborted == 1


async def test_a_prefill_that_may_be_late_is_raced_on_its_own_worker_in_later_rounds_too(stack: Stack) -> None:
    routing = {"policy": "always-remote", "hedge": {"mode": "auto", "top": 0, "risk": 0}}
    stack.config = router_json(routing=routing)
    await stack.up()
    seen, p0 = Seen(stack), stack.engines["p0"]
    stack.engines["d0"].script.tokenizes = True
    elsewhere = await stack.worker_of("d0").queue.acquire("another", PrefillTask(0, 10))  # so a local prefill waits
    first = await stack.chat(HELLO, session="s", stream=True)
    assert seen.rounds == [(False, "remote", "p0")]
    elsewhere.release()
    p0.script.hang = True

    told = [*HELLO, {"role": "assistant", "content": first.text}, {"role": "user", "content": "more " * 100}]
    later = await stack.chat(told, session="s", stream=True)
    other = await stack.chat(LONG, session="t", stream=True)

    for answer in (later, other):
        assert answer.whole
        assert answer.headers["X-Weft-Reason"] == "hedge"
    assert seen.rounds[1:] == [(True, "local", "")] * 2
    assert await stack.count("weft_router_hedges_total", "d0", outcome="second") == 2
    assert p0.aborted == 2
    assert stack.worker_of("d0").queue.waiting == 0


async def test_what_the_loser_of_a_race_made_already_is_given_back(stack: Stack) -> None:
    await racing(stack)
    remote = stack.decoding("d0").remote
    remote._prefill_client = Both(remote._prefill_client)
    assert (await stack.chat(HELLO, stream=True)).status == 200
    await until(lambda: is_so(not stack.engines["p0"].held and not stack.engines["p1"].held), seconds=3)
    assert stack.engines["p0"].released + stack.engines["p1"].released == 1
    assert await stack.count("weft_router_kv_handles_total", "d0", outcome="orphaned") == 1
