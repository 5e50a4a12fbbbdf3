"""Ask a rule about a live snapshot: turn it into the vectors that every rule reads, and the answer into a Decision."""

import math
from collections.abc import Iterable, Mapping, Sequence

from weft_core.cost import CostProfile, CostProfileError, TransferCost
from weft_core.policies.catalogue import BINDINGS, POLICIES, REASONS, BindingName, ModeName, parameters
from weft_core.policies.codes import ROUND_ROBIN
from weft_core.policies.decide import decide
from weft_core.policies.decide_binding import bind
from weft_core.policies.features import LOCAL
from weft_core.policies.parameter import PolicyError
from weft_core.policies.snapshot import (
    BindingView,
    Circumstances,
    Decision,
    DecodeWorkerView,
    PrefillTask,
    PrefillWorkerView,
)
from weft_core.slo import Slo
from weft_core.transfers import transfer_between

ALONE = Circumstances()

LIVE_MODES: tuple[ModeName, ...] = ("ia", "remote-jsq")
"""Modes of ``weft`` that the router can run: it hands whole prompts to stock engines, so chunks are not on offer."""
LIVE_MODE: ModeName = "ia"
LIVE_BINDINGS: tuple[BindingName, ...] = ("kv-headroom", "least-requests", "round-robin")
"""Bindings that the router can feed: it does not know yet what the prefix caches of decode workers hold."""


def prefill_seconds(task: PrefillTask, *, degree: int, profile: CostProfile) -> float:
    """Return T_pre of a task, NaN when the profile does not know the degree."""
    try:
        return profile.t_pre(history=task.history, increment=task.increment, degree=degree)
    except CostProfileError:
        return math.nan


def queue_seconds(queue: Iterable[PrefillTask], *, degree: int, profile: CostProfile) -> float:
    """Return the queuing term of AMPD's Eq. (1) and (2): sum of T_pre over a prefill queue; NaN without the degree."""
    return sum((prefill_seconds(task, degree=degree, profile=profile) for task in queue), 0.0)


