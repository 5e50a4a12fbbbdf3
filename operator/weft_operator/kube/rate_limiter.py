"""Rate limiter for writes: at most one a second to each object."""

import asyncio
from collections.abc import Awaitable, Callable

INTERVAL_S = 1.0
FORGET_AT = 10_000
"""Number of entries at which expired ones are dropped."""


class RateLimiter:
    """Delays writes so that those to one object are an interval apart; the first is not delayed."""

    def __init__(
        self,
        *,
        interval: float = INTERVAL_S,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._interval = interval
        self._clock = clock
        self._sleep = sleep
        self._next: dict[str, float] = {}

    async def wait(self, name: str) -> None:
        """Return when the object of this name may be written."""
        now = (self._clock or asyncio.get_running_loop().time)()
        mine = max(now, self._next.get(name, now))
        if len(self._next) >= FORGET_AT:
            self._next = {key: at for key, at in self._next.items() if at > now}
        self._next[name] = mine + self._interval
        if mine > now:
            await self._sleep(mine - now)
