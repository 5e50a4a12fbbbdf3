"""The progress of downloads: written to the service's Redis by the downloading pod, read by the operator.

The pods of a service use Redis in any case, so progress needs no RBAC rights, no port and no further network path.
Without Redis the download continues without visible progress.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import cast

from redis.exceptions import RedisError

from weft_core.heartbeat import key_prefix
from weft_operator.api.objects import ServiceKey
from weft_operator.metrics.redis_client import reader

PROGRESS_TTL_S = 60
"""Expiry of a pod's progress."""
RETRY_PAUSE_S = 10.0
MAX_VALUE_BYTES = 256
"""More than a pod writes; a compromised pod could write values of 512 MB."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Progress:
    """Downloaded bytes, total bytes (0 before they are known), and bytes per second."""

    done: int
    total: int
    rate: float


def progress_key(namespace: str, service: str, pod: str) -> str:
    """Return the key of a pod's progress."""
    return f"{key_prefix(namespace, service)}weights:{pod}"


def progress_value(progress: Progress) -> str:
    """Return the value of a pod's progress."""
    return json.dumps(asdict(progress))


class ProgressReader:
    """Reads the progress of downloads; without Redis there is none, and reconciliation does not wait."""

    def __init__(self, url: str) -> None:
        self._redis = reader(url)
        self._again = 0.0

    async def read(self, service: ServiceKey, pods: Sequence[str]) -> Mapping[str, Progress]:
        """Return the progress of each pod that has written one."""
        now = asyncio.get_running_loop().time()
        if not pods or now < self._again:
            return {}
        keys = [progress_key(service.namespace, service.name, pod) for pod in pods]
        try:
            # A key of another type is an error for that key only.
            async with self._redis.pipeline(transaction=False) as pipe:
                for key in keys:
                    pipe.getrange(key, 0, MAX_VALUE_BYTES - 1)
                values = cast(list[object], await pipe.execute(raise_on_error=False))
        except (RedisError, OSError, ValueError) as error:
            self._again = now + RETRY_PAUSE_S
            log.info("progress_not_read", extra={"service": str(service), "error": repr(error)})
            return {}
        found = {pod: _progress(value) for pod, value in zip(pods, values, strict=True) if isinstance(value, bytes)}
        return {pod: progress for pod, progress in found.items() if progress is not None}

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()


def _progress(raw: bytes) -> Progress | None:
    try:
        body = json.loads(raw)
        return Progress(max(0, int(body["done"])), max(0, int(body["total"])), max(0.0, float(body["rate"])))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
