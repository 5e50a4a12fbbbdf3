"""Ask the service's policy where a prefill shall run, with the freshest picture this process has.

Heartbeats are up to a second old; prefills this process sent since then are added to the queues it
reads, so that a burst does not pile up on the worker that looked idle.
"""

import logging
import random
from collections import defaultdict
from collections.abc import Sequence

from weft_core.cost import CostProfile, CostProfileError
from weft_core.policies import ampd_snapshot as ampd
from weft_core.policies import remote_jsq_snapshot as remote_jsq
from weft_core.policies.snapshot import Decision, DecodeWorkerView, PrefillTask, PrefillWorkerView
from weft_core.slo import Slo
from weft_router.config import RoutingConfig
from weft_router.state import WorkerRecord

log = logging.getLogger(__name__)


class Dispatched:
    """Prefills this process has sent to others and not heard back of."""

    def __init__(self) -> None:
        self._live: dict[str, dict[str, PrefillTask]] = defaultdict(dict)

    def add(self, worker: str, task_id: str, task: PrefillTask) -> None:
        """Note a prefill on its way to a worker."""
        self._live[worker][task_id] = task

    def remove(self, worker: str, task_id: str) -> None:
        """Note that a worker answered, or will not."""
        self._live[worker].pop(task_id, None)
        if not self._live[worker]:
            del self._live[worker]

    def view(self, record: WorkerRecord) -> PrefillWorkerView:
        """Return a worker as the policies see it: its published queue and what was sent since."""
        mine = self._live.get(record.worker, {})
        published = {entry.id for entry in record.queue}
        queue = [PrefillTask(entry.history, entry.increment) for entry in record.queue]
        queue += [task for task_id, task in mine.items() if task_id not in published]
        return PrefillWorkerView(record.worker, record.degree, tuple(queue), record.windowed_ttft)


class Policy:
    """The routing rule of a service; falls back to shorter queues when the profile cannot predict."""

    def __init__(self, routing: RoutingConfig, *, profile: CostProfile, slo: Slo, salt: str) -> None:
        self._routing = routing
        self._profile = profile
        self._slo = slo
        self._rng = random.Random(f"{routing.seed}:{salt}")  # noqa: S311 - spreads load, guards nothing
        self._warned = False

    @property
    def name(self) -> str:
        """Return the configured policy's name."""
        return self._routing.policy

    def route(self, task: PrefillTask, *, decode: DecodeWorkerView, prefill: Sequence[PrefillWorkerView]) -> Decision:
        """Decide where a prefill runs."""
        if not prefill:
            return Decision(remote=None, reason="no-prefill-worker")
        try:
            if self._routing.policy == "remote-jsq":
                return remote_jsq.route(task, decode=decode, prefill=prefill, profile=self._profile)
            order = list(range(len(prefill)))
            self._rng.shuffle(order)
            return ampd.route(
                task,
                decode=decode,
                prefill=prefill,
                profile=self._profile,
                slo=self._slo,
                alpha=self._routing.alpha,
                beta=self._routing.beta,
                order=order,
            )
        except CostProfileError as error:
            if not self._warned:
                self._warned = True
                log.warning("profile_incomplete", extra={"error": str(error)})
            shortest = min(prefill, key=lambda view: (len(view.queue), view.worker))
            return Decision(remote=shortest.worker, reason="profile-incomplete")
