"""Retry requests whose engine crashed: one of a tenant at a time, as long as it may be the one that crashed it."""

import asyncio
from typing import Final

from weft_router.errors import ApiError, UnavailableError

HEAD_START_S: Final = 2.0
"""A request that crashes an engine does so soon; after that the tenant's next one is sent."""
WAIT_S: Final = 10.0
MOST_TENANTS: Final = 1024


class _TenantQueue:
    """The retries of one tenant."""

    __slots__ = ("count", "lock", "poisons")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.count = 0
        """Requests that wait for their retry or are retried."""
        self.poisons = 0
        """Those that crashed one more engine."""


class CrashRetry:
    """A request that is sent once more; others of its tenant wait until it is over, or for HEAD_START_S."""

    __slots__ = ("_queue", "_retries", "_tenant", "_timer", "worker")

    def __init__(self, retries: "CrashRetries", tenant: str, queue: _TenantQueue) -> None:
        self._retries = retries
        self._tenant = tenant
        self._queue: _TenantQueue | None = queue
        self.worker = ""
        """Where it is sent."""
        self._timer = asyncio.get_running_loop().call_later(HEAD_START_S, self.over)

    def over(self, *, poison: bool = False) -> None:
        """Let the next one go, once."""
        queue, self._queue = self._queue, None
        if queue is None:
            return
        self._timer.cancel()
        self._retries.under_way.discard(self)
        queue.poisons += poison
        queue.lock.release()
        self._retries.leave(self._tenant, queue)


class CrashRetries:
    """The retries of one process."""

    def __init__(self) -> None:
        self._queues: dict[str, _TenantQueue] = {}
        self.under_way: set[CrashRetry] = set()

    @property
    def workers(self) -> frozenset[str]:
        """Return where requests are retried: another tenant's goes elsewhere, or one could be taken for the other."""
        return frozenset(retry.worker for retry in self.under_way)

    async def enter(self, tenant: str) -> CrashRetry:
        """Wait for a request's turn.

        Raises:
            ApiError: it did not come in time, or another one of the tenant ended an engine more meanwhile.
        """
        queue = self._queues.get(tenant)
        if queue is None:
            if len(self._queues) >= MOST_TENANTS:
                raise _late()
            queue = self._queues[tenant] = _TenantQueue()
        queue.count += 1
        poisons = queue.poisons
        try:
            async with asyncio.timeout(WAIT_S):
                await queue.lock.acquire()
        except TimeoutError:
            self.leave(tenant, queue)
            raise _late() from None
        except BaseException:
            self.leave(tenant, queue)
            raise
        if queue.poisons != poisons:
            queue.lock.release()
            self.leave(tenant, queue)
            raise engine_died_error()
        retry = CrashRetry(self, tenant, queue)
        self.under_way.add(retry)
        return retry

    def leave(self, tenant: str, queue: _TenantQueue) -> None:
        """Forget a tenant's queue with its last request."""
        queue.count -= 1
        if not queue.count:
            self._queues.pop(tenant, None)


def engine_died_error() -> ApiError:
    """Return the answer to a request that is not sent once more."""
    return ApiError(
        "the engine ended while it served this request, which may be why; so it was not sent to another one",
        status=502,
        kind="server_error",
        code="engine_died",
    )


def _late() -> UnavailableError:
    return UnavailableError("the engine ended while it served this request, and many others are sent again; try again")
