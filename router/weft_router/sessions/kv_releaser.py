"""Release KV that an engine keeps for a reader that will not come; otherwise it is kept until its lease expires.

An engine frees such KV on a request of its intended reader: for the KV of a prefill that is this worker's decode
engine, for KV of this worker's own engine it is any prefill engine. Releases run in the background and no round depends
on them: KV that cannot be released is counted and left to its lease.
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
"""Timeout of a release; it is not retried."""
MOST_AT_ONCE = 64
"""Concurrent releases, so that a burst of cancelled requests does not load the engine with a burst of releases."""
_REPLY_BYTES = 64 * 2**10
_NOTHING = PrefillTask(0, 0)
_RELEASED = frozenset({200, 404})


class KvReleaser:
    """Releases the KV of one decode worker's sessions and prefills."""

    def __init__(
        self, worker: Worker, *, adapter: Adapter, prefill_client: PrefillClient,
        prefill_workers: Callable[[], Sequence[WorkerRecord]], metrics: Metrics,
    ) -> None:  # fmt: skip
        """Release KV for one worker; ``prefill_workers`` returns those whose engines can read its KV."""
        self._worker = worker
        self._adapter = adapter
        self._prefill_client = prefill_client
        self._prefill_workers = prefill_workers
        self._outcomes = metrics.handle_releases
        self._handles = metrics.kv_handles
        self._tasks: set[asyncio.Task[None]] = set()

    def release_prefill(self, params: Json | None) -> None:
        """Release a prefill's KV that this worker's engine will not read."""
        call = self._adapter.release(params) if params is not None else None
        if call is not None:
            self._start(self._here(call))

    def discard_handle(self, handle: KvHandle, outcome: Outcome) -> None:
        """Count the outcome of a handle that will not be used any more, and release its KV."""
        self._handles.labels(outcome).inc()
        self.release_handle(handle)

    def release_handle(self, handle: KvHandle, *, by: WorkerRecord | None = None) -> None:
        """Release KV of this worker's engine that no prefill engine will read, through ``by`` or any prefill worker."""
        call = self._adapter.release(handle.params) if handle.live(monotonic()) else None
        if call is None:
            return
        peer = by or next((one for one in self._prefill_workers() if one.worker != handle.holder), None)
        if peer is None:
            self._outcomes.labels("nobody").inc()
            return
        self._start(self._there(peer, call))

    async def stop(self) -> None:
        """Cancel the releases in progress."""
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
