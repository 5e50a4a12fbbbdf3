"""Ask at once what is asked one by one while an answer is on its way: a call costs far more than its size."""

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
    """Questions of one kind; ``ask`` answers several, in their order, or raises StoreDownError for all.

    Those of one turn of the loop go together, and so do those that come while an earlier call is under way.
    """

    def __init__(self, ask: Callable[[list[Q]], Coroutine[object, object, list[A]]]) -> None:
        self._ask = ask
        self._waiting: list[Asked[Q, A]] = []
        self._call: asyncio.Task[list[A]] | None = None
        """The call under way."""

    def put(self, question: Q) -> Asked[Q, A]:
        """Ask one of them; its error is StoreDownError where there is no answer."""
        asked: Asked[Q, A] = Asked(question)
        if not self._waiting and self._call is None:
            asyncio.get_running_loop().call_soon(self._send)
        self._waiting.append(asked)
        return asked

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        asked = [one for one in waiting if one.on_done is not None]  # who waits for any other is gone
        if not asked:
            return
        call = self._call = asyncio.get_running_loop().create_task(self._ask([one.question for one in asked]))
        # Told from a callback: what waits goes on within it, which it could not within another task.
        call.add_done_callback(partial(self._answered, asked))

    def _answered(self, asked: list[Asked[Q, A]], call: "asyncio.Task[list[A]]") -> None:
        self._call = None
        failed = asyncio.CancelledError("it was called off") if call.cancelled() else call.exception()
        if self._waiting:
            self._send()
        if failed is None:
            for one, found in zip(asked, call.result(), strict=True):
                one.found = found
                one.happen(None)
            return
        for one in asked:
            if isinstance(failed, Exception) and not isinstance(failed, StoreDownError):
                one.happen(failed)
            else:
                one.happen(StoreDownError(str(failed)))  # one for each: where an error is raised is noted in it
