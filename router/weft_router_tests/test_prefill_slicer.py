"""A local prefill in slices: they grow along the prompt by whole blocks, follow the batch, and end when one fails."""

import asyncio
from collections.abc import Callable
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from weft_core.policies.slices import Slicing as Sizes
from weft_core.policies.snapshot import DecodeWorkerView, PrefillTask
from weft_core.profile_json import profile_from_json
from weft_core.slo import Slo
from weft_router.config import LimitsConfig, ModelConfig, RouterConfig, RoutingConfig
from weft_router.engines.adapter import Adapter, Call, EngineRequest
from weft_router.engines.deaths import DeathTracker
from weft_router.engines.watch import Engine
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import check_request
from weft_router.rounds.prefill_slicer import PrefillSlicer
from weft_router.routing.policy import RoutingPolicy
from weft_router.sessions.round import Round
from weft_router.telemetry.instruments import Buckets
from weft_router.workers.prefill_queue import PrefillQueue, QueueRule, QueueSlot
from weft_router.workers.scheduling_priority import DEFAULT_PRIORITY
from weft_router_tests.stack import PROFILE, router_json

MODEL = ModelConfig.model_validate({"name": "m", "maxModelLen": 100_000})
STEP = {"alpha": 0.01, "perSequence": 1e-4, "perContextToken": 0.0, "perChunkToken": 1e-4}
STEP |= {"perChunkPair": 0.0, "perChunkContext": 0.0}
COSTS = profile_from_json({**PROFILE, "degrees": [{**PROFILE["degrees"][0], "decode": [STEP]}]})


class FakeSide:
    """An adapter and the engine behind it: notes how long each slice's prompt was."""

    def __init__(self, *, fails_at: int = 99, tokens: int = 0) -> None:
        self.ends: list[int] = []
        self.under_way = 0
        self.tokenized = 0
        self.batch = 4
        self.pool = self
        self.origin = None
        self._fails_at = fails_at
        self._tokens = tokens

    def slice(self, _: EngineRequest, ids: Any, tokens: int) -> Call:
        assert list(ids[:tokens]) == list(range(tokens))
        return Call("/v1/completions", orjson.dumps(tokens), "")

    def lines_of(self, _: str) -> str:
        return ""

    def tokenize(self, _: EngineRequest) -> Call:
        self.tokenized += 1
        return Call("/tokenize", b"-1", "")

    def read_ids(self, _: bytes) -> list[int]:
        return list(range(self._tokens))

    async def call(self, _: Any, __: Any, ___: str, body: bytes, **____: Any) -> Any:
        tokens = orjson.loads(body)
        if tokens >= 0:
            self.ends.append(tokens)
        return SimpleNamespace(status=500 if len(self.ends) >= self._fails_at else 200, body=b"")

    @property
    def deaths(self) -> DeathTracker:
        async def lives(_: bool) -> bool:
            return False

        return DeathTracker(lives, lambda: None)

    def sent(self, _: Any, __: float) -> None:
        self.under_way += 1

    def over(self, _: Any, *, got_on: bool) -> None:
        self.under_way -= not got_on

    def view(self, _: float) -> DecodeWorkerView:
        return DecodeWorkerView("d0", 1, 0.0, 0, None, 0, 16_000, self.batch, 0)


def queue_of(clock: Callable[[], float] = monotonic) -> PrefillQueue:
    return PrefillQueue(
        profile=COSTS, degree=1, concurrency=1, limit=9, rule=QueueRule("moore-hodgson"), ttft_slo=5.0,
        clock=clock,
    )  # fmt: skip


