"""The work queue of services and worker groups: each queued at most once, with exponential backoff after a failure.

The guarantees are those of client-go's work queue: a key that is enqueued while its pass runs gets one more pass
afterwards, and never two at the same time. Changed specs have the highest priority, then watch events, then resyncs and
the initial list of a watch; objects of the last are read from the API server in batches.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import count
from typing import Generic, TypeVar

from weft_operator.api.objects import PassKey
from weft_operator.controllers.result import ReconcileResult
from weft_operator.errors import ApiError, ForbiddenError, OperatorError, WaitingError

DEBOUNCE_S = 0.25
"""Events come in bursts (a pod's start has a dozen); a pass starts this long after the first of a burst."""

RESYNCS_PER_S = 7.0
"""Highest rate of resyncs: with a thousand services and their groups these are about three requests a second, and a
round takes seven minutes."""

QUIET_S = 1.0
"""Resyncs start when none was added for this time: a new watch lists each object of a service, and an object listed
after the resync would cause another one."""

LONGEST_QUIET_S = 10.0

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0

log = logging.getLogger(__name__)


class Priority(IntEnum):
    """The order of keys in the queue."""

    SPEC_CHANGED = 0
    EVENT = 1
    RESYNC = 2


Key = TypeVar("Key", bound=PassKey)
Listed = TypeVar("Listed")


class WorkQueue(Generic[Key, Listed]):
    """``enqueue`` and ``enqueue_resync`` may be called from anywhere in the loop; ``run`` works until cancelled."""

    def __init__(
        self,
        reconcile: Callable[[Key, Listed | None], Awaitable[ReconcileResult]],
        *,
        resync: float,
        workers: int = 4,
        debounce: float = DEBOUNCE_S,
        quiet: float = QUIET_S,
        list_keys: Callable[[], Awaitable[Iterable[Key]]] | None = None,
        observe: Callable[[Sequence[Key]], Awaitable[Mapping[Key, Listed]]],
        batches: Callable[[Iterable[Key]], Iterator[Sequence[Key]]],
    ) -> None:
        """Create it.

        ``list_keys`` lists all keys every ``resync`` seconds, in case events were lost; ``batches`` splits keys into
        batches, and ``observe`` returns the objects of those keys of a batch that exist.
        """
        self._reconcile = reconcile
        self._list_keys = list_keys
        self._observe = observe
        self._batches = batches
        self._resync = resync
        self._workers = workers
        self._debounce = debounce
        self._quiet = quiet
        self._known: set[Key] = set()
        self._dirty: dict[Key, Priority] = {}
        self._running: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._unsettled: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._changed: set[Key] = set()
        """Keys whose timers are for a changed spec."""
        self._ready: asyncio.PriorityQueue[tuple[Priority, int, Key]] = asyncio.PriorityQueue()
        self._number = count()
        self._resync_pending: set[Key] = set()
        self._resync_added = asyncio.Event()
        self._resync_added_at = 0.0
        """The loop's time at which the last resyncs were added."""
        self._listed: dict[Key, Listed] = {}
        self._none_listed = asyncio.Event()
        self._enqueued_since_list: set[Key] = set()
        """Keys that were enqueued since the current listing started."""
        self.last_resync: float | None = None
        """The loop's time of the last resync, for the liveness probe."""

    @property
    def known(self) -> frozenset[Key]:
        """Return all known keys."""
        return frozenset(self._known)

    def enqueue(self, key: Key, *, after: float | None = None, changed: bool = False) -> None:
        """Reconcile a key soon, or ``after`` seconds; an earlier time that is already set stays.

        A key whose spec has ``changed`` goes at once, before all others.
        """
        self._known.add(key)
        loop = asyncio.get_running_loop()
        pause = 0.0 if changed else self._debounce
        when = loop.time() + (pause if after is None else after)
        if changed:
            self._changed.add(key)
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= when:
            return
        if timer is not None:
            timer.cancel()
        self._timers[key] = loop.call_at(when, self._due, key)

    def enqueue_resync(self, keys: Iterable[Key]) -> None:
        """Reconcile keys at the lowest priority, whether or not they changed."""
        found = set(keys)
        self._known |= found
        self._resync_pending |= found
        self._resync_added_at = asyncio.get_running_loop().time()
        if self._resync_pending:
            self._resync_added.set()

    async def run(self) -> None:
        """Run passes until cancelled; keys enqueued before and between two runs are kept."""
        self.enqueue_resync(self._known)  # repeats passes that were cancelled with the last run
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._resync_forever(), name="resync")
                group.create_task(self._list_forever(), name="list")
                for number in range(self._workers):
                    group.create_task(self._work_forever(), name=f"passes {number}")
        finally:
            self._listed.clear()
            self.last_resync = None

    @property
    def failing(self) -> int:
        """Return the number of keys whose last pass failed."""
        return len(self._failures)

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self._enqueued_since_list.add(key)
        self._take_listed(key)
        rank = Priority.SPEC_CHANGED if key in self._changed else Priority.EVENT
        self._changed.discard(key)
        self._queue(key, rank)

    def _queue(self, key: Key, rank: Priority) -> None:
        best = self._dirty.get(key)
        if best is None or rank < best:
            self._dirty[key] = rank
            if key not in self._running:
                self._ready.put_nowait((rank, next(self._number), key))

    def _is_next(self, key: Key) -> bool:
        """Return whether a pass that reads its own objects starts in a moment anyway."""
        timer = self._timers.get(key)
        soon = timer is not None and timer.when() <= asyncio.get_running_loop().time() + self._debounce
        return soon or key in self._dirty

    def _take_listed(self, key: Key) -> Listed | None:
        listed = self._listed.pop(key, None)
        if not self._listed:
            self._none_listed.set()
        return listed

    async def _resync_forever(self) -> None:
        loop = asyncio.get_running_loop()
        round_over = loop.time()
        while True:
            self.last_resync = loop.time()
            await self._enqueue_new()
            if loop.time() >= round_over:
                keys = set(self._known)
                period = max(self._resync, len(keys) / RESYNCS_PER_S)
                round_over = loop.time() + period
            else:
                keys = self._unsettled & self._known
                period = self._resync
            parts = list(self._batches(keys))
            for number, part in enumerate(parts):
                # Spread over the period, so that a thousand services cause no bursts.
                loop.call_later(period * number / len(parts), self._enqueue_known, part)
            await asyncio.sleep(self._resync)

    def _enqueue_known(self, keys: Sequence[Key]) -> None:
        self.enqueue_resync(self._known.intersection(keys))

    async def _enqueue_new(self) -> None:
        if self._list_keys is None:
            return
        try:
            found = await self._list_keys()
        except OperatorError as error:
            log.warning("not_listed", extra={"error": str(error)})
            return
        self.enqueue_resync(set(found) - self._known)

    async def _until_quiet(self) -> None:
        loop = asyncio.get_running_loop()
        latest = loop.time() + LONGEST_QUIET_S
        while (left := min(self._resync_added_at + self._quiet, latest) - loop.time()) > 0:  # noqa: ASYNC110 - the time moves
            await asyncio.sleep(left)

    async def _list_forever(self) -> None:
        failures = 0
        while True:
            if not self._resync_added.is_set():
                await self._resync_added.wait()
                await self._until_quiet()
            self._resync_pending = {key for key in self._resync_pending if not self._is_next(key)}
            if not self._resync_pending:
                self._resync_added.clear()
                continue
            self._enqueued_since_list.clear()
            part = next(iter(self._batches(self._resync_pending)))
            try:
                listed_objects = await self._observe(part)
            except Exception as error:  # noqa: BLE001 - a bug in reading one service must not end all passes
                pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures, 10))
                failures += 1
                log.warning("list_failed", extra={"error": repr(error), "in_seconds": pause})
                if not isinstance(error, OperatorError) or isinstance(error, ForbiddenError):
                    self._resync_pending.difference_update(part)
                    for key in part:
                        self.enqueue(key)  # one by one, so that a bad one does not block the others
                await asyncio.sleep(pause)
                continue
            failures = 0
            self._resync_pending.difference_update(part, listed_objects)
            for key in {*part, *listed_objects} - self._enqueued_since_list:
                if self._is_next(key):
                    continue
                if key in listed_objects:
                    self._known.add(key)
                    self._listed[key] = listed_objects[key]
                self._queue(key, Priority.RESYNC)
            if self._listed:
                self._none_listed.clear()
                await self._none_listed.wait()  # keep at most one batch in memory

    async def _work_forever(self) -> None:
        while True:
            rank, _, key = await self._ready.get()
            if self._dirty.get(key) != rank or key in self._running:
                continue  # it was reconciled at a higher priority, or will be when its pass ends
            del self._dirty[key]
            self._running.add(key)
            try:
                await self._pass(key, self._take_listed(key))
            finally:
                self._running.discard(key)
                if key in self._dirty:
                    self._ready.put_nowait((self._dirty[key], next(self._number), key))

    async def _pass(self, key: Key, listed: Listed | None) -> None:
        try:
            outcome = await self._reconcile(key, listed)
        except WaitingError as error:
            log.info("waiting", extra={"object": str(key), "reason": error.reason, "error": error.message})
            self.enqueue(key, after=error.retry_after)
            return
        except OperatorError as error:
            self._retry(key, error)
            return
        except Exception as error:
            # A bug in one pass must not end the passes over all other services.
            log.exception("reconcile_failed", extra={"object": str(key)})
            self._retry(key, error)
            return
        self._failures.pop(key, None)
        if outcome.settled:
            self._unsettled.discard(key)
        else:
            self._unsettled.add(key)
        if outcome.gone:
            self._known.discard(key)
        elif outcome.requeue_after is not None:
            self.enqueue(key, after=outcome.requeue_after)

    def _retry(self, key: Key, error: Exception) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures - 1, 10))
        if isinstance(error, ApiError) and error.retry_after is not None:
            pause = max(pause, error.retry_after)
        log.warning("retry", extra={"object": str(key), "error": str(error), "in_seconds": pause})
        self.enqueue(key, after=pause)
