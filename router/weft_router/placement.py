"""Choose the decode worker of a new session by free KV memory, counting what was placed since the last heartbeats."""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from time import monotonic

from weft_core.policies import kv_headroom_snapshot as kv_headroom
from weft_core.policies.snapshot import DecodeWorkerView, PrefillTask
from weft_router.state import WorkerRecord

RECENT_S = 2.0
"""A heartbeat is at most 1 s old when written and read within half a second; then the engine's own figures count."""


class Placement:
    """Binding decisions of one coordinator."""

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._recent: defaultdict[str, deque[tuple[float, int]]] = defaultdict(deque)
        self._placed: defaultdict[str, int] = defaultdict(int)

    def choose(self, records: Sequence[WorkerRecord], *, need: int, avoid: Collection[str] = ()) -> str | None:
        """Return the worker with the largest KV headroom, the least loaded when none has room, None without workers."""
        views = [self._view(record) for record in records if record.worker not in avoid]
        if not views:
            return None
        chosen = kv_headroom.bind(views, need=need)
        if chosen is None:
            chosen = min(views, key=lambda v: (v.kv_used / max(1, v.kv_capacity), v.sessions, v.worker)).worker
        self._recent[chosen].append((self._clock(), need))
        self._placed[chosen] += need
        return chosen

    def _view(self, record: WorkerRecord) -> DecodeWorkerView:
        recent = self._recent[record.worker]
        oldest = self._clock() - RECENT_S
        while recent and recent[0][0] < oldest:
            self._placed[record.worker] -= recent.popleft()[1]
        return DecodeWorkerView(
            worker=record.worker,
            degree=record.degree,
            queue=tuple(PrefillTask(entry.history, entry.increment) for entry in record.queue),
            windowed_itl=record.windowed_itl,
            kv_used=record.kv_used + self._placed[record.worker],
            kv_capacity=record.capacity,
            sessions=record.sessions + len(recent),
            batch=record.batch,
        )
