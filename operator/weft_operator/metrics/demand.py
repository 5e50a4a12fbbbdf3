"""Read the demand for services at zero from Redis, where coordinators publish that requests wait.

The demand is polled, because a published message can be lost.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import cast

from redis.exceptions import RedisError, ResponseError

from weft_core.heartbeat import demand_key
from weft_core.records import MAX_VALUE_BYTES, mark_holds
from weft_operator.api.objects import ServiceKey
from weft_operator.metrics.observation import Demand
from weft_operator.metrics.redis_client import reader
from weft_operator.metrics.state_keys import StateKeys

POLL_S = 0.5
UNKNOWN_AFTER_S = 30.0
"""After this time without an answer of Redis the demand is Unknown; until then requests wait a little longer."""

log = logging.getLogger(__name__)


class DemandWatch:
    """Polls the demand for services at zero."""

    def __init__(
        self,
        url: str,
        *,
        keys: StateKeys,
        enqueue: Callable[[ServiceKey], None],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._redis = reader(url)
        self._keys = keys
        self._enqueue = enqueue
        self._clock = clock
        self._sleep = sleep
        self._at_zero: set[ServiceKey] = set()
        self._task: asyncio.Task[None] | None = None
        self._failing_since: float | None = None

    async def read(self, key: ServiceKey) -> Demand:
        """Return the demand for a service at zero; from now on the service is enqueued when it changes."""
        self._at_zero.add(key)
        if self._task is None:
            self._task = asyncio.create_task(self._poll(), name="demand")
        if key in await self._waiting((key,)):
            return "Waiting"
        failing = self._failing_since is not None and self._clock() - self._failing_since >= UNKNOWN_AFTER_S
        return "Unknown" if failing else "None"

    def forget(self, key: ServiceKey) -> None:
        """Stop polling for a service that has workers or is gone."""
        self._at_zero.discard(key)

    async def close(self) -> None:
        """Stop polling and close the connections."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._redis.aclose()

    async def _poll(self) -> None:
        was_unknown = False
        while True:
            await self._sleep(POLL_S)
            keys = tuple(self._at_zero)
            for key in await self._waiting(keys) if keys else ():
                self._enqueue(key)
            demand_unknown = self._failing_since is not None and self._clock() - self._failing_since >= UNKNOWN_AFTER_S
            if demand_unknown != was_unknown:
                was_unknown = demand_unknown
                for key in keys:
                    self._enqueue(key)

    async def _waiting(self, keys: Iterable[ServiceKey]) -> set[ServiceKey]:
        """Return the services for which requests wait; none while Redis does not answer."""
        read = [(key, secret) for key in keys if (secret := await self._keys.of(key)) is not None]
        if not read:
            return set()
        try:
            async with self._redis.pipeline(transaction=False) as pipe:
                for key, _ in read:
                    pipe.getrange(demand_key(key.namespace, key.name), 0, MAX_VALUE_BYTES)
                found = cast(list[object], await pipe.execute(raise_on_error=False))
            failed = next((one for one in found if isinstance(one, RedisError)), None)
            if failed is not None and not isinstance(failed, ResponseError):  # a value of another type
                raise failed
        except (RedisError, OSError) as error:
            if self._failing_since is None:
                self._failing_since = self._clock()
                log.warning("demand_not_read", extra={"error": repr(error)})
            return set()
        self._failing_since = None
        now = time.time()
        waiting = set()
        for (key, secret), mark in zip(read, found, strict=True):
            if mark_holds(mark, key=secret, name=demand_key(key.namespace, key.name), now=now):
                waiting.add(key)
            elif mark:
                self._keys.doubt(key)
        return waiting
