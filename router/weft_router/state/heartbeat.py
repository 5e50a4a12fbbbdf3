"""Announce this worker to the others every second, and at once when its readiness changes."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from weft_core.heartbeat import HEARTBEAT_S, WorkerRecord
from weft_router.background import guarded
from weft_router.state.store import Store, StoreDownError

log = logging.getLogger(__name__)


class Heartbeat:
    """Publish what ``describe`` says of this worker; ``written`` tells whether anybody can have read it yet."""

    def __init__(self, store: Store, describe: Callable[[int], WorkerRecord]) -> None:
        self._store = store
        self._describe = describe
        self._seq = 0
        self._wake = asyncio.Event()
        self.written = False

    def hurry(self) -> None:
        """Publish now instead of at the next second."""
        self._wake.set()

    async def run(self) -> None:
        """Publish until cancelled, then take the worker off the list."""
        try:
            while True:
                await guarded(self.beat)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_S):
                        await self._wake.wait()
                self._wake.clear()
        finally:
            with contextlib.suppress(StoreDownError):
                await self._store.withdraw(self._describe(self._seq).worker)

    async def beat(self) -> None:
        """Publish once; a lost store is not an error, the worker stays reachable at its address."""
        self._seq += 1
        record = self._describe(self._seq)
        try:
            await self._store.heartbeat(record)
        except StoreDownError as error:
            if self._seq % 30 == 1:
                log.warning("heartbeat_not_written", extra={"worker": record.worker, "error": str(error)})
        else:
            if not self.written:
                log.info("heartbeat_written", extra={"worker": record.worker})
            self.written = True
