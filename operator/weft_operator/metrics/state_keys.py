"""The keys that authenticate records of services in Redis, each derived from the service's token."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from weft_core.keys import derive
from weft_operator.api.objects import ServiceKey
from weft_operator.api.service_token import read_token
from weft_operator.errors import ApiError
from weft_operator.metrics.credentials import ReadSecret

READ_AGAIN_S: Final = 300.0
"""Interval of reading a Secret again, which is shorter where records do not verify: tokens hardly ever change."""
PAUSE_S: Final = 10.0
"""Shortest time between two reads of a Secret."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Known:
    key: bytes | None
    read_at: float


class StateKeys:
    """Caches the keys from services' Secrets; ``clock`` is monotonic."""

    def __init__(self, read_secret: ReadSecret, *, clock: Callable[[], float]) -> None:
        self._read_secret = read_secret
        self._clock = clock
        self._known: dict[ServiceKey, _Known] = {}

    async def of(self, service: ServiceKey) -> bytes | None:
        """Return the key of a service's records; None without a token, or when it cannot be read."""
        now, known = self._clock(), self._known.get(service)
        if known is not None and now - known.read_at < (READ_AGAIN_S if known.key else PAUSE_S):
            return known.key
        try:
            secret = await self._read_secret(service, f"{service.name}-token")
        except ApiError as error:
            log.info("token_not_read", extra={"service": str(service), "error": str(error)})
            key = known.key if known is not None else None
        else:
            token = read_token(dict(secret)) if secret is not None else None
            # Router processes strip the file that they read it from.
            key = derive(token.strip(), "state") if token is not None else None
        self._known[service] = _Known(key, now)
        return key

    def doubt(self, service: ServiceKey) -> None:
        """Note that records of a service do not verify, because its token may have changed."""
        known = self._known.get(service)
        if known is not None and self._clock() - known.read_at >= PAUSE_S:
            del self._known[service]
