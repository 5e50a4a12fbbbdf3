"""Keep the identity provider's keys fresh: in the background, at a bounded rate, the old until new ones are read."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic

from weft_router.auth.jwt import TokenVerifier
from weft_router.auth.key_set import KeySetError, read_key_set
from weft_router.background import guarded
from weft_router.config import JwtConfig
from weft_router.errors import UpstreamFailedError

log = logging.getLogger(__name__)

MIN_REFRESH_S = 10.0
"""Tokens with made-up key ids make the provider no more work than this."""
MAX_DOCUMENT = 2**20

Fetch = Callable[[str], Awaitable[bytes]]
"""Returns the body of a 200 response to a GET, bounded in size and time; raises OSError or UpstreamFailedError."""


class KeyRefresh:
    """Feeds a verifier; ``run`` it beside the server."""

    def __init__(self, config: JwtConfig, fetch: Fetch, *, clock: Callable[[], float] = monotonic) -> None:
        self._config = config
        self._fetch = fetch
        self._clock = clock
        self._last = float("-inf")
        self._good = clock()
        self._asked = asyncio.Event()
        self._seen = b""
        self.verifier = TokenVerifier(config, wanted=self.want)

    def age(self) -> float:
        """Return how many seconds ago the keys were last read, the same or others; since the start where never."""
        return self._clock() - self._good

    def want(self) -> bool:
        """Ask for newer keys; tell whether they are looked for now."""
        if self._clock() - self._last < MIN_REFRESH_S:
            return False
        self._asked.set()
        return True

    async def run(self) -> None:
        """Fetch at once, then when asked and whenever the keys are old; until cancelled."""
        while True:
            await guarded(self._turn)
            pause = MIN_REFRESH_S if not self._seen else self._config.refresh_seconds
            try:
                async with asyncio.timeout(pause):
                    await self._asked.wait()
            except TimeoutError:
                pass

    async def _turn(self) -> None:
        await self.refresh()

    async def refresh(self) -> bool:
        """Fetch the keys now; tell whether they could be read. What cannot be read changes nothing."""
        self._last = self._clock()
        self._asked.clear()
        try:
            raw = await self._read()
            if len(raw) > MAX_DOCUMENT:
                raise KeySetError(f"is larger than {MAX_DOCUMENT} bytes")
            if raw != self._seen:
                keys = read_key_set(raw, self._config.algorithms)
                self.verifier.reload(keys)
                self._seen = raw
                log.info("jwks_read", extra={"keys": len(keys)})
        except KeySetError as error:
            log.warning("jwks_refused", extra={"error": str(error), "keys_age_s": round(self.age(), 1)})
        except (OSError, TimeoutError, UpstreamFailedError) as error:
            log.warning("jwks_unreadable", extra={"error": type(error).__name__, "keys_age_s": round(self.age(), 1)})
        else:
            self._good = self._clock()
            return True
        return False

    async def _read(self) -> bytes:
        if self._config.jwks_file:
            return await asyncio.to_thread(_head, Path(self._config.jwks_file))
        return await self._fetch(self._config.jwks_url)


def _head(path: Path) -> bytes:
    """Return what a file holds, but little more than may be used."""
    with path.open("rb") as file:
        return file.read(MAX_DOCUMENT + 1)
