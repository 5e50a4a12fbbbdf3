"""Ask prefill workers for their queues just before a prefill is routed.

Heartbeats are up to 1.5 s old, and no decode worker sees in them what the others have sent since. Where several decode
workers share prefill workers, such a view costs as much goodput as a wrong policy
(docs/decisions/0023-queues-are-asked-for.md). One answer takes less than a millisecond, and the queues of two workers
are enough to choose by: the least loaded by what is known, and the next.
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
ASKED: Final = 2
MOST_TIMES: Final = 1000
"""Workers of which it is remembered when they were asked, some of which may be gone."""


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
        self._asked_at: dict[str, float] = {}

    async def update(self) -> None:
        """Bring up to date what is known of the shortest queues; it never fails."""
        if len(self._registry.ready("decode")) < 2:  # nobody else sends anything
            return
        records = self._prefill_workers.ready()
        if len(records) > ASKED:
            records = sorted(records, key=self._load)[:ASKED]
        now, asked_at = self._clock(), self._asked_at
        old = [record for record in records if now - asked_at.get(record.worker, -math.inf) > FRESH_S]
        if not old:
            return
        if len(asked_at) > MOST_TIMES:
            asked_at.clear()
        for record in old:
            asked_at[record.worker] = now
        await asyncio.gather(*[self._ask(record) for record in old])

    async def _ask(self, record: WorkerRecord) -> None:
        try:
            queue = await self._source.queue(record, within_s=WAIT_S)
        except UpstreamFailedError:
            return  # whether it lives, heartbeats and probes find out
        self._prefill_workers.in_flight.take_queue(record, queue)

    def _load(self, record: WorkerRecord) -> tuple[float, int]:
        view = self._prefill_workers.in_flight.view(record)
        return view.queue_s if view.queue_s == view.queue_s else 0.0, view.queued
