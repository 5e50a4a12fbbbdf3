"""A client of the planner with a cache: each request is planned once, for all services that have the same one.

A refusal that may pass is retried with exponential backoff.
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
"""A planner that crashed or took too long is tried again after 15 s, 30 s, 60 s ... 10 min."""

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
    """The planner at work on a request, for so many questions."""

    task: "asyncio.Task[Answer]"
    waiting: int = 0


class PlannerClient:
    """Plans one request at a time in the background; its services are enqueued when the answer is there."""

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
        self._questions: dict[ServiceKey, _Pending] = {}
        self._runs: dict[str, _Run] = {}
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._turn = asyncio.Semaphore(1)

    def ask(self, key: ServiceKey, request: Request, request_hash: str) -> Answer | None:
        """Return the answer to a service's request, or None while the planner is at work.

        A changed request replaces the one before. A refusal that may pass is asked again after a pause.
        """
        question = self._questions.get(key)
        if question is None or question.hash != request_hash:
            self.forget(key)
            question = self._questions[key] = _Pending(request_hash)
        again = isinstance(question.answer, Refused) and question.answer.passing and self._clock() >= question.retry_at
        if question.task is None and (question.answer is None or again):
            put = content_hash(request, HASH_DIGITS)
            if put in self._answers:
                self._answers.move_to_end(put)
                question.answer = self._answers[put]
            else:
                question.task = asyncio.create_task(self._work(key, question, request, put), name=f"plan {key}")
        return question.answer

    def retry_in(self, key: ServiceKey) -> float | None:
        """Return the seconds until a refused request is retried; None when it is not.

        None too while the planner works on it: the answer enqueues the service.
        """
        question = self._questions.get(key)
        if question is None or question.task is not None:
            return None
        if not isinstance(question.answer, Refused) or not question.answer.passing:
            return None
        return max(0.0, question.retry_at - self._clock())

    def forget(self, key: ServiceKey) -> None:
        """Drop a service's request and end the planner that works on it."""
        question = self._questions.pop(key, None)
        if question is not None and question.task is not None:
            question.task.cancel()

    async def close(self) -> None:
        """End all planners."""
        tasks = [question.task for question in self._questions.values() if question.task is not None]
        for key in list(self._questions):
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, key: ServiceKey, question: _Pending, request: Request, put: str) -> None:
        answer = await self._answer(request, put)
        question.attempts += 1
        if isinstance(answer, Refused):
            pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (question.attempts - 1))
            question.retry_at = self._clock() + pause
            log.warning("plan_refused", extra={"service": str(key), "reason": answer.reason})
        else:
            log.info("plan_made", extra={"service": str(key), "revision": answer.plan.revision})
        question.answer = answer
        question.task = None
        self._enqueue(key)

    async def _answer(self, request: Request, put: str) -> Answer:
        """Wait for the planner's answer; the last one that gives up waiting ends the planner."""
        run = self._runs.get(put)
        if run is None:
            run = self._runs[put] = _Run(asyncio.create_task(self._run(request, put), name=f"planner {put}"))
        run.waiting += 1
        try:
            return await asyncio.shield(run.task)
        finally:
            run.waiting -= 1
            if run.waiting == 0:
                if self._runs.get(put) is run:
                    del self._runs[put]
                if run.task.cancel():
                    await asyncio.gather(run.task, return_exceptions=True)

    async def _run(self, request: Request, put: str) -> Answer:
        async with self._turn:
            try:
                answer = await self._solve(request)
            except Exception as error:
                # A bug in reading an answer must not leave the request pending for ever.
                log.exception("planner_failed", extra={"request": put})
                return Refused("PlannerCrashed", f"the planner's answer cannot be used: {error!r}", passing=True)
        if not (isinstance(answer, Refused) and answer.passing):
            self._answers[put] = answer
            if len(self._answers) > REMEMBERED:
                self._answers.popitem(last=False)
        return answer
