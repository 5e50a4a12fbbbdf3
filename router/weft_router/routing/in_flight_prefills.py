"""Show workers as the policies see them: what their heartbeats say, and what this process has sent them since.

Heartbeats are up to 1.5 s old; prefills this process sent since then are added to the queues it reads, so that a burst
does not pile up on the worker that looked idle. For what others sent, ``fresh_queues`` asks. Between two requests one
or two of the workers change, so each view is kept until its worker's heartbeat or prefills change, and so is the tuple
of all views. What is queued at a worker is summed up at each heartbeat, and in between what changes is added or taken
off.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Final

from weft_core.cost import CostProfile
from weft_core.heartbeat import QueueEntry, WorkerRecord
from weft_core.policies.estimates import prefill_pieces
from weft_core.policies.snapshot import PrefillTask, PrefillWorkerView
from weft_core.timing import prefill_seconds
from weft_router.mypyc_compat import mypyc_attr

NEVER: Final = math.inf
OVER_S = 3.0
"""A heartbeat is read within half a second and holds for one more: after twice that none names what was over then."""

NO_TASK: Final = PrefillTask(0, 0)


@mypyc_attr(acyclic=True)
class InFlightPrefill:
    """A prefill, its predicted seconds, and when it was over, NEVER: it is not."""

    __slots__ = ("id", "over", "seconds", "task")

    def __init__(self, id_: str, task: PrefillTask, seconds: float) -> None:
        self.id = id_
        self.task = task
        self.seconds = seconds
        self.over = NEVER


class _WorkerLoad:
    """What is known of one worker."""

    __slots__ = (
        "ended", "ended_before", "fresh_until", "pieces", "place", "published", "queued", "record", "seconds",
        "summed_until", "tidy_at", "under_way", "used_at", "view",
    )  # fmt: skip

    def __init__(self) -> None:
        self.record: WorkerRecord | None = None
        self.pieces: tuple[float, ...] | None = None
        self.published: dict[str, InFlightPrefill] = {}
        self.under_way: dict[str, InFlightPrefill] = {}
        """Those that were sent from here, and are not over."""
        self.ended: list[InFlightPrefill] = []
        """Those that are, since ``tidy_at`` was set: thousands, looked through only where a heartbeat names some."""
        self.ended_before: list[InFlightPrefill] = []
        """The same of the time before."""
        self.queued = 0
        self.seconds = 0.0
        """The sums over what is queued there."""
        self.summed_until = -math.inf
        """When they have to be summed up anew: who was over then counts again, if the worker still names it."""
        self.tidy_at = -math.inf
        self.used_at = -math.inf
        self.fresh_until = -math.inf
        """Until when the worker's own answer counts, whatever heartbeats say."""
        self.view: PrefillWorkerView | None = None
        self.place = -1
        """Where its view is among all that were asked for last, -1: not among them."""

    def count(self, entry: InFlightPrefill) -> None:
        """Add one to the sums."""
        self.queued += 1
        self.seconds += entry.seconds

    def drop(self, entry: InFlightPrefill) -> None:
        """Take one off the sums; without any they are what they were at first, however sums were rounded."""
        self.queued -= 1
        self.seconds = self.seconds - entry.seconds if self.queued else 0.0

    def end(self, entry: InFlightPrefill, now: float) -> None:
        """Note that one is over."""
        entry.over = now
        entry.task = NO_TASK  # nobody asks what it was
        if now >= self.tidy_at:
            self.tidy_at = now + OVER_S
            self.ended_before, self.ended = self.ended, []
        self.ended.append(entry)

    def sum_up(self, now: float) -> None:
        """Sum up what its heartbeat names and is not over, and what was sent since."""
        self.queued, self.seconds = 0, 0.0
        under_way, published = self.under_way, self.published
        over = self._over(now)
        for task_id, entry in published.items():
            if task_id not in over:
                self.count(entry)
        for task_id, entry in under_way.items():
            if task_id not in published:
                self.count(entry)
        self.summed_until = min(over.values()) + OVER_S if over else NEVER

    def _over(self, now: float) -> dict[str, float]:
        """Return which of those that its heartbeat names are over, for no longer than OVER_S, and since when."""
        over: dict[str, float] = {}
        left = self.published.keys() - self.under_way.keys()
        for ended in (self.ended, self.ended_before):
            for entry in reversed(ended):  # what a heartbeat names and is over is so since that was sent, mostly
                if not left or entry.over < now - OVER_S:
                    return over
                if entry.id in left:
                    left.remove(entry.id)
                    over[entry.id] = entry.over
        return over


