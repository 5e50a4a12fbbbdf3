"""Choose the decode worker of a new session by the service's binding, counting what was placed since the heartbeats."""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
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

    @property
    def reads_hits(self) -> bool:
        """Tell whether the binding looks at what the workers' prefix caches hold."""
        return self._binding.reads_hits

    def use(self, binding: str) -> None:
        """Go on by another binding; what was placed stays counted."""
        self._binding = Binding(binding)

    def choose(
        self,
        records: Sequence[WorkerRecord],
        *,
        need: int,
        avoid: Collection[str] = (),
        prefix_hit: Mapping[str, int] | None = None,
    ) -> str | None:
        """Return the binding's choice, the worker with the least KV in use when none has room, None without workers.

        ``prefix_hit`` are the tokens of this prompt that workers' prefix caches may hold.
        """
        now = self._clock()
        views = [self._view(record, now) for record in records if record.worker not in avoid]
        if not views:
            return None
        chosen = self._binding.choose(views, need=need, prefix_hit=prefix_hit)
        if chosen is None:
            chosen = min(views, key=lambda v: (v.kv_used / max(1, v.kv_capacity), v.sessions, v.worker)).worker
        self._recent[chosen].append((now, need))
        self._placed[chosen] += need
        return chosen

    def _view(self, record: WorkerRecord, now: float) -> BindingView:
        worker = record.worker
        recent = self._recent[worker]
        if not recent:
            return BindingView(
                worker, record.kv_used, record.capacity, record.sessions, record.batch + len(record.queue)
            )
        oldest = now - RECENT_S
        while recent and recent[0][0] < oldest:
            self._placed[worker] -= recent.popleft()[1]
        count = len(recent)
        return BindingView(
            worker, record.kv_used + self._placed[worker], record.capacity, record.sessions + count,
            record.batch + len(record.queue) + count,
        )  # fmt: skip
