"""Read the heartbeats of a service's workers from Redis. Nothing is written there."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import Final

from redis.exceptions import RedisError

from weft_core.heartbeat import WorkerRecord, key_prefix, workers_key
from weft_core.records import READ_WORKERS, open_heartbeats
from weft_operator.api.objects import ServiceKey
from weft_operator.metrics.redis_client import reader
from weft_operator.metrics.state_keys import StateKeys

PAUSE_S = 10.0
"""Pause after a failure, so that a thousand groups do not wait half a second each."""
TELL_S: Final = 60.0
"""Shortest time between two logs of refused records of a service."""

log = logging.getLogger(__name__)


class HeartbeatReader:
    """Reads heartbeats; without Redis or the service's token there are none, and nothing waits for them."""

    def __init__(self, url: str, *, keys: StateKeys) -> None:
        self._redis = reader(url)
        self._keys = keys
        self._again = 0.0
        self._told: dict[ServiceKey, float] = {}

    async def read(self, service: ServiceKey) -> Mapping[str, WorkerRecord]:
        """Return the newest heartbeat of each worker, by name; none when Redis does not answer."""
        now = asyncio.get_running_loop().time()
        if now < self._again:
            return {}
        key = await self._keys.of(service)
        if key is None:
            return {}
        names = workers_key(service.namespace, service.name)
        begin = key_prefix(service.namespace, service.name) + "worker:"
        try:
            reply: object = await self._redis.eval(READ_WORKERS, 1, names, begin)
        except (RedisError, OSError, ValueError) as error:
            self._again = now + PAUSE_S
            log.info("heartbeats_not_read", extra={"service": str(service), "error": repr(error)})
            return {}
        found = open_heartbeats(reply, key=key, namespace=service.namespace, service=service.name, now=time.time())
        reasons: Counter[str] = Counter(reason for _, reason in found.refused)
        if reasons:
            self._tell(service, reasons, now)
        return {record.worker: record for record in found.records}

    def _tell(self, service: ServiceKey, reasons: Counter[str], now: float) -> None:
        if reasons["mac"]:
            self._keys.doubt(service)
        if now - self._told.get(service, -TELL_S) < TELL_S:
            return
        if len(self._told) >= 10_000:
            self._told.clear()
        self._told[service] = now
        log.warning("records_refused", extra={"service": str(service), "reasons": dict(reasons)})

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()