async def warm(side: FakeSide, prompt: str | list[int], *, task: PrefillTask, slot: QueueSlot) -> None:
    config = RouterConfig.model_validate(router_json())
    slicing = PrefillSlicer(
        config, adapter=cast(Adapter, side), engine=cast(Engine, side), view=side.view, tokens=Buckets((1.0,))
    )
    policy = RoutingPolicy(
        RoutingConfig.model_validate({"policy": "weft", "mode": "imd"}), profile=COSTS,
        slo=Slo(ttft_s=5, itl_s=0.05), salt="d0", slicing=Sizes(),
    )  # fmt: skip
    inference = check_request("/v1/completions", {"model": "m", "prompt": prompt}, RequestLimits(MODEL, LimitsConfig()))
    rnd = cast(
        Round,
        SimpleNamespace(
            session="s",
            id="r",
            engine_request=EngineRequest(inference, "r"),
            prefix_match=SimpleNamespace(task=task),
            scheduling=DEFAULT_PRIORITY,
            deaths=0,
        ),
    )
    await slicing.warm(rnd, slot, policy)


async def warmed(side: FakeSide, prompt: str | list[int], *, history: int = 0, increment: int) -> PrefillQueue:
    queue = queue_of()
    task = PrefillTask(history, increment)
    await warm(side, prompt, task=task, slot=await queue.acquire("r", task))
    return queue


async def test_slices_grow_by_whole_blocks_and_leave_the_last_to_the_request() -> None:
    # A step takes 10 ms + 0.1 ms a sequence + 0.1 ms a token; 45 ms leave 346 tokens beside four sequences.
    side = FakeSide()
    queue = await warmed(side, list(range(1000)), increment=1000)
    assert side.ends == [336, 672]
    assert queue.tokens == 1000 - 672
    assert side.tokenized == 0, "the client gave token ids"
    assert side.under_way == 0


async def test_what_is_cached_is_not_sent_again() -> None:
    side = FakeSide()
    await warmed(side, list(range(1000)), history=600, increment=400)
    assert side.ends == [944]


async def test_a_prompt_that_fits_costs_no_request_more() -> None:
    side = FakeSide(tokens=50)
    await warmed(side, "a short prompt", increment=50)
    assert (side.ends, side.tokenized) == ([], 0)


async def test_text_is_sliced_by_the_engines_own_tokens() -> None:
    side = FakeSide(tokens=700)
    await warmed(side, "x" * 2800, increment=690)
    assert side.tokenized == 1
    assert side.ends == [336, 672]


async def test_a_failed_slice_ends_the_slicing() -> None:
    side = FakeSide(fails_at=2)
    queue = await warmed(side, list(range(2000)), increment=2000)
    assert side.ends == [336, 672]
    assert queue.tokens == 2000 - 336


@pytest.mark.parametrize(("batch", "first"), [(1, 336), (200, 144), (0, None)])
async def test_the_batch_of_the_moment_sizes_the_slice(batch: int, first: int | None) -> None:
    side = FakeSide()
    side.batch = batch
    await warmed(side, list(range(1000)), increment=1000)
    assert (side.ends[0] if side.ends else None) == first


@pytest.mark.parametrize("tokens", [1000, 100])
async def test_slices_wait_until_the_prefill_before_them_is_done(tokens: int) -> None:
    now = 0.0
    queue = queue_of(lambda: now)
    first = await queue.acquire("first", PrefillTask(0, 1000))
    now = 100.0  # far longer than predicted: the next one goes to the engine already
    task = PrefillTask(0, tokens)
    side = FakeSide()
    warming = asyncio.create_task(warm(side, list(range(tokens)), task=task, slot=await queue.acquire("second", task)))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not warming.done()
    assert side.ends == []
    first.release()
    await warming
    assert side.ends == ([336, 672] if tokens == 1000 else [])


async def test_who_left_before_its_turn_came_is_not_waited_for() -> None:
    now = 0.0
    queue = queue_of(lambda: now)
    first = await queue.acquire("first", PrefillTask(0, 1000))
    now = 100.0
    second = await queue.acquire("second", PrefillTask(0, 1000))
    waiting = asyncio.create_task(second.wait_for_engine())
    await asyncio.sleep(0)
    waiting.cancel()
    first.release()
    second.release()
    await asyncio.sleep(0)
    assert waiting.cancelled()
    assert len(queue) == 0
