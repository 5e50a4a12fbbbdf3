"""Two legs at once: which failure counts, and when."""

import asyncio

import pytest

from weft_router.errors import EngineAnsweredError, UpstreamFailedError
from weft_router.rounds.concurrent_legs import ConcurrentLegs


async def fails(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


async def ends(done: list[str], gate: asyncio.Event) -> None:
    await gate.wait()
    done.append("decode")


async def test_a_prefill_that_breaks_before_the_answer_ends_the_decode_leg() -> None:
    done: list[str] = []
    with pytest.raises(UpstreamFailedError, match="prefill lost"):
        await ConcurrentLegs().run(fails(UpstreamFailedError("prefill lost")), ends(done, asyncio.Event()))
    assert done == []


async def test_a_prefill_that_breaks_when_the_answer_has_begun_is_past_its_use() -> None:
    done: list[str] = []
    gate = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, gate.set)
    await ConcurrentLegs().run(fails(UpstreamFailedError("prefill lost")), ends(done, gate), headers_sent=lambda: True)
    assert done == ["decode"]


async def test_a_prefill_that_outlives_its_answer_is_drained_whatever_it_says() -> None:
    gate = asyncio.Event()

    async def late() -> None:
        await gate.wait()
        raise EngineAnsweredError(400, b"")

    together = ConcurrentLegs()
    open_gate = asyncio.Event()
    open_gate.set()
    await together.run(late(), ends([], open_gate))
    gate.set()
    done, pending = await asyncio.wait(set(together._draining), timeout=60)
    assert not pending
    assert [leg.exception() for leg in done] == [None]
