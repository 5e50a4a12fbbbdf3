"""Show workers as the policies see them: what their heartbeats say, and what this process has sent them since.

Heartbeats are up to a second old; prefills this process sent since then are added to the queues it reads, so that a
burst does not pile up on the worker that looked idle. Between two requests one or two of the workers change, so each
view is kept until its worker's heartbeat or prefills change, and so is the tuple of all views.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from weft_core.cost import CostProfile
from weft_core.heartbeat import WorkerRecord
from weft_core.policies.earliest import Lanes
from weft_core.policies.fleet import prefill_pieces
from weft_core.policies.snapshot import PrefillTask, PrefillWorkerView
from weft_core.timing import prefill_seconds

OVER_S = 3.0
"""A heartbeat is read within half a second and holds for one more: after twice that none names what was over then."""


class Entry:
    """A prefill and its predicted seconds."""

    __slots__ = ("seconds", "task")

    def __init__(self, task: PrefillTask, seconds: float) -> None:
        self.task = task
        self.seconds = seconds


class _Worker:
    """What is known of one worker."""

    __slots__ = ("mine", "over", "pieces", "place", "published", "record", "tidy_at", "used_at", "view")

    def __init__(self) -> None:
        self.record: WorkerRecord | None = None
        self.pieces: tuple[float, ...] | None = None
        self.published: dict[str, Entry] = {}
        self.mine: dict[str, Entry] = {}
        self.over: dict[str, float] = {}
        """When those that are over ended, for OVER_S and some more."""
        self.tidy_at = -math.inf
        self.used_at = -math.inf
        self.view: PrefillWorkerView | None = None
        self.place = -1
        """Where its view is among all that were asked for last, -1: not among them."""


class Dispatched:
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
        self._workers: dict[str, _Worker] = {}
        self._records: list[WorkerRecord] = []
        self._shown: list[_Worker] = []
        self._views: tuple[PrefillWorkerView, ...] = ()
        self._changed: list[_Worker] = []
        self.lanes = Lanes()
        """The views' queues, kind by kind, for all who decide by them."""

    def add(self, worker: str, task_id: str, task: PrefillTask) -> None:
        """Note a prefill on its way to a worker."""
        known = self._worker(worker)
        known.mine[task_id] = Entry(task, self._seconds(known, task))
        if task_id in known.over:
            del known.over[task_id]
        known.used_at = self._clock()
        self._change(known)

    def remove(self, worker: str, task_id: str) -> None:
        """Note that a worker answered, or will not; a heartbeat from before then may still name the task."""
        known = self._worker(worker)
        if task_id in known.mine:
            del known.mine[task_id]
        now = self._clock()
        if now >= known.tidy_at:  # each is looked at once or twice, and not at every end
            known.tidy_at = now + OVER_S
            known.over = {name: at for name, at in known.over.items() if at >= now - OVER_S}
        known.over[task_id] = now
        self._change(known)

    def sent(self, worker: str) -> int:
        """Return how many prefills are on their way to a worker, or there."""
        return len(self._worker(worker).mine)

    def view(self, record: WorkerRecord) -> PrefillWorkerView:
        """Return a worker as the policies see it: its published queue and what was sent since."""
        return self._view(self._worker(record.worker), record)

    def views(self, records: Sequence[WorkerRecord]) -> tuple[PrefillWorkerView, ...]:
        """Return all of them; the same tuple as long as neither a heartbeat nor a prefill changed one."""
        if records == self._records:  # the same objects, which compare at once
            if not self._changed:
                return self._views
            views = list(self._views)
            for known in self._changed:
                place = known.place
                if place >= 0:
                    views[place] = self._view(known, self._records[place])
            self._views = tuple(views)
        else:
            self._arrange(records)
        self._changed = []
        return self._views

    def forget(self, workers: Sequence[str]) -> None:
        """Drop what is kept of workers that are no longer known, given those that are."""
        for gone in self._workers.keys() - set(workers):
            mine = self._workers.pop(gone).mine
            if mine:  # their answers are still to come
                self._worker(gone).mine = mine
            self._arrange(())  # whoever is still asked for is looked at anew

    def _arrange(self, records: Sequence[WorkerRecord]) -> None:
        """Show other workers, or others of their heartbeats, from now on."""
        for known in self._shown:
            known.place = -1
        self._records = list(records)
        self._shown = [self._worker(record.worker) for record in records]
        for place, known in enumerate(self._shown):
            known.place = place
        self._views = tuple(map(self.view, records))

    def _change(self, known: _Worker) -> None:
        """Note that a view is no longer right; who has none is not among those shown, or is on the list."""
        if known.view is not None:
            known.view = None
            self._changed.append(known)

    def _view(self, known: _Worker, record: WorkerRecord) -> PrefillWorkerView:
        if known.view is not None and known.record is record:
            return known.view
        if known.record is not record:
            self._read(known, record)
        known.view = self._make(known, record)
        return known.view

    def _worker(self, name: str) -> _Worker:
        known = self._workers.get(name)
        if known is None:
            known = self._workers[name] = _Worker()
        return known

    def _seconds(self, known: _Worker, task: PrefillTask) -> float:
        """Return T_pre there; NaN before the worker is first seen, which is when it is predicted."""
        return math.nan if known.pieces is None else prefill_seconds(known.pieces, task.history, task.increment)

    def _read(self, known: _Worker, record: WorkerRecord) -> None:
        """Take in a heartbeat; what was predicted for tasks that it still names is kept."""
        before, known.record = known.record, record
        kept = known.published
        if before is None or (before.degree, before.pool) != (record.degree, record.pool):
            kept = {}
            known.pieces = prefill_pieces(self._pools.get(record.pool, self._profile), record.degree)
            for mine in known.mine.values():
                mine.seconds = self._seconds(known, mine.task)
        published: dict[str, Entry] = {}
        for entry in record.queue:
            same = kept.get(entry.id)
            if same is not None and same.task.history == entry.history and same.task.increment == entry.increment:
                published[entry.id] = same
            else:
                task = PrefillTask(entry.history, entry.increment)
                published[entry.id] = Entry(task, self._seconds(known, task))
        known.published = published

    def _make(self, known: _Worker, record: WorkerRecord) -> PrefillWorkerView:
        published, mine = known.published, known.mine
        if published:
            over, oldest = known.over, self._clock() - OVER_S
            queue = [entry for task_id, entry in published.items() if over.get(task_id, -math.inf) < oldest]
            queue += [entry for task_id, entry in mine.items() if task_id not in published]
        else:
            queue = list(mine.values())
        queue_s = 0.0
        for entry in queue:
            queue_s += entry.seconds
        kv_use = record.kv_used / record.capacity if record.capacity > 0 else math.nan
        if record.role != "decode":
            return PrefillWorkerView(
                record.worker, record.degree, queue_s, len(queue), record.windowed_ttft, kv_use, known.used_at,
                record.pool,
            )  # fmt: skip
        return PrefillWorkerView(
            record.worker, record.degree, queue_s, len(queue), record.windowed_ttft, kv_use, known.used_at, record.pool,
            decodes=True, batch=record.batch, context=record.kv_used,
            queue_tokens=float(sum(entry.task.increment for entry in queue)),
            queue_work=sum((_work(entry.task) for entry in queue), 0.0),
        )  # fmt: skip


def _work(task: PrefillTask) -> float:
    return task.increment * (task.history + task.increment / 2)


def candidates(records: Sequence[WorkerRecord], *, tokens: int) -> list[WorkerRecord]:
    """Return the workers that could hold a prefill of ``tokens``: a symmetric layout's beside its own sessions."""
    return [record for record in records if tokens <= _room(record)]


def _room(record: WorkerRecord) -> float:
    if record.capacity <= 0:
        return math.inf
    return record.capacity - record.kv_used if record.role == "decode" else record.capacity
