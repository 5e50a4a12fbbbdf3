"""Give back KV that an engine keeps for a reader who will not come; without that it stays until its lease is over.

An engine lets go of what it holds when the reader it was meant for says so: for KV of a prefill that is this worker's
decode engine, for KV of this worker's own engine it is any prefill engine. Nothing waits for it, and no round depends
on it: what cannot be given back is counted and left to its lease.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic

from weft_core.heartbeat import WorkerRecord
from weft_core.policies.snapshot import PrefillTask
from weft_router.engines.adapter import Adapter, Call
from weft_router.engines.handles import KvHandle, Outcome
from weft_router.errors import UpstreamFailedError
from weft_router.http.upstream_request import UpstreamRequest
from weft_router.openai.body import Json
from weft_router.telemetry.metrics import Metrics
from weft_router.workers.prefill_client import PrefillClient
from weft_router.workers.scheduling_priority import DEFAULT_PRIORITY
from weft_router.workers.worker import Worker

log = logging.getLogger(__name__)

RELEASE_S = 5.0
"""For one try; there is no second one."""
MOST_AT_ONCE = 64
"""A burst of cancels shall not become a burst of requests to an engine that has enough to do."""
_REPLY_BYTES = 64 * 2**10
_NOTHING = PrefillTask(0, 0)
_RELEASED = frozenset({200, 404})


class KvReleaser:
    """What one decode worker gives back."""

    def __init__(
        self, worker: Worker, *, adapter: Adapter, prefill_client: PrefillClient,
        prefill_workers: Callable[[], Sequence[WorkerRecord]], metrics: Metrics,
    ) -> None:  # fmt: skip
        """Give back by one worker; ``prefill_workers`` returns those whose engines can read this one's KV."""
        self._worker = worker
        self._adapter = adapter
        self._prefill_client = prefill_client
        self._prefill_workers = prefill_workers
        self._outcomes = metrics.handle_releases
        self._handles = metrics.kv_handles
        self._tasks: set[asyncio.Task[None]] = set()

    def release_prefill(self, params: Json | None) -> None:
        """Give back a prefill's KV that this worker's engine will not read."""
        call = self._adapter.release(params) if params is not None else None
        if call is not None:
            self._start(self._here(call))

    def discard_handle(self, handle: KvHandle, outcome: Outcome) -> None:
        """Count what became of a handle that nobody will use any more, and give its KV back."""
        self._handles.labels(outcome).inc()
        self.release_handle(handle)

    def release_handle(self, handle: KvHandle, *, by: WorkerRecord | None = None) -> None:
        """Give back KV of this worker's engine that no prefill engine will read; any of them can, or ``by``."""
        call = self._adapter.release(handle.params) if handle.live(monotonic()) else None
        if call is None:
            return
        peer = by or next(iter(self._prefill_workers()), None)
        if peer is None:
            self._outcomes.labels("nobody").inc()
            return
        self._start(self._there(peer, call))

    async def stop(self) -> None:
        """Give up what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[None, None, int]) -> None:
        if len(self._tasks) >= MOST_AT_ONCE:
            work.close()
            self._outcomes.labels("dropped").inc()
            return
        task = asyncio.get_running_loop().create_task(self._count(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _count(self, work: Coroutine[None, None, int]) -> None:
        status = 0
        try:
            async with asyncio.timeout(RELEASE_S):
                status = await work
        except (UpstreamFailedError, TimeoutError) as error:
            log.info("kv_not_released", extra={"error": str(error)})
        self._outcomes.labels("released" if status in _RELEASED else "failed").inc()

    async def _here(self, call: Call) -> int:
        engine = self._worker.engine
        answer = await engine.pool.call(
            UpstreamRequest(first_s=RELEASE_S), engine.origin, call.path, call.body, limit=_REPLY_BYTES,
            lines=call.lines + engine.proof,
        )  # fmt: skip
        return answer.status

    async def _there(self, peer: WorkerRecord, call: Call) -> int:
        answer = await self._prefill_client.prefill(peer, call, _NOTHING, "", DEFAULT_PRIORITY)
        return answer.status if answer.from_engine else 0