class Routing:
    """The routing rule of a service, with its parameters, cost profiles and SLO."""

    def __init__(
        self,
        policy: str,
        *,
        mode: str,
        overrides: Mapping[str, float],
        profile: CostProfile,
        slo: Slo,
        pools: Mapping[str, CostProfile] | None = None,
    ) -> None:
        """Look the rule up; ``profile`` is the decode worker's, ``pools`` has those of pools that differ from it.

        Raises:
            PolicyError: there is no such policy, mode or parameter, or a value is out of range.
        """
        self._params = parameters(policy, mode, overrides)
        self._code = POLICIES[policy].code
        self._profile = profile
        self._pools = pools or {}
        self._links: dict[tuple[int, int, str], tuple[TransferCost, TransferCost]] = {}
        self._slo = slo

    def decide(
        self,
        task: PrefillTask,
        *,
        decode: DecodeWorkerView,
        prefill: Sequence[PrefillWorkerView],
        order: Sequence[int],
        uniform: float = 0.0,
        now: float = 0.0,
        known: Circumstances = ALONE,
    ) -> Decision:
        """Decide where a prefill runs.

        ``order`` is a random permutation of the prefill workers' places and ``uniform`` a random number in [0, 1), both
        drawn by the caller; ``now`` is the clock of the views' ``used_at``. Where the profile lacks a figure that the
        rule needs, the shortest queue by number of tasks is taken (reason ``profile-incomplete``).
        """
        workers = len(prefill)
        costs = [0.0] * (workers + 1)
        choice, reason = decide(
            self._code,
            self._task(task, known, uniform),
            self._local(task, decode),
            self._remote(task, decode.degree, prefill, now, known.cached),
            workers,
            order,
            self._params,
            decode.gap_sums,
            decode.gap_counts,
            costs,
        )
        estimated = {prefill[i - 1].worker if i else "local": cost for i, cost in enumerate(costs) if cost == cost}
        remote = None if choice == LOCAL else prefill[choice].worker
        return Decision(remote=remote, reason=REASONS[reason], costs=estimated)

    def _task(self, task: PrefillTask, known: Circumstances, uniform: float) -> tuple[float, ...]:
        return (
            task.history, task.increment, known.waited_s, self._slo.ttft_s, self._slo.itl_s,
            1.0 if known.later else 0.0, known.answer, known.rate, uniform, known.priority,
        )  # fmt: skip

    def _local(self, task: PrefillTask, decode: DecodeWorkerView) -> tuple[float, ...]:
        """Return the decode worker's figures; a stock engine runs its prefills whole, so chunks never end."""
        try:
            step = self._profile.t_dec(batch=decode.batch, context=decode.context, degree=decode.degree)
        except CostProfileError:
            step = math.nan
        whole = prefill_seconds(task, degree=decode.degree, profile=self._profile)
        itl = math.nan if decode.windowed_itl is None else decode.windowed_itl
        return (
            decode.queue_s, whole, math.inf, math.inf, itl, decode.batch, decode.context, step,
            decode.kv_capacity - decode.kv_used, decode.queued,
        )  # fmt: skip

    def _remote(
        self,
        task: PrefillTask,
        local_degree: int,
        prefill: Sequence[PrefillWorkerView],
        now: float,
        cached: Mapping[str, int],
    ) -> list[float]:
        of_kind: dict[tuple[int, str], tuple[float, float, float, float]] = {}
        remote: list[float] = []
        for view in prefill:
            kind = view.degree, view.pool
            known = of_kind.get(kind)
            if known is None:
                known = of_kind[kind] = self._kind(task, local_degree, view)
            own, read, back, rate = known
            windowed = view.windowed_ttft
            remote += (
                view.queue_s, own, read, back, math.nan if windowed is None else windowed, view.queued,
                cached.get(view.worker, 0) if cached else 0, view.kv_use, now - view.used_at, rate,
            )  # fmt: skip
        return remote

    def _kind(self, task: PrefillTask, local: int, view: PrefillWorkerView) -> tuple[float, float, float, float]:
        """Return T_pre of the task on a worker, T_kv of its history there and of its increment back, and the rate."""
        profile = self._pools.get(view.pool, self._profile)
        own = prefill_seconds(task, degree=view.degree, profile=profile)
        try:
            if profile is self._profile:
                read = profile.t_kv(task.history, source=local, destination=view.degree)
                back = profile.t_kv(task.increment, source=view.degree, destination=local)
            else:
                there, home = self._between(local, view, profile)
                read, back = there.seconds(task.history), home.seconds(task.increment)
        except CostProfileError:
            return own, math.nan, math.nan, math.nan
        moved = self._profile.kv_bytes_per_token * task.increment
        return own, read, back, moved / back if back > 0 else math.inf

    def _between(self, local: int, view: PrefillWorkerView, profile: CostProfile) -> tuple[TransferCost, TransferCost]:
        """Return T_kv from the decode worker to a worker of another pool, and from there; worked out once."""
        key = local, view.degree, view.pool
        if key not in self._links:
            own, degree = self._profile, view.degree
            self._links[key] = (
                transfer_between(own, profile, source_degree=local, destination_degree=degree, link="inter-node"),
                transfer_between(profile, own, source_degree=degree, destination_degree=local, link="inter-node"),
            )
        return self._links[key]


class Binding:
    """The binding rule of a service; remembers whose turn it is."""

    def __init__(self, name: str) -> None:
        """Look the rule up.

        Raises:
            PolicyError: there is no such binding.
        """
        rule = BINDINGS.get(name)
        if rule is None:
            raise PolicyError(f"binding: {name!r} is not one of {', '.join(BINDINGS)}")
        self._code = rule.code
        self._last = ""

    def choose(
        self, workers: Sequence[BindingView], *, need: int, prefix_hit: Mapping[str, int] | None = None
    ) -> str | None:
        """Return the decode worker of a session that needs ``need`` tokens, None when none has room.

        Ties go to the first name; ``round-robin`` goes by name, on from the last chosen one, whoever joins or leaves.
        """
        ordered = sorted(workers, key=lambda view: view.worker)
        hits = prefix_hit or {}
        cursor = sum(view.worker <= self._last for view in ordered) if self._code == ROUND_ROBIN else 0
        chosen = bind(
            self._code,
            need,
            [view.kv_capacity - view.kv_used for view in ordered],
            [view.kv_capacity for view in ordered],
            [view.sessions for view in ordered],
            [hits.get(view.worker, 0) for view in ordered],
            [view.load for view in ordered],
            cursor,
        )
        if chosen < 0:
            return None
        self._last = ordered[chosen].worker
        return self._last
