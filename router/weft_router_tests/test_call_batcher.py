"""What is asked of the store in one turn of the loop goes out as one call, and each hears of its own answer."""

import asyncio

import pytest

from weft_router.state.call_batcher import CallBatcher
from weft_router.state.store import StoreDownError


class Asked:
    """Answers by doubling, and remembers the calls."""

    def __init__(self, *, down: bool = False) -> None:
        self.calls: list[list[int]] = []
        self.called = asyncio.Event()
        self.down = down

    async def ask(self, numbers: list[int]) -> list[int]:
        self.calls.append(numbers)
        self.called.set()
        down = self.down
        await asyncio.sleep(0)
        if down:
            raise StoreDownError("no answer")
        return [2 * number for number in numbers]


async def test_those_of_one_turn_go_together_and_those_that_come_during_a_call() -> None:
    asked = Asked()
    gathered = CallBatcher(asked.ask)
    first = [asyncio.create_task(gathered.ask(number)) for number in (1, 2, 3)]
    await asked.called.wait()
    later = [asyncio.create_task(gathered.ask(number)) for number in (4, 5)]
    assert await asyncio.gather(*first, *later) == [2, 4, 6, 8, 10]
    assert await gathered.ask(6) == 12
    assert asked.calls == [[1, 2, 3], [4, 5], [6]]


async def test_a_call_that_fails_fails_nobody_who_came_during_it() -> None:
    asked = Asked(down=True)
    gathered = CallBatcher(asked.ask)
    first = asyncio.create_task(gathered.ask(1))
    await asked.called.wait()
    asked.down = False
    late = asyncio.create_task(gathered.ask(2))
    found = await asyncio.gather(first, late, return_exceptions=True)
    assert isinstance(found[0], StoreDownError)
    assert found[1] == 4
    assert asked.calls == [[1], [2]]


async def test_what_nobody_waits_for_any_more_is_not_asked() -> None:
    asked = Asked()
    gathered = CallBatcher(asked.ask)
    gone = asyncio.create_task(gathered.ask(1))
    await asyncio.sleep(0)
    gone.cancel()
    assert await gathered.ask(2) == 4
    assert asked.calls == [[2]]


async def test_whoever_is_cancelled_takes_no_other_along() -> None:
    asked = Asked()
    gathered = CallBatcher(asked.ask)
    gone, kept = (asyncio.create_task(gathered.ask(number)) for number in (1, 2))
    await asked.called.wait()
    gone.cancel()
    assert await kept == 4
    assert asked.calls == [[1, 2]]
    assert gone.cancelled()


async def test_a_store_that_is_down_is_told_to_all() -> None:
    gathered = CallBatcher(Asked(down=True).ask)
    found = await asyncio.gather(gathered.ask(1), gathered.ask(2), return_exceptions=True)
    assert [str(error) for error in found] == ["no answer", "no answer"]
    assert found[0] is not found[1]
    with pytest.raises(StoreDownError):
        await gathered.ask(3)
