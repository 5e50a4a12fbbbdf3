"""Choose the decode worker of a new session by the service's binding, counting what was placed since the heartbeats."""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from time import monotonic

from weft_core.policies.live_binding import Binding
from weft_core.policies.snapshot import BindingView
from weft_router.state.store import WorkerRecord

RECENT_S = 2.0
"""A heartbeat is at most 1 s old when written and read within half a second; then the engine's own figures count."""


class Placement:
    """Binding decisions of one coordinator."""

    def __init__(self, binding: str, *, clock: Callable[[], float] = monotonic) -> None:
        self._binding = Binding(binding)
        self._clock = clock
        self._recent: defaultdict[str, deque[tuple[float, int]]] = defaultdict(deque)
        self._placed: defaultdict[str, int] = defaultdict(int)

    def choose(self, records: Sequence[WorkerRecord], *, need: int, avoid: Collection[str] = ()) -> str | None:
        """Return the binding's choice, the worker with the least KV in use when none has room, None without workers."""
        views = [self._view(record) for record in records if record.worker not in avoid]
        if not views:
            return None
        chosen = self._binding.choose(views, need=need)
        if chosen is None:
            chosen = min(views, key=lambda v: (v.kv_used / max(1, v.kv_capacity), v.sessions, v.worker)).worker
        self._recent[chosen].append((self._clock(), need))
        self._placed[chosen] += need
        return chosen

    def _view(self, record: WorkerRecord) -> BindingView:
        recent = self._recent[record.worker]
        oldest = self._clock() - RECENT_S
        while recent and recent[0][0] < oldest:
            self._placed[record.worker] -= recent.popleft()[1]
        return BindingView(
            worker=record.worker,
            kv_used=record.kv_used + self._placed[record.worker],
            kv_capacity=record.capacity,
            sessions=record.sessions + len(recent),
            load=record.batch + len(record.queue) + len(recent),
        )
