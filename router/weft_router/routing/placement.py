"""Choose the decode worker of a new session by its class's binding, counting what was placed since the heartbeats."""

from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic
from typing import Final

from weft_core.heartbeat import WorkerRecord
from weft_core.policies.live_binding import Binding, Candidates
from weft_core.policies.snapshot import BindingView
from weft_router.config import PLAIN_CLASS

RECENT_S = 2.0
"""A heartbeat is at most 1 s old when written and read within half a second; then the engine's own figures count."""
TOGETHER_S: Final = 0.05
"""Sessions that come to a worker within this time are forgotten together: thousands a second are few things."""


class _Placed:
    """Sessions placed on a worker that no heartbeat tells of yet, and their tokens; its place among all, -1: none."""

    __slots__ = ("latest", "place", "sessions", "tokens")

    def __init__(self) -> None:
        self.place = -1
        self.sessions = 0
        self.tokens = 0
        self.latest: _Batch | None = None


class _Batch:
    """Some of them, since when, and those that were placed after these."""

    __slots__ = ("after", "at", "sessions", "tokens", "worker")

    def __init__(self, at: float, worker: _Placed) -> None:
        self.at = at
        self.worker = worker
        self.tokens = 0
        self.sessions = 0
        self.after: _Batch | None = None


_NOTHING: Final = _Placed()


class Placement:
    """Binding decisions of one coordinator: ``bindings`` names the rule of each class, the plain one among them.

    What was placed counts for all classes alike, and classes of the same rule go on where the other left off.
    """

    def __init__(self, bindings: Mapping[str, str], *, clock: Callable[[], float] = monotonic) -> None:
        self._rules: dict[str, Binding] = {}
        self._clock = clock
        self._oldest: _Batch | None = None
        self._latest: _Batch | None = None
        self._placed: dict[str, _Placed] = {}
        self._records: list[WorkerRecord] = []
        self._all = Candidates(())
        self.reload(bindings)

    def reload(self, bindings: Mapping[str, str]) -> None:
        """Go on by other bindings; what was placed stays counted, and a rule that stays knows whose turn it is."""
        self._rules = {name: self._rules.get(name) or Binding(name) for name in bindings.values()}
        self._of = {class_: self._rules[name] for class_, name in bindings.items()}
        self._plain = self._of[PLAIN_CLASS]
        self.reads_hits = any(rule.reads_hits for rule in self._rules.values())
        """Whether any of them looks at what the workers' prefix caches hold."""

    def reads_hits_of(self, class_: str) -> bool:
        """Tell whether the binding of a class does."""
        return self._of.get(class_, self._plain).reads_hits

    def choose(
        self,
        records: Sequence[WorkerRecord],
        *,
        need: int,
        class_: str = PLAIN_CLASS,
        avoid: Collection[str] = (),
        prefix_hit: Mapping[str, int] | None = None,
    ) -> str | None:
        """Return the choice of the class's binding; None without workers.

        When none has room that is the worker with the least KV in use.
        ``prefix_hit`` are the tokens of this prompt that workers' prefix caches may hold.
        """
        now = self._clock()
        self._forget(now - RECENT_S)
        if avoid:
            workers = self._candidates([record for record in records if record.worker not in avoid])
        else:
            workers = self._kept(records)
        if not workers.names:
            return None
        place = self._of.get(class_, self._plain).among(workers, need=need, prefix_hit=prefix_hit)
        if place < 0:
            place = workers.emptiest()
        chosen = workers.names[place]
        placed = self._placed_at(chosen)
        batch = placed.latest
        if batch is None or now >= batch.at + TOGETHER_S:
            batch = self._begin(_Batch(now, placed))
        batch.tokens += need
        batch.sessions += 1
        self._count(placed, need, 1)
        return chosen

    def _begin(self, batch: _Batch) -> _Batch:
        """Keep what is placed from now on."""
        if self._latest is None:
            self._oldest = batch
        else:
            self._latest.after = batch
        self._latest = batch.worker.latest = batch
        return batch

    def _forget(self, oldest: float) -> None:
        """Take out what was placed before ``oldest``."""
        batch = self._oldest
        while batch is not None and batch.at < oldest:
            worker = batch.worker
            self._count(worker, -batch.tokens, -batch.sessions)
            if worker.latest is batch:
                worker.latest = None
            self._oldest = batch = batch.after
        if batch is None:
            self._latest = None

    def _count(self, placed: _Placed, tokens: int, sessions: int) -> None:
        """Count sessions that no heartbeat tells of yet; negative ones are told of by now."""
        placed.tokens += tokens
        placed.sessions += sessions
        if placed.place >= 0:
            self._all.place(placed.place, tokens, sessions)

    def _placed_at(self, worker: str) -> _Placed:
        placed = self._placed.get(worker)
        if placed is None:
            placed = self._placed[worker] = _Placed()
        return placed

    def _kept(self, records: Sequence[WorkerRecord]) -> Candidates:
        """Return all workers; made anew when a heartbeat changed one of them."""
        if records != self._records:  # the same objects compare at once
            self._records = list(records)
            self._all = self._candidates(records)
            self._placed = {name: placed for name, placed in self._placed.items() if placed.sessions}
            for placed in self._placed.values():
                placed.place = -1
            for place, name in enumerate(self._all.names):
                self._placed_at(name).place = place
        return self._all

    def _candidates(self, records: Sequence[WorkerRecord]) -> Candidates:
        return Candidates([self._seen(record) for record in records])

    def _seen(self, record: WorkerRecord) -> BindingView:
        placed = self._placed.get(record.worker, _NOTHING)
        return BindingView(
            record.worker, record.kv_used + placed.tokens, record.capacity, record.sessions + placed.sessions,
            record.batch + len(record.queue) + placed.sessions,
        )  # fmt: skip
