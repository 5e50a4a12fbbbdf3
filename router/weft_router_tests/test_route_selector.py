"""What a decode worker knows of itself and of a round reaches its policy."""

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from weft_core.heartbeat import QueueEntry, WorkerRecord
from weft_core.policies.snapshot import NOTHING, PrefillTask
from weft_router.auth.cache_salts import CacheSalts
from weft_router.engines.adapter import EngineRequest
from weft_router.engines.catalogue import adapter_of
from weft_router.engines.handles import KvHandle
from weft_router.engines.load import EngineLoad
from weft_router.http.pool import ConnectionPool
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import check_request
from weft_router.openai.prompt_history import history_of
from weft_router.rounds.accounting import meter_of
from weft_router.rounds.decode_service import DecodeService
from weft_router.rounds.request_log import RequestLog
from weft_router.routing.route_selector import FEW, GAPS_S
from weft_router.sessions.round import Round
from weft_router.sessions.session import CachedPrompt, KvOrigin, PrefixMatch
from weft_router.state.registry import Health, Registry
from weft_router.state.store import MemoryStore
from weft_router.telemetry.decision_log import DecisionLog
from weft_router.telemetry.metrics import Metrics
from weft_router.telemetry.session_latency import SessionLatency
from weft_router.workers.batch import DecodeBatch
from weft_router.workers.prefill_client import PrefillClient
from weft_router.workers.worker import Worker
from weft_router_tests.stack import MODEL, router_json, settings

HANDLE = KvHandle({}, 400, math.inf, None)
URL = "http://127.0.0.1:9"


async def _no_answer(_: str) -> Health:
    return "dead"


class Here:
    """A decode worker that knows of two prefill workers: ``p0`` is idle, ``p1`` has half a second to do."""

    def __init__(self, folder: Path, **sections: dict[str, Any]) -> None:
        sections.setdefault("routing", {"policy": "weft", "slices": {"mode": "off"}})
        self.settings = settings(folder, "decode", port=1, worker="d0", config=router_json(**sections))
        config, metrics = self.settings.config, Metrics()
        self.store = MemoryStore()
        self.registry = Registry(self.store, _no_answer)
        self.worker = Worker(
            self.settings, store=self.store, registry=self.registry,
            engines=ConnectionPool(connect_s=1.0, keepalive_s=1.0), metrics=metrics,
        )  # fmt: skip
        self.worker.engine.load = EngineLoad(kv_usage=0.25)
        self.ring = DecisionLog()
        decoding = DecodeService(
            self.worker, adapter=adapter_of(config), prefill_client=cast(PrefillClient, SimpleNamespace()),
            registry=self.registry, metrics=metrics, meter=meter_of(config, metrics), salts=CacheSalts(b"secret"),
            request_log=RequestLog(config.request_log, worker="d0"), ring=self.ring,
        )  # fmt: skip
        self.route_selector = decoding.route_selector
        self.route_selector._answers.learn(100)
        self.batch = self.worker.batch

    async def decide(
        self,
        history: int,
        increment: int,
        *,
        handle: KvHandle | None = None,
        n: int = 1,
        cached: Mapping[str, int] = NOTHING,
        below: Mapping[str, int] = NOTHING,
        origin: KvOrigin | None = None,
        d1: tuple[QueueEntry, ...] = (),
    ) -> dict[str, Any]:
        """Decide about a round, of ``n`` answers, and return what the page of decisions says."""
        for name, queue in {"p0": (), "p1": (QueueEntry(0, 4900, "other"),)}.items():
            await self.store.heartbeat(
                WorkerRecord(name, "prefill", URL, 1, 16_000, revision="r1", seq=1, ready=True, queue=queue)
            )
        await self.store.heartbeat(
            WorkerRecord("d1", "decode", URL, 1, 16_000, revision="r1", seq=1, ready=True, draining=True, queue=d1)
        )
        await self.registry.refresh()
        config = self.settings.config
        body = {"model": MODEL, "prompt": "hello", "n": n}
        inference = check_request("/v1/completions", body, RequestLimits(config.model, config.limits))
        rnd = Round(
            id="weft-1", session="s", inference=inference, prompt_history=history_of(inference),
            prefix_match=PrefixMatch(
                PrefillTask(history, increment), later=True, continues=True, handle=handle,
                prefilled={worker: CachedPrompt(tokens, math.inf) for worker, tokens in cached.items()},
                origin=origin,
            ).loaded(below),
            started=0.0, engine_request=EngineRequest(inference, "weft-1"), export=False,
        )  # fmt: skip
        self.route_selector.decide(rnd)
        (record,) = self.ring.latest(1)
        return record.facts()


