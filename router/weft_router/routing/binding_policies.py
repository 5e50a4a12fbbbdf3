"""Choose the decode worker of a new session by its class's binding policy.

Heartbeats lag behind: sessions that were placed since a worker's last heartbeat are counted as its load here.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic
from typing import Final

from weft_core.heartbeat import WorkerRecord
from weft_core.policies.live_binding import Binding, Candidates
from weft_core.policies.snapshot import BindingView
from weft_router.config import PLAIN_CLASS

RECENT_S = 2.0
"""How long a placed session is counted here. A heartbeat is at most 1 s old when written and is read within half a
second; after that the engine's own figures include the session."""
BATCH_S: Final = 0.05
"""Sessions placed on a worker within this time expire together, so that thousands a second need few objects."""


class _RecentSessions:
    """Sessions placed on a worker since its last heartbeat, and their tokens; its index among all, -1: none."""

    __slots__ = ("index", "latest", "sessions", "tokens")

    def __init__(self) -> None:
        self.index = -1
        self.sessions = 0
        self.tokens = 0
        self.latest: _Interval | None = None


class _Interval:
    """Sessions placed on one worker within BATCH_S; a linked list in order of time."""

    __slots__ = ("at", "following", "sessions", "tokens", "worker")

    def __init__(self, at: float, worker: _RecentSessions) -> None:
        self.at = at
        self.worker = worker
        self.tokens = 0
        self.sessions = 0
        self.following: _Interval | None = None


_NO_SESSIONS: Final = _RecentSessions()


class BindingPolicies:
    """The binding policies of one coordinator: ``bindings`` has one by name for each class, the default class included.

    Placed sessions count for all classes alike, and classes with the same policy share its round-robin cursor.
    """

    def __init__(self, bindings: Mapping[str, str], *, clock: Callable[[], float] = monotonic) -> None:
        self._rules: dict[str, Binding] = {}
        self._clock = clock
        self._first: _Interval | None = None
        self._last: _Interval | None = None
        self._recent: dict[str, _RecentSessions] = {}
        self._last_records: list[WorkerRecord] = []
        self._all = Candidates(())
        self.reload(bindings)

    def reload(self, bindings: Mapping[str, str]) -> None:
        """Replace the policies; recent sessions stay counted, and a policy that stays keeps its round-robin cursor."""
        self._rules = {name: self._rules.get(name) or Binding(name) for name in bindings.values()}
        self._by_class = {class_: self._rules[name] for class_, name in bindings.items()}
        self._default = self._by_class[PLAIN_CLASS]
        self.reads_prefix_hits = any(rule.reads_prefix_hits for rule in self._rules.values())
        """Whether any policy reads prefix cache hits."""

    def reads_prefix_hits_of(self, class_: str) -> bool:
        """Return whether a class's policy reads prefix cache hits."""
        return self._by_class.get(class_, self._default).reads_prefix_hits

    def choose(
        self,
        records: Sequence[WorkerRecord],
        *,
        needed_kv: int,
        class_: str = PLAIN_CLASS,
        avoid: Collection[str] = (),
        prefix_hit: Mapping[str, int] | None = None,
        in_memory: Mapping[str, int] | None = None,
    ) -> str | None:
        """Return the worker that the class's policy chooses for ``needed_kv`` tokens; None without workers.

        When none has room, it is the worker with the least KV in use. ``prefix_hit``: by worker, the tokens of this
        prompt that its prefix cache may hold; ``in_memory``: those in GPU memory, None: all.
        """
        now = self._clock()
        self._expire(now - RECENT_S)
        if avoid:
            workers = self._candidates([record for record in records if record.worker not in avoid])
        else:
            workers = self._all_candidates(records)
        if not workers.names:
            return None
        rule = self._by_class.get(class_, self._default)
        place = rule.among(workers, needed_kv=needed_kv, prefix_hit=prefix_hit, in_memory=in_memory)
        if place < 0:
            place = workers.emptiest()
        chosen = workers.names[place]
        placed = self._recent_at(chosen)
        batch = placed.latest
        if batch is None or now >= batch.at + BATCH_S:
            batch = self._start_interval(_Interval(now, placed))
        batch.tokens += needed_kv
        batch.sessions += 1
        self._count(placed, needed_kv, 1)
        return chosen

    def _start_interval(self, batch: _Interval) -> _Interval:
        """Append a new interval."""
        if self._last is None:
            self._first = batch
        else:
            self._last.following = batch
        self._last = batch.worker.latest = batch
        return batch

    def _expire(self, oldest: float) -> None:
        """Stop counting what was placed before ``oldest``."""
        batch = self._first
        while batch is not None and batch.at < oldest:
            worker = batch.worker
            self._count(worker, -batch.tokens, -batch.sessions)
            if worker.latest is batch:
                worker.latest = None
            self._first = batch = batch.following
        if batch is None:
            self._last = None

    def _count(self, placed: _RecentSessions, tokens: int, sessions: int) -> None:
        """Add sessions to a worker's count; negative ones expired."""
        placed.tokens += tokens
        placed.sessions += sessions
        if placed.index >= 0:
            self._all.place(placed.index, tokens, sessions)

    def _recent_at(self, worker: str) -> _RecentSessions:
        placed = self._recent.get(worker)
        if placed is None:
            placed = self._recent[worker] = _RecentSessions()
        return placed

    def _all_candidates(self, records: Sequence[WorkerRecord]) -> Candidates:
        """Return all workers; rebuilt when a heartbeat changed one of them."""
        if records != self._last_records:  # the same objects compare at once
            self._last_records = list(records)
            self._all = self._candidates(records)
            self._recent = {name: placed for name, placed in self._recent.items() if placed.sessions}
            for placed in self._recent.values():
                placed.index = -1
            for index, name in enumerate(self._all.names):
                self._recent_at(name).index = index
        return self._all

    def _candidates(self, records: Sequence[WorkerRecord]) -> Candidates:
        return Candidates([self._view_of(record) for record in records])

    def _view_of(self, record: WorkerRecord) -> BindingView:
        placed = self._recent.get(record.worker, _NO_SESSIONS)
        return BindingView(
            record.worker, record.kv_used + placed.tokens, record.capacity, record.sessions + placed.sessions,
            record.batch + len(record.queue) + placed.sessions,
        )  # fmt: skip
