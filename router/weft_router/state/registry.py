"""Know which workers live: by heartbeats read twice a second and, when these fall silent, by asking the worker.

A silent store is no dead worker: who stops beating is probed at its own address, so a lost Redis changes
nothing, and a powered-off node is noticed within seconds although its connections stay open.
"""

import asyncio
import contextlib
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from time import monotonic
from typing import Literal

from weft_core.heartbeat import WorkerRecord
from weft_core.layouts import Role
from weft_router.background import Background, guarded
from weft_router.state.replay_filter import ReplayFilter
from weft_router.state.store import Store, StoreDownError

log = logging.getLogger(__name__)

REFRESH_S = 0.5
SILENT_S = 2.5
"""Two missed heartbeats and a half; a probe costs little, a dead worker costs every session bound to it."""
PROBE_EVERY_S = 1.0
DEAD_AFTER = 2
REPUBLISH_EVERY_S = 10.0
"""A store that lost its data is given them back; one whose epoch changes all the time, not more often than this."""
LOG_REFUSED_EVERY_S = 60.0
"""Interval of log lines about a worker's refused records, for the same reason."""
MOST_LOG_TIMES = 1000
"""Workers and reasons that are remembered for that."""

Health = Literal["ready", "busy", "dead"]
Probe = Callable[[str], Awaitable[Health]]


@dataclass
class _Tracked:
    """A worker's latest heartbeat, when it was read, and what is known of the worker besides."""

    record: WorkerRecord
    beat_at: float
    listed: bool = True
    excluded: str = ""
    """Why it is out of use: failed, not-ready or unreachable; empty while it is not."""
    misses: int = 0
    probed_at: float = 0.0
    probing: bool = False


