"""Try whether the engines of the other role answer where engines meet to hand KV over: their side channel.

A port that a network policy or a firewall closes costs every round that would read KV over it a timeout in the engine,
though engines and sidecars are healthy. The sidecar is in the engine's pod, so what it reaches its engine does.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from urllib.parse import urlsplit

from weft_core.heartbeat import WorkerRecord
from weft_router.background import guarded

log = logging.getLogger(__name__)

TURN_S = 1.0
CONNECT_S = 2.0
AGAIN_S = 30.0
"""An open path is tried again so often: policies change while both pods stay."""
CLOSED_AFTER = 3
"""One refused connection may be an engine that is just starting; three in a row, a second apart, are not."""
AT_ONCE = 16
MOST_NAMED = 8
"""A heartbeat names so many: it is written every second."""

Connect = Callable[[str, int], Awaitable[bool]]


@dataclass(slots=True)
class _Path:
    incarnation: str
    failures: int = 0
    open: bool = False
    tried_at: float = float("-inf")


class KvPaths:
    """The paths from this worker's pod to the side channels of those that ``others`` gives; no ``port``, no trials."""

    def __init__(
        self,
        port: int,
        others: Callable[[], Iterable[WorkerRecord]],
        *,
        connect: Connect | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.port = port
        self._others = others
        self._connect = connect or reaches
        self._clock = clock
        self._paths: dict[str, _Path] = {}
        self.closed: frozenset[str] = frozenset()
        """The workers whose side channel cannot be reached; the same object as long as nothing changed."""

    @property
    def open(self) -> int:
        """Return how many workers' side channels were reached; -1 where nobody tries."""
        return sum(path.open for path in self._paths.values()) if self.port else -1

    def named(self) -> tuple[str, ...]:
        """Return some of the closed ones, by name."""
        return tuple(sorted(self.closed)[:MOST_NAMED])

    async def run(self) -> None:
        """Try until cancelled; nothing at all without a port."""
        while self.port:
            await guarded(self.turn)
            await asyncio.sleep(TURN_S)

    async def turn(self) -> None:
        """Try the paths that are due."""
        records = {record.worker: record for record in self._others()}
        now = self._clock()
        for name in self._paths.keys() - records.keys():
            del self._paths[name]
        due = []
        for name, record in records.items():
            path = self._paths.get(name)
            if path is None or path.incarnation != record.incarnation:
                path = self._paths[name] = _Path(record.incarnation)
            if not path.open or path.failures or now - path.tried_at >= AGAIN_S:
                due.append((record, path))
        for first in range(0, len(due), AT_ONCE):
            await asyncio.gather(*(self._try(record, path, now) for record, path in due[first : first + AT_ONCE]))
        closed = frozenset(name for name, path in self._paths.items() if path.failures >= CLOSED_AFTER)
        if closed != self.closed:
            for name in sorted(closed - self.closed):
                log.error("kv_path_closed", extra={"worker": name, "port": self.port})
            for name in sorted(self.closed - closed):
                log.info("kv_path_not_closed", extra={"worker": name, "port": self.port})
            self.closed = closed

    async def _try(self, record: WorkerRecord, path: _Path, now: float) -> None:
        path.tried_at = now
        reached = await self._connect(urlsplit(record.url).hostname or "", self.port)
        path.failures = 0 if reached else path.failures + 1
        path.open = reached or (path.open and path.failures < CLOSED_AFTER)


async def reaches(host: str, port: int) -> bool:
    """Tell whether a connection to the port is taken; it is closed at once, and nothing is sent."""
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, port)
    except OSError:  # TimeoutError is one
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
