"""The one queue of the operator: services and groups to look at, each at most once, failures with growing pauses.

The same promises as client-go's work queue: one that is woken while a pass over it runs gets one more pass
afterwards, and never two at the same time. A changed spec goes first, then what happened to something, and what is
only looked at because time has passed, or because a watch began, goes last; the last are listed many at a time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import count
from typing import Generic, TypeVar

from weft_operator.api.objects import PassKey
from weft_operator.controllers.service import ReconcileResult
from weft_operator.errors import ApiError, ForbiddenError, OperatorError, WaitingError

SETTLE_S = 0.25
"""Events come in bursts (a pod's start is a dozen); a pass begins this long after the first of a burst."""

AT_REST_PER_S = 7.0
"""Passes a second over what is at rest, at most: with a thousand services and their groups these are about three
requests a second, and a round takes seven minutes."""

QUIET_S = 1.0
"""What is to be browsed is looked at when nothing was added for so long: a watch that begins tells of a service once
for each of its objects, and what it tells after the look would cost another one."""

LONGEST_QUIET_S = 10.0

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0

log = logging.getLogger(__name__)


class Priority(IntEnum):
    """What goes first."""

    CHANGED = 0
    HAPPENED = 1
    BROWSED = 2


Key = TypeVar("Key", bound=PassKey)
Sight = TypeVar("Sight")


class WorkQueue(Generic[Key, Sight]):
    """Wakes passes: ``wake`` and ``browse`` from anywhere in the loop, ``run`` works until it is cancelled."""

    def __init__(
        self,
        reconcile: Callable[[Key, Sight | None], Awaitable[ReconcileResult]],
        *,
        resync: float,
        passes_at_once: int = 4,
        settle: float = SETTLE_S,
        quiet: float = QUIET_S,
        roster: Callable[[], Awaitable[Iterable[Key]]] | None = None,
        look: Callable[[Sequence[Key]], Awaitable[Mapping[Key, Sight]]],
        batches: Callable[[Iterable[Key]], Iterator[Sequence[Key]]],
    ) -> None:
        """Create it.

        ``roster`` lists all of them, for those whose events got lost, in seconds ``resync`` apart; ``batches``
        divides them into parts, and ``look`` returns what those of a part that are there look like.
        """
        self._reconcile = reconcile
        self._roster = roster
        self._look = look
        self._batches = batches
        self._resync = resync
        self._passes_at_once = passes_at_once
        self._settle = settle
        self._quiet = quiet
        self._known: set[Key] = set()
        self._dirty: dict[Key, Priority] = {}
        self._running: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._unsettled: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._changed: set[Key] = set()
        """Those whose timers are for a changed spec."""
        self._ready: asyncio.PriorityQueue[tuple[Priority, int, Key]] = asyncio.PriorityQueue()
        self._number = count()
        self._to_browse: set[Key] = set()
        self._something_to_browse = asyncio.Event()
        self._browsed_at = 0.0
        """The loop's time at which the last ones were added."""
        self._sights: dict[Key, Sight] = {}
        self._no_sights = asyncio.Event()
        self._meanwhile: set[Key] = set()
        """Those that were woken since the listing that is under way began."""
        self.last_resync: float | None = None
        """The loop's time of the last resync, for the liveness probe."""

    @property
    def known(self) -> frozenset[Key]:
        """Return what is looked at."""
        return frozenset(self._known)

    def wake(self, key: Key, *, after: float | None = None, changed: bool = False) -> None:
        """Look at one soon, or after some seconds; an earlier time that is set already stays.

        One whose spec has ``changed`` is looked at at once, before all others.
        """
        self._known.add(key)
        loop = asyncio.get_running_loop()
        pause = 0.0 if changed else self._settle
        when = loop.time() + (pause if after is None else after)
        if changed:
            self._changed.add(key)
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= when:
            return
        if timer is not None:
            timer.cancel()
        self._timers[key] = loop.call_at(when, self._due, key)

    def browse(self, keys: Iterable[Key]) -> None:
        """Look at some when there is nothing more urgent; nothing need have happened to them."""
        found = set(keys)
        self._known |= found
        self._to_browse |= found
        self._browsed_at = asyncio.get_running_loop().time()
        if self._to_browse:
            self._something_to_browse.set()

    async def run(self) -> None:
        """Work until cancelled; wakes from before and between two runs are kept."""
        self.browse(self._known)  # a pass that the end of a run cut off is not forgotten
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._resync_forever(), name="resync")
                group.create_task(self._browse_forever(), name="browse")
                for number in range(self._passes_at_once):
                    group.create_task(self._work_forever(), name=f"passes {number}")
        finally:
            self._sights.clear()
            self.last_resync = None

    @property
    def failing(self) -> int:
        """Return for how many the last pass failed."""
        return len(self._failures)

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self._meanwhile.add(key)
        self._drop_sight(key)
        rank = Priority.CHANGED if key in self._changed else Priority.HAPPENED
        self._changed.discard(key)
        self._queue(key, rank)

    def _queue(self, key: Key, rank: Priority) -> None:
        best = self._dirty.get(key)
        if best is None or rank < best:
            self._dirty[key] = rank
            if key not in self._running:
                self._ready.put_nowait((rank, next(self._number), key))

    def _is_next(self, key: Key) -> bool:
        """Tell whether a pass that looks for itself begins in a moment anyway."""
        timer = self._timers.get(key)
        soon = timer is not None and timer.when() <= asyncio.get_running_loop().time() + self._settle
        return soon or key in self._dirty

    def _drop_sight(self, key: Key) -> Sight | None:
        sight = self._sights.pop(key, None)
        if not self._sights:
            self._no_sights.set()
        return sight

    async def _resync_forever(self) -> None:
        loop = asyncio.get_running_loop()
        round_over = loop.time()
        while True:
            self.last_resync = loop.time()
            await self._enlist()
            if loop.time() >= round_over:
                keys = set(self._known)
                period = max(self._resync, len(keys) / AT_REST_PER_S)
                round_over = loop.time() + period
            else:
                keys = self._unsettled & self._known
                period = self._resync
            parts = list(self._batches(keys))
            for number, part in enumerate(parts):
                # Spread over the period, so that a thousand services make a steady trickle.
                loop.call_later(period * number / len(parts), self._browse_known, part)
            await asyncio.sleep(self._resync)

    def _browse_known(self, keys: Sequence[Key]) -> None:
        self.browse(self._known.intersection(keys))

    async def _enlist(self) -> None:
        if self._roster is None:
            return
        try:
            found = await self._roster()
        except OperatorError as error:
            log.warning("not_listed", extra={"error": str(error)})
            return
        self.browse(set(found) - self._known)

    async def _until_quiet(self) -> None:
        loop = asyncio.get_running_loop()
        latest = loop.time() + LONGEST_QUIET_S
        while (left := min(self._browsed_at + self._quiet, latest) - loop.time()) > 0:  # noqa: ASYNC110 - it is moved
            await asyncio.sleep(left)

    async def _browse_forever(self) -> None:
        failures = 0
        while True:
            if not self._something_to_browse.is_set():
                await self._something_to_browse.wait()
                await self._until_quiet()
            self._to_browse = {key for key in self._to_browse if not self._is_next(key)}
            if not self._to_browse:
                self._something_to_browse.clear()
                continue
            self._meanwhile.clear()
            part = next(iter(self._batches(self._to_browse)))
            try:
                sights = await self._look(part)
            except Exception as error:  # noqa: BLE001 - a bug in reading one service must not end all passes
                pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures, 10))
                failures += 1
                log.warning("not_looked_at", extra={"error": repr(error), "in_seconds": pause})
                if not isinstance(error, OperatorError) or isinstance(error, ForbiddenError):
                    self._to_browse.difference_update(part)
                    for key in part:
                        self.wake(key)  # each by itself, so that the others are looked at
                await asyncio.sleep(pause)
                continue
            failures = 0
            self._to_browse.difference_update(part, sights)
            for key in {*part, *sights} - self._meanwhile:
                if self._is_next(key):
                    continue
                if key in sights:
                    self._known.add(key)
                    self._sights[key] = sights[key]
                self._queue(key, Priority.BROWSED)
            if self._sights:
                self._no_sights.clear()
                await self._no_sights.wait()  # not more is kept in memory than one listing

    async def _work_forever(self) -> None:
        while True:
            rank, _, key = await self._ready.get()
            if self._dirty.get(key) != rank or key in self._running:
                continue  # it was looked at with more haste, or will be when the pass over it ends
            del self._dirty[key]
            self._running.add(key)
            try:
                await self._pass(key, self._drop_sight(key))
            finally:
                self._running.discard(key)
                if key in self._dirty:
                    self._ready.put_nowait((self._dirty[key], next(self._number), key))

    async def _pass(self, key: Key, sight: Sight | None) -> None:
        try:
            outcome = await self._reconcile(key, sight)
        except WaitingError as error:
            log.info("waiting", extra={"object": str(key), "reason": error.reason, "error": error.message})
            self.wake(key, after=error.retry_after)
            return
        except OperatorError as error:
            self._retry(key, error)
            return
        except Exception as error:
            # A bug in one pass must not end the passes over all other services.
            log.exception("pass_failed", extra={"object": str(key)})
            self._retry(key, error)
            return
        self._failures.pop(key, None)
        if outcome.settled:
            self._unsettled.discard(key)
        else:
            self._unsettled.add(key)
        if outcome.gone:
            self._known.discard(key)
        elif outcome.look_again is not None:
            self.wake(key, after=outcome.look_again)

    def _retry(self, key: Key, error: Exception) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures - 1, 10))
        if isinstance(error, ApiError) and error.retry_after is not None:
            pause = max(pause, error.retry_after)
        log.warning("retry", extra={"object": str(key), "error": str(error), "in_seconds": pause})
        self.wake(key, after=pause)
