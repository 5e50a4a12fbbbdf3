"""Choose the decode worker of a new session by its class's binding, counting what was placed since the heartbeats."""

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic

from weft_core.heartbeat import WorkerRecord
from weft_core.policies.live_binding import Binding, Candidates
from weft_core.policies.snapshot import BindingView
from weft_router.config import PLAIN_CLASS

RECENT_S = 2.0
"""A heartbeat is at most 1 s old when written and read within half a second; then the engine's own figures count."""


class Placement:
    """Binding decisions of one coordinator: ``bindings`` names the rule of each class, the plain one among them.

    What was placed counts for all classes alike, and classes of the same rule go on where the other left off.
    """

    def __init__(self, bindings: Mapping[str, str], *, clock: Callable[[], float] = monotonic) -> None:
        self._rules: dict[str, Binding] = {}
        self._clock = clock
        self._recent: deque[tuple[float, str, int]] = deque()
        self._tokens: Counter[str] = Counter()
        self._sessions: Counter[str] = Counter()
        self._records: list[WorkerRecord] = []
        self._all = Candidates(())
        self._at: dict[str, int] = {}
        self.use(bindings)

    def use(self, bindings: Mapping[str, str]) -> None:
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
        recent, oldest = self._recent, now - RECENT_S
        while recent and recent[0][0] < oldest:
            _, worker, tokens = recent.popleft()
            self._count(worker, -tokens, -1)
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
        recent.append((now, chosen, need))
        self._count(chosen, need, 1)
        return chosen

    def _count(self, worker: str, tokens: int, sessions: int) -> None:
        """Count sessions that no heartbeat tells of yet; negative ones are told of by now."""
        self._tokens[worker] += tokens
        self._sessions[worker] += sessions
        if not self._sessions[worker]:
            del self._tokens[worker], self._sessions[worker]
        at = self._at.get(worker)
        if at is not None:
            self._all.place(at, tokens, sessions)

    def _kept(self, records: Sequence[WorkerRecord]) -> Candidates:
        """Return all workers; made anew when a heartbeat changed one of them."""
        if records != self._records:  # the same objects compare at once
            self._records = list(records)
            self._all = self._candidates(records)
            self._at = {name: at for at, name in enumerate(self._all.names)}
        return self._all

    def _candidates(self, records: Sequence[WorkerRecord]) -> Candidates:
        tokens, sessions = self._tokens, self._sessions
        return Candidates(
            BindingView(
                r.worker, r.kv_used + tokens[r.worker], r.capacity, r.sessions + sessions[r.worker],
                r.batch + len(r.queue) + sessions[r.worker],
            )
            for r in records
        )  # fmt: skip
