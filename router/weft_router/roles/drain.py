"""Drain one process: unready first, then wait for what others still need, then end what is left."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from time import monotonic

from weft_router.http.exchange import Exchange
from weft_router.openai.answers import LAST_WORDS_S
from weft_router.roles.app import PLAIN, App
from weft_router.sessions.session_export import NO_BACKLOG

log = logging.getLogger(__name__)

PRESTOP_GRACE_S = 10.0
"""How long a stopping engine waits for the drain to begin: both hooks of a pod start together."""
LAST_REPLY_GRACE_S = 1.0
"""A client's next request may cross the end of its kept connection: a front stays this long after its last reply."""
LOOK_S = 0.1
"""How often a worker that drains looks whether anything is left."""
LOG_S = 5.0
"""How often it logs what."""


class Drain:
    """The drain of one process, and the requests that it waits for."""

    def __init__(self, app: App, *, seconds: float, grace_s: float, on_begin: Callable[[], None]) -> None:
        """Take at most ``seconds``, and stay ``grace_s`` after the last request; ``on_begin`` is called first."""
        self._app = app
        self._seconds = seconds
        self._grace_s = grace_s
        self._on_begin = on_begin
        self._started = asyncio.Event()
        self._end = 0.0
        self._logged = False
        self.backlog = NO_BACKLOG
        """What was left besides live requests when it was last asked for."""
        self.inflight = 0
        """Requests that are served now; whoever serves them counts here, and sets what is below."""
        self.idle = asyncio.Event()
        """Set while there are none."""
        self.idle.set()
        self.last_begin = self.last_end = float("-inf")
        """When the last one began during the drain, and when the last one ended, on the monotonic clock."""

    @property
    def draining(self) -> bool:
        """Return whether the drain has started."""
        return self._started.is_set()

    def begin(self) -> None:
        """Be unready from now on; requests in flight go on, up to the drain time."""
        if not self.draining:
            self._started.set()
            self._end = monotonic() + self._seconds
            log.info("drain_started", extra={"inflight": self.inflight, "seconds": self._seconds})
            self._on_begin()
            self._app.drain()

    async def wait_quiet(self, seconds: float, *, most_s: float) -> None:
        """Wait until no request came for so many seconds, at most ``most_s`` and no longer than the drain time."""
        since = monotonic()
        most = min(self._end, since + most_s)
        while True:
            rest = min(most, max(since, self.last_begin) + seconds) - monotonic()
            if rest <= 0:
                return
            await asyncio.sleep(rest)

    async def wait(self) -> None:
        """Wait until nothing is left here, at most until the drain time is over; then end what is still live.

        What is left are live requests, sessions that wait for their next round, and KV that somebody is to read. A
        live stream that is ended goes on elsewhere.
        """
        log_at = 0.0
        while (now := monotonic()) < self._end:
            idle = self.idle.is_set()  # before the look: a round that ends meanwhile leaves a session
            self.backlog = await self._app.drain_backlog()
            if now >= log_at and not self._logged:
                log_at = now + LOG_S
                log.info("drain_waits", extra=self._facts())
            if idle:
                if self.backlog == NO_BACKLOG and now >= self.last_end + self._grace_s:
                    break
                await asyncio.sleep(min(LOOK_S, max(0.0, self._end - now)))
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(LOG_S, self._end - now)):
                        await self.idle.wait()
        self.backlog = await self._app.drain_backlog()
        if forced := self.inflight:
            await self.terminate()
        if not self._logged:
            self._logged = True
            took = monotonic() - (self._end - self._seconds)
            log.info("drain_ended", extra={"seconds": round(took, 2), "forced": forced, **self._facts()})

    def _facts(self) -> dict[str, object]:
        """Return what is left, and what became of sessions that were here."""
        moved = self._app.moved
        return {
            "rounds_left": self.inflight,
            "sessions_left": self.backlog.sessions,
            "kv_unread": self.backlog.kv,
            "moved_by_handle": moved.get("handle", 0),
            "moved_by_cache": moved.get("cache", 0),
            "moved_by_prefill": moved.get("prefill", 0),
        }

    async def terminate(self) -> None:
        """End what is still under way, and give the ends a moment to reach their clients."""
        self._app.terminate()
        with contextlib.suppress(TimeoutError):
            # Not ``asyncio.timeout``: where the process itself was cancelled, that of Python 3.11.2 ends as cancelled,
            # too, and what is to be closed after this stays open.
            await asyncio.wait_for(self.idle.wait(), LAST_WORDS_S)

    async def serve(self, exchange: Exchange) -> None:
        """Begin the drain, and say how many requests are still served."""
        self.begin()
        exchange.reply(200, b'{"draining":true,"inflight":%d}' % max(0, self.inflight - 1))

    async def serve_prestop(self, exchange: Exchange) -> None:
        """Hold a stopping engine until the drain is over; without a drain answer soon, so that nobody can abuse it."""
        exchange.forget()
        try:
            async with asyncio.timeout(PRESTOP_GRACE_S):
                await self._started.wait()
        except TimeoutError:
            exchange.reply(200, b"not draining\n", content_type=PLAIN)
            return
        await self.wait()
        exchange.reply(200, b"drained\n", content_type=PLAIN)
