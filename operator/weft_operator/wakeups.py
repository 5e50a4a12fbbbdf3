"""The one queue of the operator: services to look at, each at most once, failures with growing pauses.

The same promises as client-go's work queue: a service that is woken while a pass over it runs gets one more pass
afterwards, and never two at the same time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from weft_operator.errors import ApiError, OperatorError, WaitingError
from weft_operator.manifest import ServiceKey
from weft_operator.reconcile import Outcome

SETTLE_S = 0.25
"""Events come in bursts (a pod's start is a dozen); a pass begins this long after the first of a burst."""

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0

log = logging.getLogger(__name__)


class Wakeups:
    """Wakes passes: ``wake`` from anywhere in the loop, ``run`` works until it is cancelled."""

    def __init__(
        self,
        reconcile: Callable[[ServiceKey], Awaitable[Outcome]],
        *,
        resync: float,
        passes_at_once: int = 4,
        settle: float = SETTLE_S,
    ) -> None:
        self._reconcile = reconcile
        self._resync = resync
        self._passes_at_once = passes_at_once
        self._settle = settle
        self._known: set[ServiceKey] = set()
        self._dirty: set[ServiceKey] = set()
        self._running: set[ServiceKey] = set()
        self._failures: dict[ServiceKey, int] = {}
        self._timers: dict[ServiceKey, asyncio.TimerHandle] = {}
        self._ready: asyncio.Queue[ServiceKey] = asyncio.Queue()
        self.last_resync: float | None = None
        """The loop's time of the last resync, for the liveness probe."""

    @property
    def known(self) -> frozenset[ServiceKey]:
        """Return the services that are looked at."""
        return frozenset(self._known)

    def wake(self, key: ServiceKey, *, after: float | None = None) -> None:
        """Look at a service soon, or after some seconds; an earlier time that is set already stays."""
        self._known.add(key)
        loop = asyncio.get_running_loop()
        when = loop.time() + (self._settle if after is None else after)
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= when:
            return
        if timer is not None:
            timer.cancel()
        self._timers[key] = loop.call_at(when, self._due, key)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._resync_forever(), name="resync")
            for number in range(self._passes_at_once):
                group.create_task(self._work_forever(), name=f"passes {number}")

    def _due(self, key: ServiceKey) -> None:
        self._timers.pop(key, None)
        if key not in self._dirty:
            self._dirty.add(key)
            if key not in self._running:
                self._ready.put_nowait(key)

    async def _resync_forever(self) -> None:
        while True:
            self.last_resync = asyncio.get_running_loop().time()
            for number, key in enumerate(sorted(self._known)):
                # Spread over the period, so that a thousand services make a steady trickle.
                self.wake(key, after=self._resync * number / len(self._known))
            await asyncio.sleep(self._resync)

    async def _work_forever(self) -> None:
        while True:
            key = await self._ready.get()
            self._dirty.discard(key)
            self._running.add(key)
            try:
                await self._pass(key)
            finally:
                self._running.discard(key)
                if key in self._dirty:
                    self._ready.put_nowait(key)

    async def _pass(self, key: ServiceKey) -> None:
        try:
            outcome = await self._reconcile(key)
        except WaitingError as error:
            log.info("waiting", extra={"service": str(key), "reason": error.reason, "error": error.message})
            self.wake(key, after=error.retry_after)
            return
        except OperatorError as error:
            self._retry(key, error)
            return
        except Exception as error:
            # A bug in one pass must not end the passes over all other services.
            log.exception("pass_failed", extra={"service": str(key)})
            self._retry(key, error)
            return
        self._failures.pop(key, None)
        if outcome.gone:
            self._known.discard(key)
        elif outcome.look_again is not None:
            self.wake(key, after=outcome.look_again)

    def _retry(self, key: ServiceKey, error: Exception) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures - 1, 10))
        if isinstance(error, ApiError) and error.retry_after is not None:
            pause = max(pause, error.retry_after)
        log.warning("retry", extra={"service": str(key), "error": str(error), "in_seconds": pause})
        self.wake(key, after=pause)
