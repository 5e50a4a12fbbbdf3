"""Threads that look, and who may have them: a server that is slow on purpose must not hold up everybody's looks."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakValueDictionary

OWN_AT_ONCE = 4
"""Looks at the operator's own server."""

NAMED_AT_ONCE = 2
"""Looks at servers that services name, all together; of each namespace one. Each may hold 100 MB of an answer."""

T = TypeVar("T")


class QueryThreads:
    """Runs calls that block, those to the operator's own server apart from the others."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(OWN_AT_ONCE + NAMED_AT_ONCE, thread_name_prefix="prometheus")
        self._own = asyncio.Semaphore(OWN_AT_ONCE)
        self._named = asyncio.Semaphore(NAMED_AT_ONCE)
        self._namespaces: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def run(self, call: Callable[[], T], *, named_by: str | None, within_s: float) -> T:
        """Return what a call returns, once it has a thread; ``named_by`` is the namespace that names the server.

        Raises:
            TimeoutError: the call had a thread for ``within_s`` seconds. It keeps the thread until it ends.
        """
        taken = await self._take(named_by)
        future = asyncio.get_running_loop().run_in_executor(self._threads, call)

        def give_back(ended: asyncio.Future[T]) -> None:
            for place in taken:
                place.release()
            if not ended.cancelled():
                ended.exception()  # whoever waited may have gone

        future.add_done_callback(give_back)
        async with asyncio.timeout(within_s):
            return await asyncio.shield(future)

    async def _take(self, named_by: str | None) -> list[asyncio.Semaphore]:
        wanted = [self._own]
        if named_by is not None:
            wanted = [self._namespaces.setdefault(named_by, asyncio.Semaphore(1)), self._named]
        taken: list[asyncio.Semaphore] = []
        try:
            for place in wanted:
                await place.acquire()
                taken.append(place)
        except BaseException:
            for place in taken:
                place.release()
            raise
        return taken

    def end(self) -> None:
        """End each thread as soon as it is done with its call; no call may follow."""
        self._threads.shutdown(wait=False, cancel_futures=True)