@pytest.fixture
async def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


def options(facts: dict[str, Any]) -> dict[str, float]:
    """Return the TTFT that was predicted of each option."""
    return {one["option"]: one["ttft"] for one in facts["alternatives"]}


async def test_a_history_that_nobody_can_read_is_priced_as_it_is_on_either_side(here: Here) -> None:
    # T_pre = 10 ms + 0.1 ms a new token; T_kv = 1 ms + 1 us a token.
    facts = await here.decide(400, 1000)
    assert (facts["history"], facts["increment"]) == (400, 1000)
    local, there = 0.01 + 0.1, 0.01 + 0.14 + 0.001 + 0.001
    found = options(facts)
    assert found["p0"] - found["local"] == pytest.approx(there - local)
    assert found["p1"] - found["p0"] == pytest.approx(0.5)
    readable = options(await here.decide(400, 1000, handle=HANDLE))
    assert readable["p0"] - readable["local"] == pytest.approx(0.001 + 0.0004 + 0.001 + 0.001)


async def test_a_long_history_that_nobody_can_read_stays_with_its_worker(here: Here) -> None:
    unread, several = await here.decide(1000, 1000), await here.decide(0, 1000, n=2)
    assert (unread["reason"], several["reason"]) == ("history-unreadable", "not-transferable")
    assert list(options(unread)) == list(options(several)) == ["local"]


async def test_a_session_that_moved_is_prefilled_by_the_worker_that_it_left_where_that_is_sooner(here: Here) -> None:
    """It has 3,000 of 3,200 tokens: T_pre(3000, 200) = 30 ms and T_kv(3200) = 4.2 ms, against 330 ms anywhere else."""
    facts = await here.decide(0, 3200, origin=KvOrigin("d1", 3000, 0.0))
    assert (facts["chosen"], facts["reason"]) == ("d1", "moved")
    assert (await here.decide(0, 3200, origin=KvOrigin("d1", 3000, 0.1)))["chosen"] == "d1"
    assert (await here.decide(0, 3200, origin=KvOrigin("d1", 3000, 1.0)))["chosen"] != "d1", "a second to load it"
    assert (await here.decide(0, 3200, origin=KvOrigin("d9", 3000, 0.0)))["reason"] != "moved", "no such worker"
    assert (await here.decide(0, 3200, origin=KvOrigin("d1", 3000, 0.0), n=2))["reason"] == "not-transferable"


async def test_a_worker_with_much_to_do_is_not_asked_for_a_session_that_left_it(tmp_path: Path) -> None:
    here = Here(tmp_path)
    busy = (QueueEntry(0, 9000, "other"),)
    assert (await here.decide(0, 3200, origin=KvOrigin("d1", 3000, 0.0), d1=busy))["chosen"] != "d1"


