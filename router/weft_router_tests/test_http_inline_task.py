"""Coroutines that go on inside the callback that wakes them: what asyncio promises of tasks holds for them, too."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from threading import Event, Thread

import pytest

from weft_router.http.inline_task import InlineTask, Signal
from weft_router_tests.http_kit import on_uvloop, until


class Ended:
    """Hears how a light task ended."""

    def __init__(self) -> None:
        self.told: list[BaseException | None] = []

    def __call__(self, error: BaseException | None) -> None:
        self.told.append(error)


def happen(signal: Signal, error: Exception | None = None) -> None:
    """Give a signal as a leg does."""
    signal.over = True
    signal.error = error
    on_done, signal.on_done = signal.on_done, None
    if on_done is not None:
        on_done(error)


async def begun(work: Coroutine[object, None, None]) -> tuple[InlineTask, Ended]:
    """Start a light task from the loop, as a connection does."""
    loop = asyncio.get_running_loop()
    ended = Ended()
    task = InlineTask(work, ended, loop)
    loop.call_soon(task.start)
    await asyncio.sleep(0)
    return task, ended


async def called(callback: Callable[[], object]) -> None:
    """Call from the loop, where no task runs."""
    asyncio.get_running_loop().call_soon(callback)
    await asyncio.sleep(0)


@on_uvloop
async def test_it_goes_on_inside_the_callback_that_wakes_it() -> None:
    signals = [Signal(), Signal()]
    steps: list[str] = []

    async def work() -> None:
        steps.append("begun")
        await signals[0]
        steps.append("first")
        await signals[1]
        steps.append("second")

    _, ended = await begun(work())
    seen: list[int] = []

    def both() -> None:
        for signal in signals:
            happen(signal)
            seen.append(len(steps))

    await called(both)
    assert (steps, seen, ended.told) == (["begun", "first", "second"], [2, 3], [None])


@on_uvloop
async def test_it_raises_where_it_awaits_and_its_own_end_is_told() -> None:
    signal, other = Signal(), Signal()
    happen(other, ValueError("before"))

    async def work() -> None:
        with pytest.raises(ValueError, match="before"):
            await other
        with pytest.raises(ValueError, match="later"):
            await signal
        raise KeyError("end")

    _, ended = await begun(work())
    await called(lambda: happen(signal, ValueError("later")))
    assert [type(error) for error in ended.told] == [KeyError]


@on_uvloop
async def test_asyncio_takes_it_for_a_task() -> None:
    found: list[object] = []
    gate = asyncio.Event()

    async def inner() -> int:
        await gate.wait()
        return 7

    async def work() -> None:
        found.append(asyncio.current_task())
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(5)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await Signal()
        gate.set()
        found.extend(await asyncio.gather(inner(), inner()))
        async with asyncio.TaskGroup() as group:
            third = group.create_task(inner())
        found.append(third.result())

    task, ended = await begun(work())
    await until(partial(bool, ended.told))
    assert (found, ended.told, task.cancelling()) == ([task, 7, 7, 7], [None], 0)
    assert not task.cancel()


@pytest.mark.parametrize("waits_for", ["signal", "future", "turn"])
@on_uvloop
async def test_a_cancel_is_thrown_where_it_waits_and_may_be_cleaned_up_after(waits_for: str) -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            if waits_for == "signal":
                await Signal()
            elif waits_for == "future":
                await asyncio.sleep(30)
            else:
                for _ in range(1000):
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            steps.append("cleaned")
            raise

    task, ended = await begun(work())
    assert task.cancel()
    assert task.cancel()
    await until(partial(bool, ended.told))
    assert steps in (["cleaned"], [])  # the second cancel may come while the first is cleaned up after
    assert [type(error) for error in ended.told] == [asyncio.CancelledError]


@on_uvloop
async def test_a_cancel_and_a_signal_in_one_turn_step_once() -> None:
    signal = Signal()
    steps: list[str] = []

    async def work() -> None:
        try:
            await signal
        finally:
            steps.append("end")

    task, ended = await begun(work())

    def both() -> None:
        task.cancel()
        happen(signal)

    await called(both)
    await asyncio.sleep(0)
    assert (steps, len(ended.told)) == (["end"], 1)
    assert isinstance(ended.told[0], asyncio.CancelledError)


@on_uvloop
async def test_one_that_cancels_itself_ends_at_its_next_wait() -> None:
    tasks: list[InlineTask] = []

    async def work(wait: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(0)
        tasks[-1].cancel()
        await wait()

    waits: tuple[Callable[[], Awaitable[None]], ...] = (Signal, lambda: asyncio.sleep(30), lambda: asyncio.sleep(0))
    for wait in waits:
        task, ended = await begun(work(wait))
        tasks.append(task)
        await until(partial(bool, ended.told))
        assert isinstance(ended.told[0], asyncio.CancelledError)


@on_uvloop
async def test_a_signal_wakes_an_ordinary_task_too() -> None:
    well, ill = Signal(), Signal()

    async def work(signal: Signal) -> str:
        await signal
        return "well"

    tasks = [asyncio.ensure_future(work(signal)) for signal in (well, ill)]
    await asyncio.sleep(0)
    happen(well)
    happen(ill, ValueError("ill"))
    first, second = await asyncio.gather(*tasks, return_exceptions=True)
    assert first == "well"
    assert isinstance(second, ValueError)


@on_uvloop
async def test_what_cannot_be_awaited_is_an_error_where_it_is_awaited() -> None:
    class Odd:
        def __await__(self):  # type: ignore[no-untyped-def]
            yield 3

    async def work() -> None:
        with pytest.raises(RuntimeError, match="cannot be awaited"):
            await Odd()

    _, ended = await begun(work())
    await until(lambda: ended.told == [None])


def test_a_light_task_in_another_thread_is_no_matter() -> None:
    entered, left = Event(), Event()
    ended: list[BaseException | None] = []

    async def waits() -> None:
        signal = Signal()
        asyncio.get_running_loop().call_soon(happen, signal)
        await signal

    async def held() -> None:
        entered.set()
        left.wait(10)  # in the midst of a step
        await waits()

    async def light() -> None:
        _, end = await begun(held())
        await until(partial(bool, end.told))
        ended.extend(end.told)

    thread = Thread(target=asyncio.run, args=(light(),))
    thread.start()
    assert entered.wait(10)
    asyncio.run(waits())
    left.set()
    thread.join(10)
    assert ended == [None]
