"""Ask for many what is asked one by one in a turn of the event loop: a call costs its client far more than its size."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Generic, TypeVar

from weft_router.state.store import StoreDownError
from weft_router.wire.light_task import Signal

Q = TypeVar("Q")
A = TypeVar("A")


class Asked(Signal, Generic[Q, A]):
    """A question whose answer is awaited, or told by ``on_done``."""

    def __init__(self, question: Q) -> None:
        super().__init__()
        self.question = question
        self.found: A | None = None
        """The answer, once it is over without an error."""


class Gathered(Generic[Q, A]):
    """Questions of one kind; ``ask`` answers those of one turn, in their order, or raises StoreDownError for all."""

    def __init__(self, ask: Callable[[list[Q]], Coroutine[object, object, list[A]]]) -> None:
        self._ask = ask
        self._waiting: list[Asked[Q, A]] = []
        self._tasks: set[asyncio.Task[list[A]]] = set()

    def put(self, question: Q) -> Asked[Q, A]:
        """Ask one of them, with all others of this turn; its error is StoreDownError where there is no answer."""
        asked: Asked[Q, A] = Asked(question)
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._send)
        self._waiting.append(asked)
        return asked

    def _send(self) -> None:
        asked, self._waiting = self._waiting, []
        task = asyncio.get_running_loop().create_task(self._ask([one.question for one in asked]))
        self._tasks.add(task)
        # Told from a callback: what waits goes on within it, which it could not within another task.
        task.add_done_callback(partial(self._answered, asked))

    def _answered(self, asked: list[Asked[Q, A]], task: "asyncio.Task[list[A]]") -> None:
        self._tasks.discard(task)
        failed = asyncio.CancelledError("it was called off") if task.cancelled() else task.exception()
        if failed is None:
            for one, found in zip(asked, task.result(), strict=True):
                one.found = found
                one.happen(None)
            return
        for one in asked:
            if isinstance(failed, Exception) and not isinstance(failed, StoreDownError):
                one.happen(failed)
            else:
                one.happen(StoreDownError(str(failed)))  # one for each: where an error is raised is noted in it