async def test_a_history_in_a_tier_is_priced_with_its_load(tmp_path: Path) -> None:
    """T_load of 600 tokens at a million a second and 2 ms; elsewhere they come back with the new ones."""
    size = router_json()["profile"]["kvBytesPerToken"]
    here = Here(tmp_path, engine={"kvTiers": {"cpu": {"bytesPerSecond": size * 1e6, "latencySeconds": 0.002}}})
    near, below = options(await here.decide(800, 1000)), options(await here.decide(800, 1000, below={"cpu": 600}))
    more = (below["local"] - below["p0"]) - (near["local"] - near["p0"])
    assert more == pytest.approx(0.002 + 0.0006 - 0.0006)
    read = options(await here.decide(800, 1000, handle=HANDLE, below={"cpu": 600}))
    known = options(await here.decide(800, 1000, handle=HANDLE))
    assert read["p0"] - read["local"] == pytest.approx(known["p0"] - known["local"]), "either way it is loaded first"


async def test_a_long_history_in_a_slow_tier_may_be_computed_elsewhere(tmp_path: Path) -> None:
    here = Here(tmp_path, engine={"kvTiers": {"disk": {"bytesPerSecond": 1.0}}})
    facts = await here.decide(1000, 1000, below={"disk": 600})
    assert facts["chosen"] == "p0", "400 tokens are in GPU memory, and the others take too long to load"
    assert (await here.decide(1000, 1000))["reason"] == "history-unreadable"


async def test_a_history_that_nobody_can_read_may_be_computed_where_the_prefix_cache_has_most_of_it(here: Here) -> None:
    facts = await here.decide(3000, 200, cached={"p0": 2500, "p1": 2900})
    found = options(facts)
    assert sorted(found) == ["local", "p1"], "p0 lacks 500 tokens, more than the 200 that are new"
    # Local: T_pre(3000, 200) = 30 ms; p1: 300 tokens after half a second of others, and 200 come back.
    assert found["p1"] - found["local"] == pytest.approx(0.5 + 0.01 + 0.03 + 0.0012 - 0.03)
    assert facts["reason"] == "local-whole"
    assert (await here.decide(3000, 200, cached={"p0": 2500}))["reason"] == "history-unreadable"


async def test_of_a_history_that_can_be_read_only_what_the_prefix_cache_lacks_counts(here: Here) -> None:
    # The idle p0 begins once it has read: T_kv(400), or T_kv(100); p1 is busy for half a second, and reads meanwhile.
    for cached, read in ((NOTHING, 0.001 + 0.0004), ({"p0": 300}, 0.001 + 0.0001)):
        found = options(await here.decide(400, 1000, handle=HANDLE, cached=cached))
        assert found["p1"] - found["p0"] == pytest.approx(0.5 - read)


async def test_an_engine_that_cannot_prefill_is_priced_without_its_history(tmp_path: Path) -> None:
    here = Here(tmp_path, engine={"type": "sglang", "bidirectional": False})
    facts = await here.decide(400, 1000)
    assert facts["chosen"] in ("p0", "p1")
    assert (facts["history"], facts["increment"]) == (0, 1400)


@pytest.mark.parametrize(("engine", "reason"), [("sglang", "remote-cheaper"), ("neuron", "no-local-prefill")])
async def test_a_prompt_that_was_at_a_prefill_worker_makes_it_cheaper_only_if_its_engine_has_a_prefix_cache(
    tmp_path: Path, engine: str, reason: str
) -> None:
    here = Here(tmp_path, engine={"type": engine, "bidirectional": False})
    assert (await here.decide(1000, 400))["reason"] == "no-local-prefill"
    assert (await here.decide(1000, 400, cached={"p0": 1000}))["reason"] == reason


async def test_the_workers_view_follows_engine_queue_and_streams(here: Here) -> None:
    first = here.route_selector.view(1.0)
    assert (first.kv_used, first.kv_capacity, first.context, first.queue_s, first.queued) == (4000, 16_000, 0, 0, 0)
    here.worker.engine.load = EngineLoad(kv_usage=0.5)
    await here.worker.queue.acquire("other", PrefillTask(0, 2900))
    here.batch.enter(SessionLatency(seconds=0.2, gaps=10), 700)
    second = here.route_selector.view(1.0)
    assert (second.kv_used, second.batch, second.gap_sums, second.gap_counts) == (8000, 1, [0.2], [10])
    assert second.context == 700 + 50, "its prompt and half of an answer; not the KV of sessions between rounds"
    assert second.queue_s == pytest.approx(0.3)
    assert (second.queued, second.queue_tokens, second.queue_work) == (1, 2900.0, 2900 * 1450.0)


