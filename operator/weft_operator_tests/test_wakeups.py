"""The queue: one pass at a time per service, none forgotten, failures with growing pauses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from weft_operator.errors import NotFoundError, TransientError, WaitingError
from weft_operator.manifest import ServiceKey
from weft_operator.reconcile import Outcome
from weft_operator.wakeups import Wakeups

A, B = ServiceKey("ns", "a"), ServiceKey("ns", "b")


@asynccontextmanager
async def running(
    reconcile: Callable[[ServiceKey], Awaitable[Outcome]], *, resync: float = 60
) -> AsyncIterator[Wakeups]:
    wakeups = Wakeups(reconcile, resync=resync, settle=0.01)
    task = asyncio.create_task(wakeups.run())
    await asyncio.sleep(0)
    try:
        yield wakeups
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.005)


async def test_a_burst_of_events_is_one_pass() -> None:
    passes: list[ServiceKey] = []

    async def reconcile(key: ServiceKey) -> Outcome:
        passes.append(key)
        return Outcome()

    async with running(reconcile) as wakeups:
        for _ in range(50):
            wakeups.wake(A)
        wakeups.wake(B)
        await until(lambda: len(passes) >= 2)
        await asyncio.sleep(0.05)
    assert sorted(passes) == [A, B]


async def test_a_service_woken_during_its_pass_gets_one_more_and_never_two_at_once() -> None:
    at_once = 0
    most = 0
    passes = 0
    hold = asyncio.Event()

    async def reconcile(_key: ServiceKey) -> Outcome:
        nonlocal at_once, most, passes
        at_once += 1
        most = max(most, at_once)
        passes += 1
        await hold.wait()
        at_once -= 1
        return Outcome()

    async with running(reconcile) as wakeups:
        wakeups.wake(A)
        await until(lambda: passes == 1)
        for _ in range(5):
            wakeups.wake(A)
            await asyncio.sleep(0.02)
        hold.set()
        await until(lambda: passes == 2)
        await asyncio.sleep(0.05)
    assert (most, passes) == (1, 2)


async def test_failures_are_retried_and_do_not_hold_up_others(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[ServiceKey] = []

    async def reconcile(key: ServiceKey) -> Outcome:
        seen.append(key)
        if key == A and seen.count(A) == 1:
            raise TransientError("503", retry_after=0.0)
        if key == B and seen.count(B) == 1:
            raise RuntimeError("a bug")
        return Outcome()

    async with running(reconcile) as wakeups:
        wakeups.wake(A)
        wakeups.wake(B)
        await until(lambda: seen.count(A) == 2 and seen.count(B) == 2)
    assert {record.message for record in caplog.records} >= {"retry", "pass_failed"}


async def test_waiting_and_looking_again_are_timed() -> None:
    times: list[float] = []
    loop = asyncio.get_running_loop()

    async def reconcile(_key: ServiceKey) -> Outcome:
        times.append(loop.time())
        if len(times) == 1:
            raise WaitingError("FormerObjects", "soon", retry_after=0.1)
        return Outcome(look_again=0.1 if len(times) == 2 else None)

    async with running(reconcile) as wakeups:
        wakeups.wake(A)
        await until(lambda: len(times) == 3)
    assert times[1] - times[0] >= 0.09
    assert times[2] - times[1] >= 0.09


async def test_the_resync_looks_at_every_known_service_and_forgets_the_gone() -> None:
    seen: list[ServiceKey] = []

    async def reconcile(key: ServiceKey) -> Outcome:
        seen.append(key)
        return Outcome(gone=key == B)

    async with running(reconcile, resync=0.1) as wakeups:
        wakeups.wake(A)
        wakeups.wake(B)
        await until(lambda: seen.count(A) >= 3)
        assert seen.count(B) == 1
        assert wakeups.known == {A}
        assert wakeups.last_resync is not None


def test_pauses_grow_to_a_minute() -> None:
    async def scenario() -> list[int]:
        async def reconcile(_key: ServiceKey) -> Outcome:
            return Outcome()

        wakeups = Wakeups(reconcile, resync=60)
        loop = asyncio.get_running_loop()
        pauses = []
        for _ in range(9):
            wakeups._retry(A, NotFoundError("404"))
            timer = wakeups._timers.pop(A)
            pauses.append(round(timer.when() - loop.time()))
            timer.cancel()
        return pauses

    assert asyncio.run(scenario()) == [1, 2, 4, 8, 16, 32, 60, 60, 60]
