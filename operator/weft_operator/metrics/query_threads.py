"""Threads for metrics queries, with limits: a slow server must not delay the queries of others."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakValueDictionary

OWN_THREADS = 4
"""Concurrent queries of the operator's own server."""

NAMED_THREADS = 2
"""Concurrent queries of servers that services name, one for each namespace; each may need 100 MB for a result."""

T = TypeVar("T")


class QueryThreads:
    """Runs blocking calls; calls to the operator's own server have threads of their own."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(OWN_THREADS + NAMED_THREADS, thread_name_prefix="prometheus")
        self._own = asyncio.Semaphore(OWN_THREADS)
        self._named = asyncio.Semaphore(NAMED_THREADS)
        self._namespaces: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def run(self, call: Callable[[], T], *, named_by: str | None, within_s: float) -> T:
        """Return the result of a call, once it has a thread; ``named_by`` is the namespace that names the server.

        Raises:
            TimeoutError: the call had a thread for ``within_s`` seconds. It keeps the thread until it ends.
        """
        acquired = await self._acquire(named_by)
        future = asyncio.get_running_loop().run_in_executor(self._threads, call)

        def release(ended: asyncio.Future[T]) -> None:
            for semaphore in acquired:
                semaphore.release()
            if not ended.cancelled():
                ended.exception()  # the caller may be gone

        future.add_done_callback(release)
        async with asyncio.timeout(within_s):
            return await asyncio.shield(future)

    async def _acquire(self, named_by: str | None) -> list[asyncio.Semaphore]:
        wanted = [self._own]
        if named_by is not None:
            wanted = [self._namespaces.setdefault(named_by, asyncio.Semaphore(1)), self._named]
        acquired: list[asyncio.Semaphore] = []
        try:
            for semaphore in wanted:
                await semaphore.acquire()
                acquired.append(semaphore)
        except BaseException:
            for semaphore in acquired:
                semaphore.release()
            raise
        return acquired

    def end(self) -> None:
        """End each thread after its call; no call may follow."""
        self._threads.shutdown(wait=False, cancel_futures=True)