async def test_many_streams_are_looked_at_from_time_to_time(here: Here) -> None:
    latencies = [SessionLatency(seconds=0.1, gaps=5) for _ in range(FEW + 2)]
    members = [here.batch.enter(latency, 10) for latency in latencies]
    first = here.route_selector.view(1.0)
    latencies[0].gaps = 6
    here.batch.leave(members[1])
    soon = here.route_selector.view(1.0 + GAPS_S / 2)
    assert soon.gap_counts is first.gap_counts
    assert soon.context == first.context == (FEW + 2) * (10 + 50)
    later = here.route_selector.view(1.0 + GAPS_S)
    assert (later.gap_counts[0], later.context) == (6, (FEW + 1) * (10 + 50))


async def test_a_worker_that_does_both_delays_prefills_beside_answers_that_are_about_to_end(tmp_path: Path) -> None:
    both = Here(tmp_path, engine={"bidirectional": False}, routing={"policy": "colocated"})
    prefill = PrefillTask(0, 9000)  # T_pre: 0.91 s
    both.worker.engine.healthy = True
    assert not both.route_selector.delays(prefill, 0.91, 0.0, 0.1), "nobody decodes"
    latency = SessionLatency(seconds=0.1, gaps=10)
    member = both.batch.enter(latency, 100)
    assert both.route_selector.view(1.0).gaps_left == [99], "an answer has 100 tokens on average"
    assert not both.route_selector.delays(prefill, 0.91, 0.0, 0.1), "its mean gap will be 10 ms longer, of 50"
    both.batch.leave(member)
    both.batch.enter(latency, 100, 5)
    assert both.route_selector.view(1.0).gaps_left == [4]
    assert both.route_selector.delays(prefill, 0.91, 0.0, 0.1)
    assert not both.route_selector.delays(prefill, 0.91, 0.0, 0.9)
    both.worker.engine.healthy = False
    assert not both.route_selector.delays(prefill, 0.91, 0.0, 0.1), "its round is to learn that at once"


async def test_a_worker_beside_prefill_workers_delays_nothing(here: Here) -> None:
    here.batch.enter(SessionLatency(seconds=0.1, gaps=10), 100)
    assert here.route_selector.view(1.0).gaps_left == []
    assert here.worker.queue.delays is None


def test_an_answer_has_at_least_one_gap_left_and_no_more_than_the_client_allows() -> None:
    batch = DecodeBatch()
    latency = SessionLatency(gaps=50)
    bounded, free = batch.enter(latency, 10, 21), batch.enter(latency, 10)
    assert (bounded.gaps_left(100.0), free.gaps_left(100.0)) == (20.0, 99.0)
    latency.gaps += 40
    assert (bounded.gaps_left(100.0), free.gaps_left(100.0)) == (1.0, 59.0)


def test_who_left_holds_nothing_any_more() -> None:
    batch = DecodeBatch()
    first, second, last = (batch.enter(SessionLatency(), tokens) for tokens in (300, 50, 7))
    assert (len(batch), batch.tokens) == (3, 357)
    batch.leave(first)
    batch.leave(first)
    batch.leave(None)
    assert (batch.members, batch.tokens) == ([last, second], 57)
    batch.leave(second)
    assert (batch.members, batch.tokens) == ([last], 7)
    batch.leave(last)
    assert (batch.members, batch.tokens) == ([], 0)


async def test_the_places_of_an_engine_are_those_of_all_its_ranks(tmp_path: Path, here: Here) -> None:
    assert here.route_selector.view(1.0).places == math.inf
    limited = Here(tmp_path, routing={"policy": "weft", "places": 48})
    assert limited.route_selector.view(1.0).places == 48
