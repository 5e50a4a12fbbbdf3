"""Hold the prefill tasks of one worker, reorder the queue's head, let a bounded number run (AMPD section 4.2)."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

from weft_core.cost import CostProfile
from weft_core.policies import ampd_snapshot as ampd
from weft_core.policies.snapshot import PrefillTask, QueuedTask
from weft_router.errors import UnavailableError
from weft_router.state import QueueEntry


@dataclass(slots=True)
class _Waiting:
    id: str
    task: QueuedTask
    granted: asyncio.Future[None]


class Slot:
    """The right to run one prefill; giving it back twice is harmless."""

    def __init__(self, queue: "PrefillQueue", entry: QueueEntry, waited_s: float) -> None:
        self._queue: PrefillQueue | None = queue
        self.entry = entry
        self.waited_s = waited_s

    def release(self) -> None:
        """Let the next task run."""
        if self._queue is not None:
            queue, self._queue = self._queue, None
            queue.give_back(self.entry)


class PrefillQueue:
    """A queue in front of an engine; ``window`` 1 keeps the order of arrival."""

    def __init__(
        self,
        *,
        profile: CostProfile,
        degree: int,
        concurrency: int,
        limit: int,
        window: int,
        ttft_slo: float,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._profile = profile
        self._degree = degree
        self._concurrency = concurrency
        self._limit = limit
        self._window = window
        self._ttft_slo = ttft_slo
        self._clock = clock
        self._waiting: list[_Waiting] = []
        self._running: dict[str, QueueEntry] = {}

    def __len__(self) -> int:
        """Return how many tasks wait or run."""
        return len(self._waiting) + len(self._running)

    @property
    def waiting(self) -> int:
        """Return how many tasks wait."""
        return len(self._waiting)

    def entries(self) -> tuple[QueueEntry, ...]:
        """Return running and waiting tasks, as other processes shall see them."""
        waiting = (QueueEntry(w.task.history, w.task.increment, w.id) for w in self._waiting)
        return (*self._running.values(), *waiting)

    def tasks(self) -> tuple[PrefillTask, ...]:
        """Return running and waiting tasks as the policies see them."""
        return tuple(PrefillTask(entry.history, entry.increment) for entry in self.entries())

    async def acquire(self, task_id: str, task: PrefillTask) -> Slot:
        """Wait for this task's turn.

        Raises:
            UnavailableError: the queue is full.
        """
        if len(self._waiting) >= self._limit:
            raise UnavailableError(f"the prefill queue holds {self._limit} tasks already; try again", retryable=True)
        now = self._clock()
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = QueueEntry(task.history, task.increment, task_id)
        waiting = _Waiting(task_id, QueuedTask(task.history, task.increment, enqueued_at=now), granted)
        self._waiting.append(waiting)
        self._admit()
        try:
            await granted
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif not granted.cancelled():
                self.give_back(entry)
            raise
        return Slot(self, entry, self._clock() - now)

    def give_back(self, entry: QueueEntry) -> None:
        """Free the place of a task that ran."""
        self._running.pop(entry.id, None)
        self._admit()

    def _admit(self) -> None:
        # A caller cancelled a moment ago has not run yet to take itself off the list.
        self._waiting = [waiting for waiting in self._waiting if not waiting.granted.done()]
        while self._waiting and len(self._running) < self._concurrency:
            self._reorder()
            head = self._waiting.pop(0)
            self._running[head.id] = QueueEntry(head.task.history, head.task.increment, head.id)
            head.granted.set_result(None)

    def _reorder(self) -> None:
        if self._window < 2 or len(self._waiting) < 2:
            return
        result = ampd.reorder(
            [waiting.task for waiting in self._waiting],
            now=self._clock(),
            window=self._window,
            ttft_slo=self._ttft_slo,
            seconds=self.predict,
        )
        for index in result.postponed:
            waiting = self._waiting[index]
            waiting.task = replace(waiting.task, postponed=waiting.task.postponed + 1)
        head = len(result.order)
        self._waiting[:head] = [self._waiting[index] for index in result.order]

    def predict(self, task: PrefillTask | QueuedTask) -> float:
        """Return the seconds this worker's engine takes for a prefill, by the profile."""
        return self._profile.t_pre(history=task.history, increment=task.increment, degree=self._degree)
