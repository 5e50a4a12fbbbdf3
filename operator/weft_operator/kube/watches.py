"""Run kopf's watches in a thread with an event loop of its own, and restart them with backoff when they fail."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import kopf

from weft_operator.kube import watch_handlers

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
STOP_S = 10.0

log = logging.getLogger(__name__)


class Watches:
    """Runs kopf's watches: kopf exits on an unexpected response, which costs a new list here, not the process.

    In a thread of its own, kopf neither handles the process's signals nor waits for other tasks.
    """

    def __init__(self, *, on_event: Callable[[watch_handlers.WatchEvent], None]) -> None:
        """Create it; ``on_event`` is called in the thread of the watches."""
        self._on_event = on_event
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self.restarts = 0
        """How often the watches failed and were restarted."""

    @property
    def ready(self) -> bool:
        """Return whether the watches run."""
        return self._ready.is_set()

    async def run(self, namespaces: Sequence[str]) -> None:
        """Watch some namespaces, all when none is named, until cancelled."""
        thread = threading.Thread(target=self._watch_forever, args=(tuple(namespaces),), name="kopf", daemon=True)
        thread.start()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._stop.set()
            if self._loop is not None and self._ending is not None:
                with suppress(RuntimeError):  # the loop is closed: the thread checks the flag before the next one
                    self._loop.call_soon_threadsafe(self._ending.set)
            await asyncio.to_thread(thread.join, STOP_S)

    def _watch_forever(self, namespaces: tuple[str, ...]) -> None:
        pause = FIRST_PAUSE_S
        while not self._stop.is_set():
            registry = kopf.OperatorRegistry()
            watch_handlers.register(registry, on_event=self._on_event)
            try:
                asyncio.run(self._watch(registry, namespaces))
            except Exception as error:  # noqa: BLE001 - the watches are restarted after any error
                log.warning("watches_broke", extra={"error": repr(error), "in_seconds": pause})
            if self._stop.is_set():
                return
            if self._ready.is_set():
                pause = FIRST_PAUSE_S  # the watches had run, so this is a new failure
            self._ready.clear()
            self.restarts += 1
            self._stop.wait(pause)
            pause = min(LONGEST_PAUSE_S, pause * 2)

    async def _watch(self, registry: kopf.OperatorRegistry, namespaces: tuple[str, ...]) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        if self._stop.is_set():
            return
        await kopf.operator(
            registry=registry,
            settings=watch_handlers.watch_settings(),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            # Not a threading.Event: kopf would wait for that in a thread that outlives failed watches.
            stop_flag=self._ending,
            ready_flag=self._ready,
        )
