"""What a decode worker knows of itself and of a round reaches its policy."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from weft_core.policies.earliest import Lanes
from weft_core.policies.snapshot import PrefillTask, PrefillWorkerView
from weft_core.profile_json import profile_from_json
from weft_router.config import read_config
from weft_router.engines.load import EngineLoad
from weft_router.rounds.batch import Batch
from weft_router.rounds.deciding import FEW, GAPS_S, Deciding
from weft_router.rounds.round import Round
from weft_router.signals.decisions import Decisions
from weft_router.signals.instruments import Buckets
from weft_router.signals.pace import Pace
from weft_router.signals.window import Window
from weft_router_tests.stack import PROFILE, router_json

COSTS = profile_from_json(PROFILE)


class Queue:
    """The worker's own queue."""

    seconds, tokens, work = 0.0, 0.0, 0.0

    def __len__(self) -> int:
        return int(self.tokens > 0)


class Here:
    """One decode worker with two prefill workers beside it."""

    def __init__(self, *, local: bool = True, **routing: object) -> None:
        config = read_config(json.dumps(router_json(routing={"policy": "weft", **routing})).encode(), source="test")
        self.engine: Any = SimpleNamespace(load=EngineLoad(kv_usage=0.25))
        self.queue = Queue()
        self.decoding = Batch()
        self.ring = Decisions()
        settings = SimpleNamespace(config=config, profile=COSTS, pools={}, worker="d0", degree=1)
        self.asked: list[PrefillTask] = []
        self.deciding = Deciding(
            cast(Any, self._worker(settings)),
            adapter=cast(Any, SimpleNamespace(can=SimpleNamespace(local=local, slices=False))),
            remote=cast(
                Any, SimpleNamespace(views=self._views, other=lambda _: "p1", dispatched=SimpleNamespace(lanes=Lanes()))
            ),
            registry=cast(Any, SimpleNamespace(ready=lambda _: [])),
            accounts=cast(Any, SimpleNamespace(answer_tokens=100.0)),
            answering=cast(Any, SimpleNamespace(decoding=self.decoding)),
            itl=Window(10.0), ring=self.ring, seconds=Buckets((1.0,)),
        )  # fmt: skip

    def _worker(self, settings: object) -> object:
        here = self

        class Worker:
            engine = here.engine
            queue = here.queue
            kv_capacity = 16_000

            @property
            def kv_used(self) -> int:
                return int(here.engine.load.kv_usage * 16_000)

        worker = Worker()
        cast(Any, worker).settings = settings
        return worker

    def _views(self, task: PrefillTask) -> tuple[PrefillWorkerView, ...]:
        self.asked.append(task)
        return tuple(PrefillWorkerView(f"p{i}", 1, 0.5 * i, i, None) for i in range(2))

    def decide(
        self, history: int, increment: int, *, handle: object = None, transferable: bool = True
    ) -> dict[str, Any]:
        outlook = SimpleNamespace(
            task=PrefillTask(history, increment), handle=handle, later=True, prefilled={}, away=False
        )
        rnd = SimpleNamespace(
            outlook=outlook, class_="default", session="s", started=0.0, trace="", spans=None,
            standing=SimpleNamespace(priority=0),
            inference=SimpleNamespace(transferable=transferable, max_tokens=None, kind="chat", media=False),
        )  # fmt: skip
        self.deciding.decide(cast(Round, rnd))
        (record,) = self.ring.latest(1)
        return record.facts()


def test_a_history_that_nobody_can_read_is_priced_as_it_is_on_either_side() -> None:
    # T_pre = 10 ms + 0.1 ms a new token; T_kv = 1 ms + 1 us a token.
    facts = Here().decide(400, 1000)
    assert (facts["history"], facts["increment"]) == (400, 1000)
    here, there = 0.01 + 0.1, 0.01 + 0.14 + 0.001 + 0.0014
    found = {one["option"]: one["ttft"] for one in facts["alternatives"]}
    assert found["p0"] - found["local"] == pytest.approx(there - here)
    readable = {one["option"]: one["ttft"] for one in Here().decide(400, 1000, handle=object())["alternatives"]}
    assert readable["p0"] - readable["local"] == pytest.approx(0.001 + 0.0004 + 0.001 + 0.001)


def test_a_long_history_that_nobody_can_read_stays_with_its_worker() -> None:
    here = Here()
    assert here.decide(1000, 1000)["reason"] == "history-unreadable"
    assert here.decide(0, 1000, transferable=False)["reason"] == "not-transferable"
    assert here.asked == []


def test_an_engine_that_cannot_prefill_is_priced_without_its_history() -> None:
    here = Here(local=False)
    facts = here.decide(400, 1000)
    assert facts["chosen"] in ("p0", "p1")
    assert (facts["history"], facts["increment"]) == (0, 1400)


def test_the_workers_view_follows_engine_queue_and_streams() -> None:
    here = Here()
    first = here.deciding.view(1.0)
    assert (first.kv_used, first.kv_capacity, first.context, first.queue_s, first.queued) == (4000, 16_000, 0, 0, 0)
    here.engine.load = EngineLoad(kv_usage=0.5)
    here.queue.seconds, here.queue.tokens, here.queue.work = 0.3, 9.0, 50.0
    here.decoding.enter(0, Pace(seconds=0.2, gaps=10), 700)
    second = here.deciding.view(1.0)
    assert (second.kv_used, second.batch, second.gap_sums, second.gap_counts) == (8000, 1, [0.2], [10])
    assert second.context == 700 + 50, "its prompt and half of an answer; not the KV of sessions between rounds"
    assert (second.queue_s, second.queued, second.queue_tokens, second.queue_work) == (0.3, 1, 9.0, 50.0)


def test_many_streams_are_looked_at_from_time_to_time() -> None:
    here = Here()
    paces = [Pace(seconds=0.1, gaps=5) for _ in range(FEW + 2)]
    for number, pace in enumerate(paces):
        here.decoding.enter(number, pace, 10)
    first = here.deciding.view(1.0)
    paces[0].gaps = 6
    here.decoding.leave(1)
    soon = here.deciding.view(1.0 + GAPS_S / 2)
    assert soon.gap_counts is first.gap_counts
    assert soon.context == first.context == (FEW + 2) * (10 + 50)
    later = here.deciding.view(1.0 + GAPS_S)
    assert (later.gap_counts[0], later.context) == (6, (FEW + 1) * (10 + 50))


def test_who_left_holds_nothing_any_more() -> None:
    batch = Batch()
    batch.enter(1, Pace(), 300)
    batch.enter(1, Pace(), 300)  # its first token came after its prefill was taken for done
    batch.enter(2, Pace(), 50)
    assert (len(batch), batch.tokens) == (2, 350)
    batch.leave(1)
    batch.leave(1)
    assert (len(batch), batch.tokens) == (1, 50)
