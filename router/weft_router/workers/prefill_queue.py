"""Queue the prefill tasks of one worker: the service's queue order chooses the next, and the engine is kept busy.

Each task brings its own TTFT SLO, priority and tenant. The highest class that waits goes first, in it the tenant whose
turn it is where tenants have shares, and among its tasks the service's order decides.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

from weft_core.cost import CostProfile
from weft_core.heartbeat import QueueEntry
from weft_core.parallelism import Degree
from weft_core.policies.estimates import EngineEstimate
from weft_core.policies.inputs import MAX_WINDOW, QueueInputs
from weft_core.policies.qos.fair_share import FairShares, next_by_share
from weft_core.policies.qos.priority import next_by_priority
from weft_core.policies.registry import DEFAULT_CAP, DEFAULT_WINDOW, ORDERS
from weft_core.policies.slowdown import Slowdown
from weft_core.policies.snapshot import PrefillTask
from weft_router.config import RouterConfig
from weft_router.errors import UnavailableError
from weft_router.workers.batch import DecodeBatch
from weft_router.workers.engine_slots import NEVER, EngineSlot, EngineSlots

T = TypeVar("T")

TICK_S = 0.001
"""Event loops count whole milliseconds: a timer may ring a little before its time."""
DELAY_S = 0.01
"""How often a prefill that is delayed is looked at again: less than a decode step."""

Delays = Callable[[PrefillTask, float, float, float], bool]
"""Tells whether a prefill is delayed: the task, its predicted seconds, those of the prefills that the engine computes
now, and the largest share of a TTFT SLO at which a prefill of the queue ends if all begin now."""


@dataclass(frozen=True, slots=True)
class QueueRule:
    """Who runs next: a queue order of the catalogue; ``window`` counts for ``ampd-window``, ``cap`` for ageing.

    ``shares`` are tenants' weights (others have 1), None for no fairness between tenants. ``corrected``: predictions
    follow what the engine's recent prefills took, instead of the profile alone.
    """

    order: str
    window: int = DEFAULT_WINDOW
    cap: int = DEFAULT_CAP
    shares: Mapping[str, float] | None = None
    corrected: bool = True


def queue_rule(config: RouterConfig) -> QueueRule:
    """Return by which rule a worker's prefill queue goes; tenants share it where the service names any."""
    routing, tenants = config.routing, config.qos.tenants
    return QueueRule(
        routing.order,
        window=routing.window,
        cap=routing.ageing_cap,
        shares={name: tenant.weight for name, tenant in tenants.items()} if tenants else None,
        corrected=routing.prediction_correction == "auto",
    )


@dataclass(slots=True, eq=False)
class _Waiting:
    entry: QueueEntry
    reads: bool
    granted: asyncio.Future[EngineSlot]
    immediate: bool = False
    remote: bool = False
    delayed_s: float = 0.0


class QueueSlot:
    """A permit to send one prefill to the engine; releasing it twice is harmless.

    ``granted`` is when that was; before it is given back, ``began`` says when its turn in the engine began, ``granted``
    where that is not known: then it has not, or it overtook the one before. ``delayed_s`` seconds of its wait were for
    the sessions that decode beside it.
    """

    def __init__(self, queue: "PrefillQueue", engine_slot: EngineSlot, granted: float, delayed_s: float = 0.0) -> None:
        self._queue: PrefillQueue | None = queue
        self._engine_slot = engine_slot
        self.granted = granted
        self.delayed_s = delayed_s

    @property
    def began(self) -> float:
        """Return when the engine began with it, as far as this process can tell."""
        return self.granted if self._engine_slot.began is None else self._engine_slot.began

    @property
    def read_ahead_s(self) -> float:
        """Return for how many seconds it was with the engine while that computed the task before it."""
        since = self._engine_slot.reads_from
        return 0.0 if since is None else self.began - since

    def until_first(self) -> float:
        """Return the predicted seconds until the prefill is done, those of the task before it included."""
        return self._queue.until_first(self._engine_slot) if self._queue is not None else 0.0

    async def wait_for_engine(self) -> None:
        """Wait until the engine is done with the task before it."""
        if self._engine_slot.began is None:
            begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._engine_slot.on_begin = lambda: None if begun.done() else begun.set_result(None)
            await begun

    def advance(self, tokens: int) -> None:
        """Count a slice of this prefill as computed."""
        if self._queue is not None:
            self._queue.advance(self._engine_slot, tokens)

    def observe(self, now: float) -> None:
        """Note that the prefill is done: how long it took corrects the predictions for this worker."""
        if self._queue is not None:
            self._queue.observe(self._engine_slot, now)

    def release(self) -> None:
        """Let the next task run."""
        if self._queue is not None:
            queue, self._queue = self._queue, None
            queue.give_back(self._engine_slot)


