"""A client of the planner with a cache: each request is planned once, for all services that have the same one.

A temporary refusal is retried with exponential backoff.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from weft_core.plan import content_hash
from weft_operator.api.objects import ServiceKey
from weft_operator.planning.planner_process import Answer, Refused
from weft_operator.planning.request import HASH_DIGITS, Request

FIRST_PAUSE_S = 15.0
LONGEST_PAUSE_S = 600.0
"""A planner that crashed or timed out is retried after 15 s, 30 s, 60 s ... 10 min."""

REMEMBERED = 32
"""Answers kept for other services with the same request; each holds a plan and a cost profile."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Pending:
    hash: str
    task: "asyncio.Task[None] | None" = None
    answer: Answer | None = None
    attempts: int = 0
    retry_at: float = field(default=0.0)


@dataclass(slots=True)
class _Run:
    """A run of the planner, and the number of services that wait for it."""

    task: "asyncio.Task[Answer]"
    waiting: int = 0


class PlannerClient:
    """Plans one request at a time in the background; its services are enqueued after the answer."""

    def __init__(
        self,
        *,
        solve: Callable[[Request], Awaitable[Answer]],
        enqueue: Callable[[ServiceKey], None],
        clock: Callable[[], float],
    ) -> None:
        self._solve = solve
        self._enqueue = enqueue
        self._clock = clock
        self._pending: dict[ServiceKey, _Pending] = {}
        self._runs: dict[str, _Run] = {}
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._one_at_a_time = asyncio.Semaphore(1)

    def ask(self, key: ServiceKey, request: Request, request_hash: str) -> Answer | None:
        """Return the answer to a service's request, or None while the planner is at work.

        A changed request replaces the old one. A temporary refusal is retried with backoff.
        """
        pending = self._pending.get(key)
        if pending is None or pending.hash != request_hash:
            self.forget(key)
            pending = self._pending[key] = _Pending(request_hash)
        again = isinstance(pending.answer, Refused) and pending.answer.passing and self._clock() >= pending.retry_at
        if pending.task is None and (pending.answer is None or again):
            full_hash = content_hash(request, HASH_DIGITS)
            if full_hash in self._answers:
                self._answers.move_to_end(full_hash)
                pending.answer = self._answers[full_hash]
            else:
                pending.task = asyncio.create_task(self._work(key, pending, request, full_hash), name=f"plan {key}")
        return pending.answer

    def retry_in(self, key: ServiceKey) -> float | None:
        """Return the seconds until a refused request is retried; None when it is not.

        None too while the planner works on it: the answer enqueues the service.
        """
        pending = self._pending.get(key)
        if pending is None or pending.task is not None:
            return None
        if not isinstance(pending.answer, Refused) or not pending.answer.passing:
            return None
        return max(0.0, pending.retry_at - self._clock())

    def forget(self, key: ServiceKey) -> None:
        """Drop a service's request and end the planner that works on it."""
        pending = self._pending.pop(key, None)
        if pending is not None and pending.task is not None:
            pending.task.cancel()

    async def close(self) -> None:
        """End all planners."""
        tasks = [pending.task for pending in self._pending.values() if pending.task is not None]
        for key in list(self._pending):
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, key: ServiceKey, pending: _Pending, request: Request, full_hash: str) -> None:
        answer = await self._answer(request, full_hash)
        pending.attempts += 1
        if isinstance(answer, Refused):
            pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (pending.attempts - 1))
            pending.retry_at = self._clock() + pause
            log.warning("plan_refused", extra={"service": str(key), "reason": answer.reason})
        else:
            log.info("plan_made", extra={"service": str(key), "revision": answer.plan.revision})
        pending.answer = answer
        pending.task = None
        self._enqueue(key)

    async def _answer(self, request: Request, full_hash: str) -> Answer:
        """Wait for the planner's answer; cancelling the last waiter ends the planner."""
        run = self._runs.get(full_hash)
        if run is None:
            run = self._runs[full_hash] = _Run(
                asyncio.create_task(self._run(request, full_hash), name=f"planner {full_hash}")
            )
        run.waiting += 1
        try:
            return await asyncio.shield(run.task)
        finally:
            run.waiting -= 1
            if run.waiting == 0:
                if self._runs.get(full_hash) is run:
                    del self._runs[full_hash]
                if run.task.cancel():
                    await asyncio.gather(run.task, return_exceptions=True)

    async def _run(self, request: Request, full_hash: str) -> Answer:
        async with self._one_at_a_time:
            try:
                answer = await self._solve(request)
            except Exception as error:
                # A bug in reading an answer must not leave the request pending forever.
                log.exception("planner_failed", extra={"request": full_hash})
                return Refused("PlannerCrashed", f"the planner's answer cannot be used: {error!r}", passing=True)
        if not (isinstance(answer, Refused) and answer.passing):
            self._answers[full_hash] = answer
            if len(self._answers) > REMEMBERED:
                self._answers.popitem(last=False)
        return answer