class Registry:
    """The in-memory picture of all workers; reading it never waits."""

    def __init__(
        self, store: Store, probe: Probe, *, on_gone: Callable[[WorkerRecord], None] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:  # fmt: skip
        """Watch the workers of a store; ``on_gone`` is called with one that died or restarted."""
        self._store = store
        self._probe = probe
        self._clock = clock
        self._workers: dict[str, _Tracked] = {}
        self._background = Background()
        self._ready: dict[Role, list[WorkerRecord]] = {}
        self.seen_ready: set[Role] = set()
        """Duties for which a worker was ready when somebody asked."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._sightings = ReplayFilter()
        self._republished_at = -math.inf
        self._log_times: dict[tuple[str, str], float] = {}
        self.refused: Counter[str] = Counter()
        """Records that were not believed, by reason."""
        self.store_up = False
        self.store_seen = False
        self.epoch = ""
        self._on_gone = on_gone
        self._epoch_listeners: list[Callable[[], Awaitable[None]]] = []
        self._turn_listeners: list[Callable[[WorkerRecord, str], None]] = []

    def on_new_epoch(self, listener: Callable[[], Awaitable[None]]) -> None:
        """Have a listener called when the store has lost its data."""
        self._epoch_listeners.append(listener)

    def on_health_change(self, listener: Callable[[WorkerRecord, str], None]) -> None:
        """Have one called when a worker is taken out of use, with a word for why, and taken back, with none."""
        self._turn_listeners.append(listener)

    async def start(self) -> None:
        """Read the workers once, then keep watching them."""
        await guarded(self.refresh)
        self._background.start(self._run())

    async def stop(self) -> None:
        """Watch no longer."""
        await self._background.stop()

    async def _run(self) -> None:
        try:
            while True:
                await guarded(self.refresh)
                await asyncio.sleep(REFRESH_S)
        finally:
            for task in self._tasks:
                task.cancel()

    async def refresh(self) -> None:
        """Read the heartbeats once and start the probes that are due."""
        try:
            snapshot = await self._store.snapshot()
        except StoreDownError as error:
            if self.store_up or not self.store_seen:
                log.warning("store_down", extra={"error": str(error)})
            self.store_up, self.store_seen = False, True
        else:
            if not self.store_up:
                log.info("store_up", extra={"workers": len(snapshot.workers)})
            self.store_up = self.store_seen = True
            for name, reason in snapshot.refused:
                self._refuse(name, reason)
            self._take(snapshot.workers)
            self._take_epoch(snapshot.epoch)
        self._probe_the_silent()

    def ready(self, duty: Role) -> list[WorkerRecord]:
        """Return the workers with a duty that may be given work now: the same list as long as nothing changed.

        One with the role ``both`` is among those of each duty.
        """
        found = self._ready.get(duty)
        if found is None:
            found = self._ready[duty] = [
                t.record for t in self._workers.values() if t.record.has_duty(duty) and _eligible(t)
            ]
            if found:
                self.seen_ready.add(duty)
        return found

    def known(self, duty: Role) -> list[WorkerRecord]:
        """Return every worker with a duty, whatever its condition."""
        return [t.record for t in self._workers.values() if t.record.has_duty(duty)]

    def workers(self) -> list[WorkerRecord]:
        """Return every worker, whatever its role and condition."""
        return [t.record for t in self._workers.values()]

    def find(self, worker: str) -> WorkerRecord | None:
        """Return a worker, whatever its role and condition; None where it is not known."""
        tracked = self._workers.get(worker)
        return None if tracked is None else tracked.record

    def get(self, worker: str, duty: Role | None = None) -> WorkerRecord | None:
        """Return a worker that may be given work, or work of one duty, now; None otherwise."""
        tracked = self._workers.get(worker)
        if tracked is None or not _eligible(tracked):
            return None
        return tracked.record if duty is None or tracked.record.has_duty(duty) else None

    def reachable(self, worker: str) -> WorkerRecord | None:
        """Return a worker that answers as far as is known, though it may be given no work, None otherwise."""
        tracked = self._workers.get(worker)
        return tracked.record if tracked is not None and tracked.excluded in ("", "not-ready") else None

    def report_failure(self, worker: str) -> None:
        """Give a worker nothing more until a probe reaches it: a connection to it just failed."""
        tracked = self._workers.get(worker)
        if tracked is not None and not tracked.excluded:
            self._exclude(tracked, "failed")
            self._ready.clear()
            log.warning("worker_suspected", extra={"worker": worker})
            self._probe_the_silent()

    def _take(self, records: tuple[WorkerRecord, ...]) -> None:
        now = self._clock()
        listed = set()
        for record in records:
            new = self._sightings.is_new(record, now)
            tracked = self._workers.get(record.worker)
            if new is None or (not new and tracked is None):  # of a worker that is gone only a new one counts
                self._refuse(record.worker, "replay")
                continue
            listed.add(record.worker)
            if tracked is None:
                self._workers[record.worker] = _Tracked(record, beat_at=now)
                log.info("worker_found", extra={"worker": record.worker, "role": record.role, "url": record.url})
                continue
            if new:
                if record.instance_id != tracked.record.instance_id:
                    self._gone(tracked, "restarted")
                    self._exclude(tracked, "")
                    tracked.misses = 0
                tracked.record = record
                tracked.beat_at = now
        for name, tracked in self._workers.items():
            tracked.listed = name in listed
        self._sightings.expire(now)
        self._ready.clear()

    def _refuse(self, worker: str, reason: str) -> None:
        """Count a record that is not believed; log it once in a while."""
        self.refused[reason] += 1
        now, times = self._clock(), self._log_times
        if now - times.get((worker, reason), -math.inf) < LOG_REFUSED_EVERY_S:
            return
        if len(times) >= MOST_LOG_TIMES:
            old = [key for key, at in times.items() if now - at >= LOG_REFUSED_EVERY_S]
            for key in old:
                del times[key]
            if len(times) >= MOST_LOG_TIMES:
                return  # counted all the same
        times[worker, reason] = now
        log.warning("record_refused", extra={"worker": worker, "reason": reason})

    def _take_epoch(self, epoch: str) -> None:
        if epoch == self.epoch:
            return
        now, first = self._clock(), not self.epoch
        if not first and now - self._republished_at < REPUBLISH_EVERY_S:
            return  # looked at again by a later refresh
        self.epoch = epoch
        if not first and self._epoch_listeners:
            self._republished_at = now
            log.warning("store_lost_its_data")
            for listener in self._epoch_listeners:
                self._spawn(guarded(listener))  # may be long: the workers are watched meanwhile

    def _probe_the_silent(self) -> None:
        now = self._clock()
        for name, tracked in self._workers.items():
            silent = not tracked.listed or now - tracked.beat_at > SILENT_S
            due = not tracked.probing and now - tracked.probed_at >= PROBE_EVERY_S
            if (silent or tracked.excluded) and due:
                tracked.probing = True
                tracked.probed_at = now
                self._spawn(self._ask(name, tracked))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, name: str, tracked: _Tracked) -> None:
        asked = tracked.record.instance_id
        try:
            health = await self._probe(tracked.record.url)
        finally:
            tracked.probing = False
        self._ready.clear()
        if tracked.record.instance_id != asked:
            return  # it restarted meanwhile: the answer is about the one before
        if health != "dead":
            if tracked.excluded and health == "ready":
                log.info("worker_back", extra={"worker": name})
            self._exclude(tracked, "" if health == "ready" else "not-ready")
            tracked.misses = 0
            return
        self._exclude(tracked, "unreachable")
        tracked.misses += 1
        if tracked.misses < DEAD_AFTER:
            return
        self._gone(tracked, "unreachable")
        silent = not tracked.listed or self._clock() - tracked.beat_at > SILENT_S
        if silent and self._workers.get(name) is tracked:
            del self._workers[name]
            log.warning("worker_gone", extra={"worker": name})
            with contextlib.suppress(StoreDownError):
                await self._store.withdraw(name)

    def _exclude(self, tracked: _Tracked, why: str) -> None:
        """Take a worker out of use, or back when there is no reason not to."""
        turned = bool(tracked.excluded) != bool(why)
        tracked.excluded = why
        if turned:
            for listener in self._turn_listeners:
                listener(tracked.record, why)

    def _gone(self, tracked: _Tracked, why: str) -> None:
        log.warning("worker_lost", extra={"worker": tracked.record.worker, "reason": why})
        if self._on_gone is not None:
            self._on_gone(tracked.record)


def _eligible(tracked: _Tracked) -> bool:
    return tracked.record.ready and not tracked.record.draining and not tracked.excluded
