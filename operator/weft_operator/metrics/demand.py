"""Read from Redis which services without workers are asked something: coordinators say so while requests wait.

The demand is polled, because a message that is published once may be lost with its subscriber.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Literal, cast

from redis.exceptions import RedisError, ResponseError

from weft_core.heartbeat import demand_key
from weft_core.records import MAX_VALUE_BYTES, mark_holds
from weft_operator.api.objects import ServiceKey
from weft_operator.metrics.redis_client import reader
from weft_operator.metrics.state_keys import StateKeys

POLL_S = 0.5
UNHEARD_S = 30.0
"""A Redis that does not answer for so long is reported: until then requests only wait a little longer."""

Word = Literal["None", "Waiting", "Unknown"]

log = logging.getLogger(__name__)


class DemandWatch:
    """Looks for requests that wait, of services that are at zero."""

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
        self._sleeping: set[ServiceKey] = set()
        self._task: asyncio.Task[None] | None = None
        self._failing_since: float | None = None

    async def word(self, key: ServiceKey) -> Word:
        """Return the demand for a service at zero, and enqueue the service from now on when that changes."""
        self._sleeping.add(key)
        if self._task is None:
            self._task = asyncio.create_task(self._poll(), name="demand")
        if key in await self._waiting((key,)):
            return "Waiting"
        failing = self._failing_since is not None and self._clock() - self._failing_since >= UNHEARD_S
        return "Unknown" if failing else "None"

    def forget(self, key: ServiceKey) -> None:
        """Look no more: the service has workers, or is gone."""
        self._sleeping.discard(key)

    async def close(self) -> None:
        """End the looks and close the connections."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._redis.aclose()

    async def _poll(self) -> None:
        told = False
        while True:
            await self._sleep(POLL_S)
            keys = tuple(self._sleeping)
            for key in await self._waiting(keys) if keys else ():
                self._enqueue(key)
            demand_unknown = self._failing_since is not None and self._clock() - self._failing_since >= UNHEARD_S
            if demand_unknown != told:
                told = demand_unknown
                for key in keys:
                    self._enqueue(key)

    async def _waiting(self, keys: Iterable[ServiceKey]) -> set[ServiceKey]:
        """Return those of some services that are asked something; none while Redis does not answer."""
        asked = [(key, secret) for key in keys if (secret := await self._keys.of(key)) is not None]
        if not asked:
            return set()
        try:
            async with self._redis.pipeline(transaction=False) as pipe:
                for key, _ in asked:
                    pipe.getrange(demand_key(key.namespace, key.name), 0, MAX_VALUE_BYTES)
                found = cast(list[object], await pipe.execute(raise_on_error=False))
            failed = next((one for one in found if isinstance(one, RedisError)), None)
            if failed is not None and not isinstance(failed, ResponseError):  # which is another type under a key
                raise failed
        except (RedisError, OSError) as error:
            if self._failing_since is None:
                self._failing_since = self._clock()
                log.warning("demand_not_read", extra={"error": repr(error)})
            return set()
        self._failing_since = None
        now = time.time()
        waiting = set()
        for (key, secret), mark in zip(asked, found, strict=True):
            if mark_holds(mark, key=secret, name=demand_key(key.namespace, key.name), now=now):
                waiting.add(key)
            elif mark:
                self._keys.doubt(key)
        return waiting
