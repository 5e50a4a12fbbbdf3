"""Read the heartbeats of a service's workers from Redis: what each does for sessions now. Nothing is written there."""

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import cast

from redis.exceptions import RedisError

from weft_core.heartbeat import WorkerRecord, read_fields, worker_key, workers_key
from weft_operator.manifest import ServiceKey
from weft_operator.measuring.redis_reading import reader

PAUSE_S = 10.0
"""After a failure it is not asked for so long: a thousand groups must not wait half a second each."""

log = logging.getLogger(__name__)


class Heartbeats:
    """Reads heartbeats; without Redis there are none, and nothing waits for it."""

    def __init__(self, url: str) -> None:
        self._redis = reader(url)
        self._again = 0.0

    async def read(self, service: ServiceKey) -> Mapping[str, WorkerRecord]:
        """Return the newest heartbeat of each living worker, by name; none when Redis cannot be asked."""
        now = asyncio.get_running_loop().time()
        if now < self._again:
            return {}
        try:
            names = cast(set[bytes], await self._redis.smembers(workers_key(service.namespace, service.name)))
            keys = [worker_key(service.namespace, service.name, name.decode()) for name in sorted(names)]
            values = cast(list[bytes | None], await self._redis.mget(keys)) if keys else []
        except (RedisError, OSError, ValueError) as error:
            self._again = now + PAUSE_S
            log.info("heartbeats_not_read", extra={"service": str(service), "error": repr(error)})
            return {}
        records = (_record(value) for value in values if value is not None)
        return {record.worker: record for record in records if record is not None}

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()


def _record(raw: bytes) -> WorkerRecord | None:
    try:
        return read_fields(json.loads(raw))
    except ValueError:
        return None