class InFlightPrefills:
    """Prefills this process has sent to others and not heard back of; decode workers of one process share them."""

    def __init__(
        self,
        profile: CostProfile,
        *,
        pools: Mapping[str, CostProfile] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Predict by ``profile``, and for workers of ``pools`` by what these cost."""
        self._profile = profile
        self._pools = pools or {}
        self._clock = clock
        self._workers: dict[str, _WorkerLoad] = {}
        self._records: list[WorkerRecord] = []
        self._shown: list[_WorkerLoad] = []
        self._latest: list[PrefillWorkerView] = []
        self._views: tuple[PrefillWorkerView, ...] = ()
        self._changed: dict[_WorkerLoad, None] = {}

    def add(self, worker: str, task_id: str, task: PrefillTask, now: float = 0.0) -> None:
        """Note a prefill on its way to a worker; ``now`` is the clock's time, 0.0: to be asked here."""
        known = self._worker(worker)
        entry = InFlightPrefill(task_id, task, self._seconds(known, task))
        before = known.under_way.get(task_id)
        known.under_way[task_id] = entry
        if before is None and task_id not in known.published:
            known.count(entry)
        else:  # once more, which is seldom
            known.summed_until = -math.inf
        known.used_at = now or self._clock()
        self._change(known)

    def remove(self, worker: str, task_id: str, now: float = 0.0) -> None:
        """Note that a worker answered, or will not; a heartbeat from before then may still name the task."""
        known = self._worker(worker)
        now = now or self._clock()
        entry = known.under_way.pop(task_id, None)
        if entry is None:  # of a worker that was forgotten since, or once more
            entry = InFlightPrefill(task_id, NO_TASK, 0.0)
            known.summed_until = -math.inf
        else:
            named = known.published.get(task_id)
            known.drop(entry if named is None else named)
            if named is not None and known.summed_until > now + OVER_S:
                known.summed_until = now + OVER_S
        known.end(entry, now)
        self._change(known)

    def take_queue(self, record: WorkerRecord, queue: Sequence[QueueEntry], *, until: float) -> None:
        """Count what a worker says of its queue now in place of what heartbeats say that are read before ``until``."""
        known = self._worker(record.worker)
        if known.record is None:
            self._read(known, record)
        self._publish(known, queue, known.published)
        known.fresh_until = until
        self._change(known)

    def sent(self, worker: str) -> int:
        """Return how many prefills are on their way to a worker, or there."""
        return len(self._worker(worker).under_way)

    def view(self, record: WorkerRecord) -> PrefillWorkerView:
        """Return a worker as the policies see it: its published queue and what was sent since."""
        return self._view(self._worker(record.worker), record)

    def with_room(self, records: Sequence[WorkerRecord], tokens: int) -> list[WorkerRecord]:
        """Return the workers that could hold a prefill of ``tokens``.

        One that decodes, too, holds it beside its own sessions and the prefills of others that are under way.
        """
        return [record for record in records if tokens <= self._room(record)]

    def _room(self, record: WorkerRecord) -> float:
        if record.capacity <= 0:
            return math.inf
        if not record.has_duty("decode"):
            return record.capacity
        under_way = self._worker(record.worker).under_way.values()
        return record.capacity - record.kv_used - sum(sent.task.history + sent.task.increment for sent in under_way)

    def views(self, records: Sequence[WorkerRecord]) -> tuple[PrefillWorkerView, ...]:
        """Return all of them; the same tuple as long as neither a heartbeat nor a prefill changed one."""
        if records == self._records:  # the same objects, which compare at once
            if not self._changed:
                return self._views
            latest = self._latest
            for known in self._changed:
                place = known.place
                if place >= 0:
                    latest[place] = self._view(known, self._records[place])
            self._views = tuple(latest)
        else:
            self._arrange(records)
        self._changed.clear()
        return self._views

    def forget(self, workers: Sequence[str]) -> None:
        """Drop what is kept of workers that are no longer known, given those that are."""
        for gone in self._workers.keys() - set(workers):
            under_way = self._workers.pop(gone).under_way
            if under_way:  # their answers are still to come
                self._worker(gone).under_way = under_way
            self._arrange(())  # whoever is still asked for is looked at anew

    def _arrange(self, records: Sequence[WorkerRecord]) -> None:
        """Show other workers, or others of their heartbeats, from now on."""
        for known in self._shown:
            known.place = -1
        self._records = list(records)
        self._shown = [self._worker(record.worker) for record in records]
        for place, known in enumerate(self._shown):
            known.place = place
        self._latest = [self.view(record) for record in records]
        self._views = tuple(self._latest)

    def _change(self, known: _WorkerLoad) -> None:
        """Note that a view is no longer right; who has none is not among those shown, or is on the list."""
        if known.view is not None:
            known.view = None
            self._changed[known] = None

    def _view(self, known: _WorkerLoad, record: WorkerRecord) -> PrefillWorkerView:
        if known.view is not None and known.record is record:
            return known.view
        if known.record is not record:
            self._read(known, record)
        known.view = self._make(known, record)
        return known.view

    def _worker(self, name: str) -> _WorkerLoad:
        known = self._workers.get(name)
        if known is None:
            known = self._workers[name] = _WorkerLoad()
        return known

    def _seconds(self, known: _WorkerLoad, task: PrefillTask) -> float:
        """Return T_pre there; NaN before the worker is first seen, which is when it is predicted."""
        return math.nan if known.pieces is None else prefill_seconds(known.pieces, task.history, task.increment)

    def _read(self, known: _WorkerLoad, record: WorkerRecord) -> None:
        """Take in a heartbeat; what was predicted for tasks that it still names is kept."""
        before, known.record = known.record, record
        kept, fresh = known.published, self._clock() < known.fresh_until
        if before is None or (before.degree, before.pool) != (record.degree, record.pool):
            kept, fresh = {}, False
            known.pieces = prefill_pieces(self._pools.get(record.pool, self._profile), record.degree)
            for sent in known.under_way.values():
                sent.seconds = self._seconds(known, sent.task)
        if not fresh:  # else the heartbeat may be older than the worker's answer
            self._publish(known, record.queue, kept)

    def _publish(self, known: _WorkerLoad, queue: Sequence[QueueEntry], kept: dict[str, InFlightPrefill]) -> None:
        """Take in a worker's queue; ``kept`` has the predictions of prefills that it had before."""
        published: dict[str, InFlightPrefill] = {}
        for entry in queue:
            same = kept.get(entry.id)
            if same is not None and same.task.history == entry.history and same.task.increment == entry.increment:
                published[entry.id] = same
            else:
                task = PrefillTask(entry.history, entry.increment)
                published[entry.id] = InFlightPrefill(entry.id, task, self._seconds(known, task))
        known.published = published
        known.summed_until = -math.inf

    def _make(self, known: _WorkerLoad, record: WorkerRecord) -> PrefillWorkerView:
        if known.summed_until < NEVER:
            now = self._clock()
            if now > known.summed_until:
                known.sum_up(now)
        kv_use = record.kv_used / record.capacity if record.capacity > 0 else math.nan
        queue_s = known.seconds * record.slowdown
        return PrefillWorkerView(
            record.worker, record.degree, queue_s, known.queued, record.windowed_ttft, kv_use, known.used_at,
            record.pool, slowdown=record.slowdown, batch=record.batch if record.has_duty("decode") else 0,
        )  # fmt: skip
