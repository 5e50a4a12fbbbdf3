"""Hold the prefill tasks of one worker, choose who runs next by the service's queue order, and keep the engine fed."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

from weft_core.cost import CostProfile
from weft_core.policies.catalogue import DEFAULT_CAP, DEFAULT_WINDOW, ORDERS
from weft_core.policies.codes import AMPD_WINDOW
from weft_core.policies.decide_order import ORDER_MAX, next_task
from weft_core.policies.snapshot import PrefillTask
from weft_router.errors import UnavailableError
from weft_router.rounds.turns import Turn, Turns
from weft_router.state.store import QueueEntry

T = TypeVar("T")

TICK_S = 0.001
"""Event loops count whole milliseconds: a timer may ring a little before its time."""


@dataclass(frozen=True, slots=True)
class QueueRule:
    """Who runs next: a queue order of the catalogue; ``window`` counts for ``ampd-window``, ``cap`` for ageing."""

    order: str
    window: int = DEFAULT_WINDOW
    cap: int = DEFAULT_CAP


@dataclass(frozen=True, slots=True)
class _Waiting:
    entry: QueueEntry
    granted: asyncio.Future[Turn]


class Slot:
    """The right to give one prefill to the engine; giving it back twice is harmless.

    ``granted`` is when that was; before it is given back, ``began`` says when its turn in the engine began, ``granted``
    where that is not known: then it has not, or it overtook the one before.
    """

    def __init__(self, queue: "PrefillQueue", turn: Turn, granted: float) -> None:
        self._queue: PrefillQueue | None = queue
        self._turn = turn
        self.granted = granted

    @property
    def began(self) -> float:
        """Return when the engine began with it, as far as this process can tell."""
        return self.granted if self._turn.began is None else self._turn.began

    def until_first(self) -> float:
        """Return the predicted seconds until the prefill is done, those of the task before it included."""
        return self._queue.until_first(self._turn) if self._queue is not None else 0.0

    def release(self) -> None:
        """Let the next task run."""
        if self._queue is not None:
            queue, self._queue = self._queue, None
            queue.give_back(self._turn)


class PrefillQueue:
    """A queue in front of an engine."""

    def __init__(
        self,
        *,
        profile: CostProfile,
        degree: int,
        concurrency: int,
        limit: int,
        rule: QueueRule,
        ttft_slo: float,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._profile = profile
        self._degree = degree
        self._limit = limit
        self._code = ORDERS[rule.order].code
        self._window = rule.window
        self._cap = rule.cap
        self._ttft_slo = ttft_slo
        self._clock = clock
        # One figure per waiting task and list, in order of arrival, which with one SLO is the order of deadlines, too.
        self._waiting: list[_Waiting] = []
        self._seconds: list[float] = []
        self._enqueued: list[float] = []
        self._slo: list[float] = []
        self._postponed: list[int] = []
        self._lost: list[int] = []
        self._head = [0] * ORDER_MAX
        self._turns = Turns(concurrency)
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return how many tasks wait or run."""
        return len(self._waiting) + len(self._turns)

    @property
    def waiting(self) -> int:
        """Return how many tasks wait."""
        return len(self._waiting)

    @property
    def seconds(self) -> float:
        """Return the predicted seconds of all running and waiting tasks, each counted whole."""
        return sum((turn.seconds for turn in self._turns), 0.0) + sum(self._seconds)

    def entries(self) -> tuple[QueueEntry, ...]:
        """Return running and waiting tasks, as other processes shall see them."""
        return (*(turn.entry for turn in self._turns), *(waiting.entry for waiting in self._waiting))

    async def acquire(self, task_id: str, task: PrefillTask) -> Slot:
        """Wait for this task's turn.

        Raises:
            UnavailableError: the queue is full.
        """
        if len(self._waiting) >= self._limit:
            raise UnavailableError(f"the prefill queue holds {self._limit} tasks already; try again", retryable=True)
        now = self._clock()
        granted: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(QueueEntry(task.history, task.increment, task_id), granted)
        self._waiting.append(waiting)
        self._seconds.append(self.predict(task))
        self._enqueued.append(now)
        self._slo.append(self._ttft_slo)
        self._postponed.append(0)
        self._lost.append(0)
        self._admit()
        try:
            turn = await granted
        except asyncio.CancelledError:
            place = next((i for i, other in enumerate(self._waiting) if other is waiting), None)
            if place is not None:
                self._take(place)
            elif not granted.cancelled():
                self.give_back(granted.result())
            raise
        return Slot(self, turn, self._clock())

    def give_back(self, turn: Turn) -> None:
        """Free the place of a task that ran."""
        self._turns.end(turn, now=self._clock())
        self._admit()

    def until_first(self, turn: Turn) -> float:
        """Return the predicted seconds until a task in the engine is done."""
        now = self._clock()
        return max(0.0, self._turns.ends(turn, now=now) - now)

    def _admit(self) -> None:
        """Give the engine what it can take now, and look again when it can take more."""
        # A caller cancelled a moment ago has not run yet to take itself off the list.
        for place in range(len(self._waiting) - 1, -1, -1):
            if self._waiting[place].granted.done():
                self._take(place)
        while self._waiting and self._turns.due <= (now := self._clock()):
            seconds, chosen = self._take(self._next())
            chosen.granted.set_result(self._turns.add(chosen.entry, seconds, now=now))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._turns.due
        if self._waiting and due < math.inf:
            self._timer = asyncio.get_running_loop().call_later(max(TICK_S, due - self._clock()), self._admit)

    def _next(self) -> int:
        place = next_task(
            self._code,
            self._clock(),
            self._seconds,
            self._enqueued,
            self._slo,
            self._postponed,
            self._lost,
            self._window,
            self._cap,
            self._head,
        )
        if self._code != AMPD_WINDOW:
            return place
        head = self._head[: min(self._window, len(self._waiting))]
        _rearrange(self._waiting, head)
        for vector in (self._seconds, self._enqueued, self._slo):
            _rearrange(vector, head)
        for counts in (self._postponed, self._lost):
            _rearrange(counts, head)
        return 0

    def _take(self, place: int) -> tuple[float, _Waiting]:
        for vector in (self._enqueued, self._slo, self._postponed, self._lost):
            del vector[place]
        return self._seconds.pop(place), self._waiting.pop(place)

    def predict(self, task: PrefillTask) -> float:
        """Return the seconds this worker's engine takes for a prefill, by the profile."""
        return self._profile.t_pre(history=task.history, increment=task.increment, degree=self._degree)


def _rearrange(values: list[T], head: list[int]) -> None:
    values[: len(head)] = [values[i] for i in head]
