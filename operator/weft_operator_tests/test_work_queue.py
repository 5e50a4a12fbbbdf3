"""The queue: one pass at a time per service, none forgotten, failures with growing pauses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest

from weft_operator.api.objects import ServiceKey
from weft_operator.controllers.result import ReconcileResult
from weft_operator.controllers.work_queue import RESYNCS_PER_S, WorkQueue
from weft_operator.errors import NotFoundError, TransientError, WaitingError

A, B = ServiceKey("ns", "a"), ServiceKey("ns", "b")


@asynccontextmanager
async def running(
    reconcile: Callable[[ServiceKey], Awaitable[ReconcileResult]], *, resync: float = 60, workers: int = 4
) -> AsyncIterator[WorkQueue[ServiceKey, str]]:
    async def one_pass(key: ServiceKey, _sight: str | None) -> ReconcileResult:
        return await reconcile(key)

    async with going(wakeups_of(one_pass, resync=resync, workers=workers)) as work_queue:
        yield work_queue


def wakeups_of(
    one_pass: Callable[[ServiceKey, str | None], Awaitable[ReconcileResult]],
    *,
    resync: float = 60,
    workers: int = 4,
    quiet: float = 0,
    observe: Callable[[Sequence[ServiceKey]], Awaitable[Mapping[ServiceKey, str]]] | None = None,
) -> WorkQueue[ServiceKey, str]:
    async def see_nothing(_keys: Sequence[ServiceKey]) -> dict[ServiceKey, str]:
        return {}

    def in_parts(keys: Iterable[ServiceKey]) -> Iterator[tuple[ServiceKey, ...]]:
        return batched(sorted(keys), 50)

    return WorkQueue(
        one_pass,
        resync=resync,
        debounce=0.01,
        quiet=quiet,
        workers=workers,
        observe=observe or see_nothing,
        batches=in_parts,
    )


def batched(keys: Sequence[ServiceKey], size: int) -> Iterator[tuple[ServiceKey, ...]]:
    return (tuple(keys[at : at + size]) for at in range(0, len(keys), size))


@asynccontextmanager
async def going(work_queue: WorkQueue[ServiceKey, str]) -> AsyncIterator[WorkQueue[ServiceKey, str]]:
    task = asyncio.create_task(work_queue.run())
    await asyncio.sleep(0)
    try:
        yield work_queue
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.005)


async def test_a_burst_of_events_is_one_pass() -> None:
    passes: list[ServiceKey] = []

    async def reconcile(key: ServiceKey) -> ReconcileResult:
        passes.append(key)
        return ReconcileResult()

    async with running(reconcile) as work_queue:
        for _ in range(50):
            work_queue.enqueue(A)
        work_queue.enqueue(B)
        await until(lambda: len(passes) >= 2)
        await asyncio.sleep(0.05)
    assert sorted(passes) == [A, B]


async def test_a_service_enqueued_during_its_pass_gets_one_more_and_never_two_at_once() -> None:
    at_once = 0
    most = 0
    passes = 0
    hold = asyncio.Event()

    async def reconcile(_key: ServiceKey) -> ReconcileResult:
        nonlocal at_once, most, passes
        at_once += 1
        most = max(most, at_once)
        passes += 1
        await hold.wait()
        at_once -= 1
        return ReconcileResult()

    async with running(reconcile) as work_queue:
        work_queue.enqueue(A)
        await until(lambda: passes == 1)
        for _ in range(5):
            work_queue.enqueue(A)
            await asyncio.sleep(0.02)
        hold.set()
        await until(lambda: passes == 2)
        await asyncio.sleep(0.05)
    assert (most, passes) == (1, 2)


async def test_failures_are_retried_and_do_not_hold_up_others(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[ServiceKey] = []

    async def reconcile(key: ServiceKey) -> ReconcileResult:
        seen.append(key)
        if key == A and seen.count(A) == 1:
            raise TransientError("503", retry_after=0.0)
        if key == B and seen.count(B) == 1:
            raise RuntimeError("a bug")
        return ReconcileResult()

    async with running(reconcile) as work_queue:
        work_queue.enqueue(A)
        work_queue.enqueue(B)
        await until(lambda: seen.count(A) == 2 and seen.count(B) == 2)
    assert {record.message for record in caplog.records} >= {"retry", "reconcile_failed"}


async def test_waiting_and_looking_again_are_timed() -> None:
    times: list[float] = []
    loop = asyncio.get_running_loop()

    async def reconcile(_key: ServiceKey) -> ReconcileResult:
        times.append(loop.time())
        if len(times) == 1:
            raise WaitingError("WaitingForDeletion", "soon", retry_after=0.1)
        return ReconcileResult(requeue_after=0.1 if len(times) == 2 else None)

    async with running(reconcile) as work_queue:
        work_queue.enqueue(A)
        await until(lambda: len(times) == 3)
    assert times[1] - times[0] >= 0.09
    assert times[2] - times[1] >= 0.09


async def test_the_resync_reconciles_every_known_service_and_drops_deleted_ones() -> None:
    seen: list[ServiceKey] = []

    async def reconcile(key: ServiceKey) -> ReconcileResult:
        seen.append(key)
        return ReconcileResult(gone=key == B)

    async with running(reconcile, resync=0.1) as work_queue:
        work_queue.enqueue(A)
        work_queue.enqueue(B)
        await until(lambda: seen.count(A) >= 3)
        assert seen.count(B) == 1
        assert work_queue.known == {A}
        assert work_queue.last_resync is not None


async def test_many_settled_services_are_spread_and_unsettled_ones_reconciled_at_each_resync() -> None:
    seen: list[ServiceKey] = []
    many = [ServiceKey("llm", f"s{n:04}") for n in range(1000)]

    async def reconcile(key: ServiceKey) -> ReconcileResult:
        seen.append(key)
        return ReconcileResult(settled=key != A)

    async with running(reconcile, resync=0.05) as work_queue:
        work_queue.enqueue_resync((A, *many))
        await until(lambda: len(set(seen)) == len(many) + 1)
        seen.clear()
        await until(lambda: seen.count(A) >= 10)
        assert len(seen) - seen.count(A) <= len(many) // 2, (
            f"a round of {1000 / RESYNCS_PER_S:.0f} s begins with its first part"
        )


async def test_a_changed_spec_goes_before_what_happened_and_that_before_what_is_only_browsed() -> None:
    order: list[ServiceKey] = []
    begin = asyncio.Event()
    happened, changed, first = ServiceKey("ns", "happened"), ServiceKey("ns", "changed"), ServiceKey("ns", "first")

    async def reconcile(key: ServiceKey) -> ReconcileResult:
        order.append(key)
        await begin.wait()
        return ReconcileResult()

    async with running(reconcile, workers=1) as work_queue:
        await until(lambda: work_queue.last_resync is not None)
        work_queue.enqueue(first, changed=True)
        await until(lambda: order == [first])
        work_queue.enqueue_resync([A, B])
        await until(lambda: {A, B} <= work_queue._dirty.keys())
        work_queue.enqueue(happened)
        await until(lambda: happened in work_queue._dirty)
        work_queue.enqueue(B, changed=True)
        work_queue.enqueue(changed, changed=True)
        await until(lambda: changed in work_queue._dirty)
        begin.set()
        await until(lambda: len(order) == 5)
        await asyncio.sleep(0.05)
    assert order == [first, B, changed, happened, A], "and none of them twice"


async def test_what_is_browsed_is_listed_together_and_seen_by_its_pass_unless_something_happened_since() -> None:
    passes: list[tuple[ServiceKey, str | None]] = []
    listed: list[Sequence[ServiceKey]] = []
    group = ServiceKey("ns", "a-group")
    events: list[Callable[[], None]] = []

    async def one_pass(key: ServiceKey, listed: str | None) -> ReconcileResult:
        passes.append((key, listed))
        return ReconcileResult()

    async def observe(keys: Sequence[ServiceKey]) -> dict[ServiceKey, str]:
        listed.append(keys)
        while events:
            events.pop()()
            await until(lambda: (A, None) in passes)
        return {A: "a", group: "of a"}

    async with going(wakeups_of(one_pass, observe=observe)) as work_queue:
        await until(lambda: work_queue.last_resync is not None)
        work_queue.enqueue_resync([A, B])
        await until(lambda: len(passes) == 3)
        assert listed == [(A, B)]
        assert sorted(passes, key=str) == [(A, "a"), (group, "of a"), (B, None)], "B is gone: a pass finds out"
        passes.clear()
        events.append(lambda: work_queue.enqueue(A))
        work_queue.enqueue_resync([A])
        await until(lambda: len(passes) == 2)
        await asyncio.sleep(0.05)
        assert passes == [(A, None), (group, "of a")], "what was listed before the event is not shown any more"


async def test_a_new_watch_costs_one_list_however_many_objects_it_lists() -> None:
    listed: list[Sequence[ServiceKey]] = []

    async def one_pass(_key: ServiceKey, _sight: str | None) -> ReconcileResult:
        return ReconcileResult()

    async def observe(keys: Sequence[ServiceKey]) -> dict[ServiceKey, str]:
        listed.append(keys)
        return dict.fromkeys(keys, "seen")

    async with going(wakeups_of(one_pass, observe=observe, quiet=0.5)) as work_queue:
        await until(lambda: work_queue.last_resync is not None)
        for key in (A, B) * 10:
            work_queue.enqueue_resync([key])
            await asyncio.sleep(0)
        await until(lambda: bool(listed))
        await asyncio.sleep(0.05)
    assert listed == [(A, B)]


async def test_a_listing_that_fails_is_made_again() -> None:
    seen: list[tuple[ServiceKey, str | None]] = []
    attempts = 0

    async def one_pass(key: ServiceKey, listed: str | None) -> ReconcileResult:
        seen.append((key, listed))
        return ReconcileResult()

    async def observe(_keys: Sequence[ServiceKey]) -> dict[ServiceKey, str]:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise TransientError("503")
        return {A: "a"}

    async with going(wakeups_of(one_pass, observe=observe)) as work_queue:
        await until(lambda: work_queue.last_resync is not None)
        work_queue.enqueue_resync([A])
        await until(lambda: seen == [(A, "a")])
    assert attempts == 2


def test_pauses_grow_to_a_minute() -> None:
    async def scenario() -> list[int]:
        async def one_pass(_key: ServiceKey, _sight: str | None) -> ReconcileResult:
            return ReconcileResult()

        work_queue = wakeups_of(one_pass)
        loop = asyncio.get_running_loop()
        pauses = []
        for _ in range(9):
            work_queue._retry(A, NotFoundError("404"))
            timer = work_queue._timers.pop(A)
            pauses.append(round(timer.when() - loop.time()))
            timer.cancel()
        return pauses

    assert asyncio.run(scenario()) == [1, 2, 4, 8, 16, 32, 60, 60, 60]
