"""Read what the sidecar ``kv-disk`` of a worker's pod reports of the tier on its disk.

Faults are for heartbeats and metrics, deleted blocks for the index of what the engine has cached.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Final

import orjson

from weft_core.heartbeat import WorkerRecord
from weft_core.kv_tiers import DISK_FAULTS, DISK_SILENT
from weft_router.background import guarded
from weft_router.errors import UpstreamFailedError
from weft_router.http.pool import ConnectionPool
from weft_router.http.upstream_request import UpstreamRequest
from weft_router.telemetry.kv_disk_metrics import KvDiskMetrics

PERIOD_S: Final = 5.0
ANSWER_S: Final = 2.0
SILENT_S: Final = 60.0
"""After so long without an answer it is reported; both sidecars start together, and one may be restarted."""
SILENT: Final = "its sidecar kv-disk does not answer; see the log of the container kv-disk"
MAX_PAGE: Final = 64 * 1024
DELETED: Final = "/deleted/"
"""As in weft_router.kv_disk_report."""
Faults = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class DiskState:
    """What a report says; sizes are bytes by ``limit``, ``used``, ``allowed`` and ``free``."""

    sizes: Mapping[str, float]
    deleted: float
    write_s: float
    faults: Faults
    run: str = ""
    """Names the sidecar's process; "" for one of an older version, which does not say what it deletes."""
    deleted_blocks: int = 0


Forget = Callable[[Sequence[int] | None], Awaitable[None]]
"""Called with the hashes of blocks that are not on the disk any more; None: it may be all."""


def read_report(page: bytes) -> DiskState | None:
    """Return what a page says; None where it is no report."""
    try:
        report = orjson.loads(page)
        sizes = {kind: _amount(report.get(f"{kind}Bytes")) for kind in ("limit", "used", "allowed", "free")}
        faults = tuple((str(kind), str(words)) for kind, words in report["faults"] if kind in DISK_FAULTS)
        run, blocks = str(report.get("run", "")), int(_amount(report.get("deletedBlocks")))
        return DiskState(sizes, _amount(report["deletedBytes"]), _amount(report["writeSeconds"]), faults, run, blocks)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def read_deleted(page: bytes) -> tuple[str, int, list[int]] | None:
    """Return the run of a page of deleted blocks, the number of the first, and their hashes; None where it is none."""
    try:
        body = orjson.loads(page)
        run, first, hashes = body["run"], body["first"], body["hashes"]
        known = isinstance(hashes, list) and all(type(one) is int and 0 <= one < 2**64 for one in hashes)
    except (KeyError, TypeError, ValueError):
        return None
    return (run, first, hashes) if known and isinstance(run, str) and type(first) is int and first >= 0 else None


class KvDiskWatch:
    """The tier on the disk of one worker; without a port it has none."""

    def __init__(
        self, pool: ConnectionPool, port: int, *, serves: Callable[[], bool], metrics: KvDiskMetrics,
        on_change: Callable[[], None], forget: Forget | None = None, clock: Callable[[], float] = monotonic,
    ) -> None:  # fmt: skip
        """Watch the sidecar at a port of loopback; ``on_change`` is called when heartbeats are to report a change.

        ``forget`` is called as blocks are deleted.

        ``serves`` tells whether the engine does: before, the pod may still start its sidecars one by one.
        """
        self._pool = pool
        self._port = port
        self._serves = serves
        self._metrics = metrics
        self._on_change = on_change
        self._forget = forget
        self._run, self._blocks = "", 0
        self._clock = clock
        self._answered = clock()
        self._faults: Faults = ()

    def describe(self, record: WorkerRecord) -> WorkerRecord:
        """Add the faults to a heartbeat."""
        return replace(record, kv_tier_faults=self._faults) if self._faults else record

    async def run(self) -> None:
        """Read the report again and again until cancelled."""
        while self._port:
            await guarded(self.look)
            await asyncio.sleep(PERIOD_S)

    async def look(self) -> None:
        """Read the report once."""
        state = await self._ask()
        if state is not None:
            self._answered = self._clock()
            self._count(state)
            self._set(state.faults)
            if self._forget is not None and state.run:
                await self._follow(state, self._forget)
        elif not self._serves():
            self._answered = self._clock()
        elif self._clock() - self._answered > SILENT_S:
            self._set(((DISK_SILENT, SILENT),))

    async def _follow(self, state: DiskState, forget: Forget) -> None:
        """Read which blocks were deleted since the last look."""
        if state.run != self._run:
            if self._run:
                await forget(None)  # what the process before deleted last is not known
            self._run, self._blocks = state.run, 0
        while self._blocks < state.deleted_blocks:
            answer = await self._get(f"{DELETED}{self._blocks}")
            found = None if answer is None else read_deleted(answer)
            if found is None or found[0] != self._run or found[1] + len(found[2]) <= self._blocks:
                return  # the next look tries again
            _, first, hashes = found
            if first > self._blocks:
                await forget(None)
            await forget(hashes)
            self._blocks = first + len(hashes)

    async def _ask(self) -> DiskState | None:
        page = await self._get("/")
        return None if page is None else read_report(page)

    async def _get(self, path: str) -> bytes | None:
        origin = self._pool.origin(f"http://127.0.0.1:{self._port}")
        request = UpstreamRequest(first_s=ANSWER_S)
        try:
            answer = await self._pool.call(request, origin, path, limit=MAX_PAGE, method="GET", resend=True)
        except UpstreamFailedError:
            return None
        return answer.body if answer.status == 200 else None

    def _count(self, state: DiskState) -> None:
        metrics = self._metrics
        for kind, size in state.sizes.items():
            metrics.sizes.labels(kind).set(size)
        metrics.deleted.labels().value = state.deleted
        metrics.write_seconds.labels().set(state.write_s)

    def _set(self, faults: Faults) -> None:
        present = {kind for kind, _ in faults}
        for kind in DISK_FAULTS:
            self._metrics.faults.labels(kind).set(float(kind in present))
        if faults != self._faults:
            self._faults = faults
            self._on_change()


def _amount(value: object) -> float:
    """Return a figure of a report, 0 for one that is not known yet.

    Raises:
        ValueError: it is none.
    """
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise ValueError("not a figure")
    return float(value)
