"""Ask for many what is asked one by one in a turn of the event loop: a call costs its client far more than its size."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from weft_router.state.store import StoreDownError

Q = TypeVar("Q")
A = TypeVar("A")


class Gathered(Generic[Q, A]):
    """Questions of one kind; ``ask`` answers those of one turn, in their order, or raises StoreDownError for all."""

    def __init__(self, ask: Callable[[list[Q]], Awaitable[list[A]]]) -> None:
        self._ask = ask
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(self, question: Q) -> A:
        """Return the answer to one of them; whoever is cancelled before the turn is over has asked nothing.

        Raises:
            StoreDownError: there is none.
        """
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[A] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._send)
        self._waiting.append((question, answered))
        return await answered

    def _send(self) -> None:
        asked, self._waiting = self._waiting, []
        asked = [(question, answered) for question, answered in asked if not answered.done()]
        if asked:
            task = asyncio.get_running_loop().create_task(self._answer(asked))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, asked: list[tuple[Q, "asyncio.Future[A]"]]) -> None:
        try:
            answers = await self._ask([question for question, _ in asked])
        except Exception as error:  # noqa: BLE001 - raised where it was asked
            for _, answered in asked:
                if not answered.done():  # one that is done was cancelled
                    answered.set_exception(StoreDownError(str(error)) if isinstance(error, StoreDownError) else error)
            return
        for (_, answered), found in zip(asked, answers, strict=True):
            if not answered.done():
                answered.set_result(found)
