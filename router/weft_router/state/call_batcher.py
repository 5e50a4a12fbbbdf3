"""Ask at once what is asked one by one while an answer is on its way: a call costs far more than its size."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Generic, TypeVar, cast

from weft_router.state.store import StoreDownError

Q = TypeVar("Q")
A = TypeVar("A")


class CallBatcher(Generic[Q, A]):
    """Questions of one kind; ``ask`` answers several, in their order, or raises StoreDownError for all.

    Those of one turn of the loop go together, and so do those that come while an earlier call is under way.
    """

    def __init__(self, ask: Callable[[list[Q]], Coroutine[object, object, list[A]]]) -> None:
        self._ask = ask
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._call: asyncio.Task[list[A]] | None = None
        """The call under way."""

    async def ask(self, question: Q) -> A:
        """Return the answer to one question.

        Raises:
            StoreDownError: there is none.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[A] = loop.create_future()
        if not self._waiting and self._call is None:
            loop.call_soon(self._send)
        self._waiting.append((question, answer))
        return await answer

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        asked = [one for one in waiting if not one[1].done()]  # who waited for any other is gone
        if asked:
            call = self._call = asyncio.get_running_loop().create_task(self._ask([question for question, _ in asked]))
            call.add_done_callback(partial(self._answered, [answer for _, answer in asked]))

    def _answered(self, answers: list[asyncio.Future[A]], call: "asyncio.Task[list[A]]") -> None:
        self._call = None
        failed = asyncio.CancelledError("the call was cancelled") if call.cancelled() else call.exception()
        if self._waiting:
            self._send()
        found: list[A] | list[None] = call.result() if failed is None else [None] * len(answers)
        for answer, value in zip(answers, found, strict=True):
            if answer.done():
                continue
            if failed is None:
                answer.set_result(cast(A, value))
            elif isinstance(failed, Exception) and not isinstance(failed, StoreDownError):
                answer.set_exception(failed)
            else:
                answer.set_exception(StoreDownError(str(failed)))  # one for each: its traceback is its own
