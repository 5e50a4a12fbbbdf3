"""A raced prefill: who wins, and that nothing the other worker made stays pinned for a reader who will not come."""

import asyncio
from typing import Literal

import pytest

from weft_router.engines.adapter import PrefillResult
from weft_router.errors import EngineAnsweredError
from weft_router.openai.reply import Reply
from weft_router.routing.hedging import HERE, Start, race_prefills
from weft_router.sessions.round import PrefilledKv
from weft_router.telemetry.metrics import Metrics


def made(worker: str) -> PrefilledKv:
    return PrefilledKv(worker, PrefillResult({"of": worker}, Reply("chat")), 10, None, 0)


class Race:
    """A race of workers a and b, what was given back, and how it was counted."""

    def __init__(self, *, second: str = "b") -> None:
        self.metrics = Metrics()
        self.second = second
        self.unread: list[str] = []

    async def run(self, start: Start) -> str | None:
        found = await race_prefills(
            start, "a", self.second, metrics=self.metrics, unread=lambda prefilled: self.unread.append(prefilled.worker)
        )
        return found.worker if isinstance(found, PrefilledKv) else found

    @property
    def counted(self) -> dict[tuple[str, ...], float]:
        return {values: child.value for values, child in self.metrics.hedges.items()}


async def test_the_decided_worker_wins_where_both_are_done_and_the_other_one_is_given_back() -> None:
    one = Race()

    async def start(worker: str) -> PrefilledKv:
        return made(worker)

    assert await one.run(start) == "a"
    assert one.unread == ["b"]
    assert one.counted == {("first",): 1}


async def test_a_loser_that_is_cancelled_has_made_nothing() -> None:
    one = Race()
    cancelled: list[str] = []

    async def start(worker: str) -> PrefilledKv:
        if worker == "a":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(worker)
                raise
        return made(worker)

    assert await one.run(start) == "b"
    assert (cancelled, one.unread) == (["a"], [])
    assert one.counted == {("second",): 1}


async def test_a_loser_whose_answer_crosses_the_cancel_is_given_back() -> None:
    one = Race()

    async def start(worker: str) -> PrefilledKv:
        if worker == "a":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return made(worker)
        return made(worker)

    assert await one.run(start) == "b"
    assert one.unread == ["a"]


async def test_a_client_that_leaves_gives_back_what_was_done() -> None:
    one = Race()
    under_way = asyncio.Event()

    async def start(worker: str) -> PrefilledKv | None:
        try:
            under_way.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return made(worker) if worker == "b" else None
        return None

    running = asyncio.ensure_future(one.run(start))
    await under_way.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert one.unread == ["b"]


async def test_an_engine_that_finds_the_request_wrong_ends_the_race_and_the_other_one_is_given_back() -> None:
    one = Race()

    async def start(worker: str) -> PrefilledKv:
        if worker == "a":
            raise EngineAnsweredError(400, b"")
        return made(worker)

    with pytest.raises(EngineAnsweredError):
        await one.run(start)
    assert one.unread == ["b"]


async def test_a_local_prefill_wins_and_the_worker_that_was_slower_is_cancelled() -> None:
    one = Race(second=HERE)
    cancelled = asyncio.Event()

    async def start(place: str) -> PrefilledKv | Literal["local"] | None:
        if place == HERE:
            return HERE
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return None

    assert await one.run(start) == HERE
    assert cancelled.is_set()
    assert one.counted == {("second",): 1}


async def test_a_leg_that_fails_leaves_the_race_to_the_other_one() -> None:
    one = Race()

    async def start(worker: str) -> PrefilledKv | None:
        await asyncio.sleep(0)
        return made(worker) if worker == "b" else None

    assert await one.run(start) == "b"

    async def nobody(_: str) -> None:
        return None

    assert await one.run(nobody) is None
    assert one.unread == []
    assert one.counted == {("second",): 1, ("neither",): 1}
