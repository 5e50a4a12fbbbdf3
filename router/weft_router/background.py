"""Tasks beside the requests: started together, ended together, never silently dead."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine

log = logging.getLogger(__name__)


class Background:
    """Tasks that live as long as the process."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, *work: Coroutine[None, None, None]) -> None:
        """Start tasks; one that ends by an error ends up in the log."""
        for coroutine in work:
            task = asyncio.get_running_loop().create_task(coroutine)
            task.add_done_callback(_report)
            self._tasks.append(task)

    async def stop(self) -> None:
        """Cancel all tasks until they end: asyncio.wait_for before Python 3.12, used by redis, can swallow a cancel."""
        pending = set(self._tasks)
        while pending:
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=1.0)


async def guarded(turn: Callable[[], Awaitable[None]]) -> None:
    """Do one turn of an endless task; an unexpected error is logged, and the next turn comes all the same."""
    try:
        await turn()
    except Exception:  # a picture a turn old is better than one that never changes again
        log.exception("turn_failed", extra={"turn": getattr(turn, "__qualname__", repr(turn))})


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("background_task_died", exc_info=task.exception())
