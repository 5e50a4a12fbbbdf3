"""Ask prefill workers for their queues just before a prefill is routed.

Heartbeats are up to 1.5 s old, and no decode worker sees in them what the others have sent since. Where several decode
workers share prefill workers, such a view costs as much goodput as a wrong policy
(docs/decisions/0023-queues-are-asked-for.md). One answer takes less than a millisecond. Those are asked that have the
shortest queues by what is known, and once more if that changes which these are.
"""

import asyncio
import math
from collections.abc import Callable
from time import monotonic
from typing import Final

from weft_core.heartbeat import WorkerRecord
from weft_router.errors import UpstreamFailedError
from weft_router.routing.prefill_workers import PrefillWorkers
from weft_router.state.registry import Registry
from weft_router.workers.prefill_client import QueueSource

FRESH_S: Final = 0.05
"""A queue that is no older is not asked for again: 20 requests a second to each worker at most."""
WAIT_S: Final = 0.02
"""Who takes longer to answer is judged by its heartbeat."""
RETRY_S: Final = 2.0
"""Who did not answer is not asked for so long: it hangs, or its sidecar is of the version before."""
ASKED: Final = 2
TIMES: Final = 2
MOST_TIMES: Final = 1000
"""Workers of which it is remembered when they may be asked again, some of which may be gone."""


class FreshQueues:
    """The queues of the prefill workers that one decode worker may choose."""

    def __init__(
        self, source: QueueSource, *, prefill_workers: PrefillWorkers, registry: Registry,
        clock: Callable[[], float] = monotonic,
    ) -> None:  # fmt: skip
        self._source = source
        self._prefill_workers = prefill_workers
        self._registry = registry
        self._clock = clock
        self._again_at: dict[str, float] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def update(self) -> None:
        """Bring up to date what is known of the shortest queues; it never fails."""
        if len(self._registry.ready("decode")) < 2:  # nobody else sends anything
            return
        if len(self._again_at) > MOST_TIMES:
            self._again_at.clear()
        for _ in range(TIMES):
            asking = [task for record in self._shortest() if (task := self._ask(record)) is not None]
            if not asking:
                return
            await asyncio.wait(asking)  # which cancels none: other rounds may wait for the same answers

    def _shortest(self) -> list[WorkerRecord]:
        records = self._prefill_workers.ready()
        return records if len(records) <= ASKED else sorted(records, key=self._load)[:ASKED]

    def _load(self, record: WorkerRecord) -> tuple[float, int]:
        view = self._prefill_workers.in_flight.view(record)
        return view.queue_s if view.queue_s == view.queue_s else 0.0, view.queued

    def _ask(self, record: WorkerRecord) -> asyncio.Task[None] | None:
        """Return the request to a worker that is under way, or a new one; None while its queue is fresh."""
        worker = record.worker
        task = self._asking.get(worker)
        if task is None and self._clock() > self._again_at.get(worker, -math.inf):
            task = self._asking[worker] = asyncio.get_running_loop().create_task(self._answer(record))
        return task

    async def _answer(self, record: WorkerRecord) -> None:
        worker, again_s = record.worker, RETRY_S
        try:
            queue = await self._source.queue(record, within_s=WAIT_S)
            self._prefill_workers.in_flight.take_queue(record, queue, until=self._clock() + FRESH_S)
            again_s = FRESH_S
        except UpstreamFailedError:
            pass  # whether it lives, heartbeats and probes find out
        finally:
            self._again_at[worker] = self._clock() + again_s
            del self._asking[worker]
