"""How a decode worker has a prefill done elsewhere, and what comes back."""

from dataclasses import dataclass
from typing import Final, Protocol

from weft_core.heartbeat import QueueEntry, WorkerRecord
from weft_core.policies.snapshot import PrefillTask
from weft_router.engines.adapter import Call
from weft_router.workers.scheduling_priority import SchedulingPriority

QUEUE_PATH: Final = "/internal/queue"
"""Where a sidecar says what waits or runs there; many times a second, so no access line tells of it."""


@dataclass(frozen=True, slots=True)
class PrefillResponse:
    """What came back from a prefill worker: the engine's own answer when ``from_engine``."""

    status: int
    body: bytes
    from_engine: bool
    died: str = ""
    """What becomes of the request where the engine ended with it."""


class PrefillClient(Protocol):
    """The way to prefill workers: over HTTP to their sidecars, or to a worker of this very process."""

    async def prefill(
        self, record: WorkerRecord, call: Call, task: PrefillTask, request_id: str, scheduling: SchedulingPriority
    ) -> PrefillResponse:
        """Run one prefill; raise UpstreamFailedError when no answer came."""


class QueueSource(Protocol):
    """The way to the queues of prefill workers in other processes."""

    async def queue(self, record: WorkerRecord, *, within_s: float) -> tuple[QueueEntry, ...]:
        """Return what waits or runs on a worker now; raise UpstreamFailedError when no answer came in time."""
