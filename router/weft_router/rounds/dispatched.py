"""Show workers as the policies see them: what their heartbeats say, and what this process has sent them since.

Heartbeats are up to a second old; prefills this process sent since then are added to the queues it reads, so that a
burst does not pile up on the worker that looked idle. Between two requests one or two of the workers change, so each
view is kept until its worker's heartbeat or prefills change, and so is the tuple of all views.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from weft_core.cost import CostProfile
from weft_core.policies.live import prefill_seconds
from weft_core.policies.snapshot import PrefillTask, PrefillWorkerView
from weft_router.state.store import WorkerRecord

OVER_S = 3.0
"""A heartbeat is read within half a second and holds for one more: after twice that none names what was over then."""

Entry = tuple[PrefillTask, float]
"""A prefill and its predicted seconds."""


class _Worker:
    """What is known of one worker."""

    __slots__ = ("ended", "mine", "over", "published", "record", "used_at", "view")

    def __init__(self) -> None:
        self.record: WorkerRecord | None = None
        self.published: dict[str, Entry] = {}
        self.mine: dict[str, Entry] = {}
        self.over: dict[str, float] = {}
        self.ended: deque[tuple[float, str]] = deque()
        self.used_at = -math.inf
        self.view: PrefillWorkerView | None = None


class Dispatched:
    """Prefills this process has sent to others and not heard back of."""

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
        self._places: dict[str, int] = {}
        self._views: tuple[PrefillWorkerView, ...] = ()
        self._changed: set[str] = set()

    def add(self, worker: str, task_id: str, task: PrefillTask) -> None:
        """Note a prefill on its way to a worker."""
        known = self._worker(worker)
        known.mine[task_id] = task, self._seconds(known, task)
        known.over.pop(task_id, None)
        known.used_at = self._clock()
        known.view = None
        self._changed.add(worker)

    def remove(self, worker: str, task_id: str) -> None:
        """Note that a worker answered, or will not; a heartbeat from before then may still name the task."""
        known = self._worker(worker)
        known.mine.pop(task_id, None)
        known.over[task_id] = now = self._clock()
        known.ended.append((now, task_id))
        known.view = None
        self._changed.add(worker)

    def view(self, record: WorkerRecord) -> PrefillWorkerView:
        """Return a worker as the policies see it: its published queue and what was sent since."""
        known = self._workers.get(record.worker) or self._worker(record.worker)
        if known.view is not None and known.record is record:
            return known.view
        if known.record is not record:
            self._read(known, record)
        known.view = self._make(known, record)
        return known.view

    def views(self, records: Sequence[WorkerRecord]) -> tuple[PrefillWorkerView, ...]:
        """Return all of them; the same tuple as long as neither a heartbeat nor a prefill changed one."""
        if records == self._records:  # the same objects, which compare at once
            if not self._changed:
                return self._views
            views = list(self._views)
            for worker in self._changed:
                place = self._places.get(worker)
                if place is not None:
                    views[place] = self.view(records[place])
            self._views = tuple(views)
        else:
            self._views = tuple(map(self.view, records))
            self._records = list(records)
            self._places = {record.worker: place for place, record in enumerate(records)}
        self._changed.clear()
        return self._views

    def forget(self, workers: Sequence[str]) -> None:
        """Drop what is kept of workers that are no longer known, given those that are."""
        for gone in self._workers.keys() - set(workers):
            mine = self._workers.pop(gone).mine
            if mine:  # their answers are still to come
                self._worker(gone).mine = mine
            self._changed.add(gone)

    def _worker(self, name: str) -> _Worker:
        known = self._workers.get(name)
        if known is None:
            known = self._workers[name] = _Worker()
        return known

    def _seconds(self, known: _Worker, task: PrefillTask) -> float:
        record = known.record
        if record is None:
            return math.nan  # predicted when the worker is first seen
        return prefill_seconds(task, degree=record.degree, profile=self._pools.get(record.pool, self._profile))

    def _read(self, known: _Worker, record: WorkerRecord) -> None:
        """Take in a heartbeat; what was predicted for tasks that it still names is kept."""
        before, known.record = known.record, record
        kept = known.published
        if before is None or (before.degree, before.pool) != (record.degree, record.pool):
            kept = {}
            known.mine = {name: (task, self._seconds(known, task)) for name, (task, _) in known.mine.items()}
        published: dict[str, Entry] = {}
        for entry in record.queue:
            same = kept.get(entry.id)
            if same is not None and same[0].history == entry.history and same[0].increment == entry.increment:
                published[entry.id] = same
            else:
                task = PrefillTask(entry.history, entry.increment)
                published[entry.id] = task, self._seconds(known, task)
        known.published = published

    def _make(self, known: _Worker, record: WorkerRecord) -> PrefillWorkerView:
        over, ended = known.over, known.ended
        if ended:
            oldest = self._clock() - OVER_S
            while ended and ended[0][0] < oldest:
                at, task_id = ended.popleft()
                if over.get(task_id) == at:  # it did not run and end again since
                    del over[task_id]
        queue = [entry for task_id, entry in known.published.items() if task_id not in over]
        queue += [entry for task_id, entry in known.mine.items() if task_id not in known.published]
        tokens = work = 0.0
        decodes = record.role == "decode"
        if decodes:
            tokens = float(sum(task.increment for task, _ in queue))
            work = sum((task.increment * (task.history + task.increment / 2) for task, _ in queue), 0.0)
        return PrefillWorkerView(
            worker=record.worker,
            degree=record.degree,
            queue_s=sum((seconds for _, seconds in queue), 0.0),
            queued=len(queue),
            windowed_ttft=record.windowed_ttft,
            kv_use=record.kv_used / record.capacity if record.capacity > 0 else math.nan,
            used_at=known.used_at,
            pool=record.pool,
            decodes=decodes,
            batch=record.batch if decodes else 0,
            context=record.kv_used if decodes else 0,
            queue_tokens=tokens,
            queue_work=work,
        )


def candidates(records: Sequence[WorkerRecord], *, tokens: int) -> list[WorkerRecord]:
    """Return the workers that could hold a prefill of ``tokens``: a symmetric layout's beside its own sessions."""
    return [
        record
        for record in records
        if record.capacity <= 0 or tokens + (record.kv_used if record.role == "decode" else 0) <= record.capacity
    ]
