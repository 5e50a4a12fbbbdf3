"""Hold requests while no worker is there, and say that they wait: a service at zero is brought back for them."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic

from weft_router.config.front import HoldConfig
from weft_router.errors import SHUTTING_DOWN, UnavailableError
from weft_router.state.store import Store, StoreDownError

log = logging.getLogger(__name__)

POLL_S = 0.05
TELL_S = 1.0
"""How often it is said again that requests wait, in case the store forgot or was away."""
RETRY_AFTER_S = 5


class RequestHolder:
    """The requests of one process that wait for a worker."""

    def __init__(
        self,
        config: HoldConfig,
        *,
        store: Store,
        ready: Callable[[], Sequence[object]],
        refused: Callable[[str, str], None],
    ) -> None:
        """Create it; ``ready`` gives the workers that may be given work now, ``refused`` counts by reason and class."""
        self._config = config
        self._store = store
        self._ready = ready
        self._refused = refused
        self._wanted = asyncio.Event()
        self._ending = False
        self.held = 0
        """Requests that wait now."""

    async def until_ready(self, class_: str) -> None:
        """Return once a worker is ready.

        Raises:
            UnavailableError: too many wait already, none came in time, or this process ends.
        """
        if self._ready():
            return
        try:
            await self._wait()
        except UnavailableError:
            self._refused("no-worker", class_)
            raise

    async def _wait(self) -> None:
        self._wanted.set()
        if self.held >= self._config.most:
            raise UnavailableError(
                f"no worker is ready yet and {self.held} requests wait for one already; try again shortly",
                retry_after_s=RETRY_AFTER_S,
            )
        end = monotonic() + self._config.seconds
        self.held += 1
        try:
            while not self._ready():
                if self._ending:
                    raise UnavailableError(f"{SHUTTING_DOWN} while this request waited for a worker; try again")
                if monotonic() >= end:
                    raise UnavailableError(
                        f"no worker got ready within {self._config.seconds:g} s; try again shortly",
                        retry_after_s=RETRY_AFTER_S,
                    )
                await asyncio.sleep(POLL_S)
        finally:
            self.held -= 1

    def terminate(self) -> None:
        """Release all held requests: this process shuts down."""
        self._ending = True

    async def announce_demand(self) -> None:
        """Say until cancelled that requests wait, whenever some do: at once, and again every second."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._store.demand()
            except StoreDownError as error:
                log.warning("demand_not_told", extra={"held": self.held, "error": str(error)})
            await asyncio.sleep(TELL_S)
            if self.held:
                self._wanted.set()