class PrefillQueue:
    """A queue in front of an engine."""

    def __init__(
        self,
        *,
        profile: CostProfile,
        degree: Degree,
        concurrency: int,
        limit: int,
        rule: QueueRule,
        ttft_slo: float,
        batch: DecodeBatch | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Queue before an engine of ``degree``, which decodes ``batch``; None: it never decodes."""
        self._profile = profile
        self._degree = degree
        self._estimate = EngineEstimate(profile, degree, None)
        self.batch = batch
        """The rounds that decode beside its prefills; None: the engine does not decode."""
        self._limit = limit
        self._ttft_slo = ttft_slo
        self._clock = clock
        # One figure per waiting task and list: in order of deadlines where the queue's order looks at these (the sort
        # that Moore-Hodgson would begin with), else in order of arrival.
        self._waiting: list[_Waiting] = []
        self._seconds: list[float] = []
        self._enqueued: list[float] = []
        self._slo: list[float] = []
        self._postponed: list[int] = []
        self._lost: list[int] = []
        self._priority: list[float] = []
        self._tenants: list[str] = []
        self._head = [0] * MAX_WINDOW
        self._engine_slots = EngineSlots(concurrency)
        self._slowdown = Slowdown()
        self._timer: asyncio.TimerHandle | None = None
        self.tokens = 0.0
        """Tokens still to be computed here, running and waiting."""
        self.work = 0.0
        """The same, each task's times what its sequence holds on average meanwhile."""
        self.delays: Delays | None = None
        """Whether the next prefill waits, though the engine could begin it; None: never."""
        self._delayed_from: float | None = None
        self.reload(rule)

    def reload(self, rule: QueueRule) -> None:
        """Apply another queue order; waiting prefills keep their arrival times."""
        self._rule = rule
        self._order = ORDERS[rule.order]
        self._shares = FairShares(rule.shares) if rule.shares is not None else None
        self._by_deadline = self._order.by_deadline
        if self._by_deadline:
            order = sorted(range(len(self._waiting)), key=lambda i: (self._enqueued[i] + self._slo[i], i))
        else:
            order = sorted(range(len(self._waiting)), key=lambda i: (self._enqueued[i], i))
        self._rearrange(order)

    def __len__(self) -> int:
        """Return how many tasks wait or run."""
        return len(self._waiting) + len(self._engine_slots)

    @property
    def waiting(self) -> int:
        """Return how many tasks wait."""
        return len(self._waiting)

    @property
    def seconds(self) -> float:
        """Return the predicted seconds of all running and waiting tasks, each counted whole."""
        return sum((engine_slot.seconds for engine_slot in self._engine_slots), 0.0) + sum(self._seconds)

    def entries(self) -> tuple[QueueEntry, ...]:
        """Return running and waiting tasks, as other processes shall see them."""
        return (
            *(engine_slot.entry for engine_slot in self._engine_slots),
            *(waiting.entry for waiting in self._waiting),
        )

    async def acquire(
        self,
        task_id: str,
        task: PrefillTask,
        *,
        ttft_slo: float | None = None,
        priority: int = 0,
        tenant: str = "",
        lost: bool = False,
        waited_s: float = 0.0,
        immediate: bool = False,
        remote: bool = False,
    ) -> QueueSlot:
        """Wait for this task's turn.

        ``ttft_slo`` is its class's, None for the queue's own, counted from ``waited_s`` ago; ``lost`` says that its
        session missed a TTFT before, so that it is not worth another one's. One that is ``immediate`` is not delayed,
        one that is ``remote`` is another worker's.

        Raises:
            UnavailableError: the queue is full.
        """
        if len(self._waiting) >= self._limit:
            raise UnavailableError(f"the prefill queue holds {self._limit} tasks already; try again", retryable=True)
        now = self._clock()
        entry = QueueEntry(task.history, task.increment, task_id)
        seconds = self.predict(task)
        self.tokens += task.increment
        self.work += _work(entry, 0)
        slo = self._ttft_slo if ttft_slo is None else ttft_slo
        free = not self._waiting and self._engine_slots.due(reads=task.read > 0) <= now
        if free and (self.delays is None or immediate):
            engine_slot = self._begin(entry, seconds, tenant, now)
            return QueueSlot(self, engine_slot, now)
        granted: asyncio.Future[EngineSlot] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(entry, task.read > 0, granted, immediate, remote)
        self._put(waiting, seconds, now - waited_s, slo, int(lost), float(priority), tenant)
        self._admit()
        try:
            engine_slot = await granted
        except asyncio.CancelledError:
            place = next((i for i, other in enumerate(self._waiting) if other is waiting), None)
            if place is not None:
                self._take(place)
                self._leave(entry, 0)
            elif not granted.cancelled() and granted.exception() is None:  # not sent away at the same time
                self.give_back(granted.result())
            raise
        return QueueSlot(self, engine_slot, self._clock(), waiting.delayed_s)

    def reject_remote(self, why: str) -> None:
        """Refuse the tasks of other workers that wait here: another worker serves them sooner."""
        for place in range(len(self._waiting) - 1, -1, -1):
            if self._waiting[place].remote:
                _, waiting = self._take(place)
                self._leave(waiting.entry, 0)
                if not waiting.granted.done():
                    waiting.granted.set_exception(UnavailableError(why, retryable=True))

    def give_back(self, engine_slot: EngineSlot) -> None:
        """Free the place of a task that ran."""
        self._engine_slots.end(engine_slot, now=self._clock())
        self._leave(engine_slot.entry, engine_slot.done)
        self._admit()

    def advance(self, engine_slot: EngineSlot, tokens: int) -> None:
        """Count a slice of a running task as computed."""
        before = _work(engine_slot.entry, engine_slot.done)
        tokens = min(tokens, engine_slot.entry.increment - engine_slot.done)
        engine_slot.done += tokens
        self.tokens -= tokens
        self.work += _work(engine_slot.entry, engine_slot.done) - before

    def until_first(self, engine_slot: EngineSlot) -> float:
        """Return the predicted seconds until a task in the engine is done."""
        now = self._clock()
        return max(0.0, self._engine_slots.ends(engine_slot, now=now) - now)

    def predict(self, task: PrefillTask) -> float:
        """Return the predicted seconds of a prefill: the profile's, times ``slowdown``."""
        return self._profiled(task) * self.slowdown

    @property
    def slowdown(self) -> float:
        """Return how many times slower the engine prefills than its profile says; 1 where nothing is corrected."""
        return self._slowdown.factor(self._clock()) if self._rule.corrected else 1.0

    def observe(self, engine_slot: EngineSlot, now: float) -> None:
        """Compare a prefill that is done with its profile; one in slices is another matter.

        What it waits for and shares with the batch that decodes is no slowness of the engine.
        """
        began, entry, batch = engine_slot.began, engine_slot.entry, self.batch
        if began is None or engine_slot.done:
            return
        if batch is None:
            least = most = self._estimate.prefill(entry.history, entry.increment)
        else:
            least, most = self._estimate.beside(len(batch), batch.tokens, entry.history, entry.increment)
        self._slowdown.observe(least=least, most=most, observed=now - began, now=now)

    def _profiled(self, task: PrefillTask) -> float:
        return self._profile.t_pre(history=task.history, increment=task.increment, degree=self._degree)

    def _leave(self, entry: QueueEntry, done: int) -> None:
        self.tokens -= entry.increment - done
        self.work -= _work(entry, done)
        if not self._waiting and not len(self._engine_slots):  # no rounding error outlives an empty queue
            self.tokens = self.work = 0.0

    def _begin(self, entry: QueueEntry, seconds: float, tenant: str, now: float) -> EngineSlot:
        if self._shares is not None:
            self._shares.serve(tenant, seconds)
        return self._engine_slots.add(entry, seconds, now=now)

    def _admit(self) -> None:
        """Give the engine what it can take now, and look again when it can take more."""
        if not self._waiting and self._timer is None:
            return
        # A caller cancelled a moment ago has not run yet to take itself off the list.
        for place in range(len(self._waiting) - 1, -1, -1):
            if self._waiting[place].granted.done():
                entry = self._waiting[place].entry
                self._take(place)
                self._leave(entry, 0)
        due = self._due()
        while self._waiting and due <= (now := self._clock()):
            postponed = self._postponed
            following = self._next(ahead=self._engine_slots.due() > now)
            if following is None:  # it has nothing to read
                due = self._engine_slots.due()
                break
            if self._is_delayed(following, now):
                if not self._order.rearranges:
                    self._postponed = postponed  # nobody was overtaken
                due = now + DELAY_S
                break
            tenant = self._tenants[following]
            seconds, chosen = self._take(following)
            chosen.granted.set_result(self._begin(chosen.entry, seconds, tenant, now))
            due = self._due()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and due < NEVER:
            self._timer = asyncio.get_running_loop().call_later(max(TICK_S, due - self._clock()), self._admit)

    def _is_delayed(self, place: int, now: float) -> bool:
        waiting = self._waiting[place]
        if self.delays is None or waiting.immediate:
            return False
        running = sum(slot.seconds for slot in self._engine_slots if slot.began is not None)
        until = max((self._engine_slots.ends(slot, now=now) for slot in self._engine_slots), default=now)
        until = max(now, until) + sum(self._seconds)
        urgency = max((until - since) / slo for since, slo in zip(self._enqueued, self._slo, strict=True))
        task = PrefillTask(waiting.entry.history, waiting.entry.increment)
        delayed = self.delays(task, self._seconds[place], running, urgency)
        if self._delayed_from is not None:
            waiting.delayed_s += now - self._delayed_from
        self._delayed_from = now if delayed else None
        return delayed

    def _due(self) -> float:
        """Return from when on the engine may take a task of those that wait."""
        return self._engine_slots.due(reads=any(waiting.reads for waiting in self._waiting))

    def _next(self, *, ahead: bool) -> int | None:
        """Return the place of the task to run next; Algorithm 2 puts it first, in the order it found.

        ``ahead``: None, and nothing has changed, if it has no history to read.
        """
        rule, now = self._rule, self._clock()
        postponed = list(self._postponed)
        queue = QueueInputs(
            now, self._seconds, self._enqueued, self._slo, postponed, self._lost, rule.window, rule.cap, self._head
        )
        if self._shares is not None:
            place = next_by_share(self._order, queue, self._priority, self._tenants, self._shares)
        else:
            place = next_by_priority(self._order, queue, self._priority)
        first = self._head[0] if self._order.rearranges else place
        if ahead and not self._waiting[first].reads:
            return None
        self._postponed = postponed
        if not self._order.rearranges:
            return place
        self._rearrange(self._head[: min(rule.window, len(self._waiting))])
        return 0

    def _put(
        self, waiting: _Waiting, seconds: float, enqueued: float, slo: float, lost: int, priority: float, tenant: str
    ) -> None:
        place = len(self._waiting)
        if self._by_deadline and place and self._enqueued[-1] + self._slo[-1] > enqueued + slo:
            place = bisect_right(range(place), enqueued + slo, key=lambda i: self._enqueued[i] + self._slo[i])
        self._waiting.insert(place, waiting)
        self._seconds.insert(place, seconds)
        self._enqueued.insert(place, enqueued)
        self._slo.insert(place, slo)
        self._postponed.insert(place, 0)
        self._lost.insert(place, lost)
        self._priority.insert(place, priority)
        self._tenants.insert(place, tenant)

    def _take(self, place: int) -> tuple[float, _Waiting]:
        for vector in (self._enqueued, self._slo, self._priority):
            del vector[place]
        for counts in (self._postponed, self._lost):
            del counts[place]
        del self._tenants[place]
        return self._seconds.pop(place), self._waiting.pop(place)

    def _rearrange(self, head: list[int]) -> None:
        _permute(self._waiting, head)
        for vector in (self._seconds, self._enqueued, self._slo, self._priority):
            _permute(vector, head)
        for counts in (self._postponed, self._lost):
            _permute(counts, head)
        _permute(self._tenants, head)


def _permute(values: list[T], head: list[int]) -> None:
    values[: len(head)] = [values[i] for i in head]


def _work(entry: QueueEntry, done: int) -> float:
    """Return the remaining tokens times the average context length while they are computed."""
    rest = entry.increment - done
    return rest * (entry.history + done + rest / 2)
