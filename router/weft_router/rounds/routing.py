"""Ask the service's policy where a prefill shall run, with the freshest picture this process has.

Heartbeats are up to a second old; prefills this process sent since then are added to the queues it
reads, so that a burst does not pile up on the worker that looked idle.
"""

import logging
import math
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic

from weft_core.cost import CostProfile
from weft_core.policies.live import Routing, queue_seconds
from weft_core.policies.snapshot import Circumstances, Decision, DecodeWorkerView, PrefillTask, PrefillWorkerView
from weft_core.slo import Slo
from weft_router.config import RoutingConfig
from weft_router.state.store import WorkerRecord

log = logging.getLogger(__name__)


OVER_S = 3.0
"""A heartbeat is read within half a second and holds for one more: after twice that none names what was over then."""


class Dispatched:
    """Prefills this process has sent to others and not heard back of."""

    def __init__(
        self,
        profile: CostProfile,
        *,
        pools: Mapping[str, CostProfile] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Predict by ``profile``, and for workers of ``pools`` by what these cost."""
        self._profile = profile
        self._pools = pools or {}
        self._clock = clock
        self._live: dict[str, dict[str, PrefillTask]] = defaultdict(dict)
        self._over: dict[str, dict[str, float]] = defaultdict(dict)
        self._used_at: dict[str, float] = {}
        self._views: dict[str, tuple[WorkerRecord, PrefillWorkerView]] = {}

    def add(self, worker: str, task_id: str, task: PrefillTask) -> None:
        """Note a prefill on its way to a worker."""
        self._live[worker][task_id] = task
        self._over[worker].pop(task_id, None)
        self._used_at[worker] = self._clock()
        self._views.pop(worker, None)

    def remove(self, worker: str, task_id: str) -> None:
        """Note that a worker answered, or will not; a heartbeat from before then may still name the task."""
        self._over[worker][task_id] = self._clock()
        self._live[worker].pop(task_id, None)
        if not self._live[worker]:
            del self._live[worker]
        self._views.pop(worker, None)

    def view(self, record: WorkerRecord) -> PrefillWorkerView:
        """Return a worker as the policies see it: its published queue and what was sent since.

        Predicting a queue costs more than deciding over it, so a view serves until a heartbeat or a prefill changes it.
        """
        kept = self._views.get(record.worker)
        if kept is not None and kept[0] is record:
            return kept[1]
        mine = self._live.get(record.worker, {})
        published = {entry.id for entry in record.queue}
        over = self._recently_over(record.worker)
        queue = [PrefillTask(entry.history, entry.increment) for entry in record.queue if entry.id not in over]
        queue += [task for task_id, task in mine.items() if task_id not in published]
        view = PrefillWorkerView(
            worker=record.worker,
            degree=record.degree,
            queue_s=queue_seconds(queue, degree=record.degree, profile=self._pools.get(record.pool, self._profile)),
            queued=len(queue),
            windowed_ttft=record.windowed_ttft,
            kv_use=record.kv_used / record.capacity if record.capacity > 0 else math.nan,
            used_at=self._used_at.get(record.worker, -math.inf),
            pool=record.pool,
        )
        self._views[record.worker] = (record, view)
        return view

    def _recently_over(self, worker: str) -> Collection[str]:
        over = self._over[worker]
        oldest = self._clock() - OVER_S
        for task_id in [task_id for task_id, at in over.items() if at < oldest]:
            del over[task_id]
        return over

    def forget(self, workers: Sequence[str]) -> None:
        """Drop what is kept of workers that are no longer known, given those that are."""
        for gone in self._used_at.keys() - set(workers):
            del self._used_at[gone]
        for gone in self._views.keys() - set(workers):
            del self._views[gone]
        for gone in self._over.keys() - set(workers):
            del self._over[gone]


class Policy:
    """The routing rule of a service, fed by this process's clock and dice."""

    def __init__(
        self, routing: RoutingConfig, *, profile: CostProfile, slo: Slo, salt: str,
        pools: Mapping[str, CostProfile] | None = None, clock: Callable[[], float] = monotonic,
    ) -> None:  # fmt: skip
        self._name = routing.policy
        self._rule = Routing(
            routing.policy, mode=routing.mode, overrides=routing.overrides, profile=profile, slo=slo, pools=pools
        )
        self._clock = clock
        self._rng = random.Random(f"{routing.seed}:{salt}")  # noqa: S311 - spreads load, guards nothing
        self._warned = False

    @property
    def name(self) -> str:
        """Return the configured policy's name."""
        return self._name

    @property
    def never_remote(self) -> bool:
        """Tell whether there are no prefill workers by design."""
        return self._name == "colocated"

    def route(
        self,
        task: PrefillTask,
        *,
        decode: DecodeWorkerView,
        prefill: Sequence[PrefillWorkerView],
        known: Circumstances,
    ) -> Decision:
        """Decide where a prefill runs; by the shortest queue when the profile cannot predict what the rule needs."""
        if not prefill and not self.never_remote:
            return Decision(remote=None, reason="no-prefill-worker")
        decision = self._rule.decide(
            task,
            decode=decode,
            prefill=prefill,
            order=self._order(len(prefill)),
            uniform=self._rng.random() if self._name == "fixed-x" else 0.0,
            now=self._clock(),
            known=known,
        )
        if decision.reason == "profile-incomplete" and not self._warned:
            self._warned = True
            log.warning("profile_incomplete", extra={"policy": self._name})
        return decision

    def _order(self, workers: int) -> Sequence[int]:
        """Return a random order of the workers for the rules that want one."""
        if self._name == "always-remote":
            return (self._rng.randrange(workers),)
        order = list(range(workers))
        if self._name == "ampd":
            self._rng.shuffle(order)
        return order
