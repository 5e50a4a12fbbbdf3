"""The inputs of a rollout: the groups there are, those of a plan, and the limits on the way."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from weft_core.layouts import WorkerRole
from weft_core.parallelism import Degree, gpus_of, gpus_words

ROUNDING = 1e-6
"""Rounding error of a sum of prices, in GPUs: a plan that costs exactly the budget is within it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupIdentity:
    """Workers of one role, degree, pool and pod template; workers of the same ``revision`` can exchange KV.

    Where roles can change, the workers of one WorkerGroup are one group for each role; their ``key`` says both.
    """

    key: str
    role: WorkerRole
    degree: Degree
    pool: str
    revision: str

    @property
    def decodes(self) -> bool:
        """Return whether its workers have sessions of their own."""
        return self.role != "prefill"

    def workers(self, count: int) -> str:
        """Return a phrase for so many of its workers, such as "2 decode workers of 4 GPUs in pool h100"."""
        plural = "" if count == 1 else "s"
        gpus = gpus_words(self.degree)
        role = "prefill and decode" if self.role == "both" else self.role
        return f"{count} {role} worker{plural} of {gpus} in pool {self.pool}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTarget(GroupIdentity):
    """A group of a plan with its number of workers."""

    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState(GroupIdentity):
    """The observed state of a group.

    ``asked`` is its ``spec.replicas``. ``ready`` and ``starting`` count the workers that stay, ``draining`` those that
    leave and whose pods still exist. The ``switching`` workers, which change their role, are among the starting ones of
    their new role. ``unschedulable`` of the starting workers have a pod without a node. ``since`` is the time at which
    the worker that waits longest entered its state (unscheduled, scheduled and not ready, or switching; without a pod:
    requested); None where none waits. ``trouble`` says why that worker is not ready. ``settled``: the group's
    controller has acted on ``asked``.
    """

    asked: int
    ready: int = 0
    starting: int = 0
    switching: int = 0
    draining: int = 0
    unschedulable: int = 0
    since: datetime | None = None
    trouble: str = ""
    settled: bool = True

    @property
    def held(self) -> int:
        """Return the number of workers that hold GPUs or may at any moment, including those not yet created."""
        return max(self.asked, self.ready + self.starting) + self.draining


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits:
    """The limits of a rollout; times are in seconds.

    ``gpus`` is the budget of the service, ``pools`` the GPUs of those pools that have one, ``per_hour`` the highest
    price of all GPUs for an hour, at the ``prices`` of one GPU of each pool. ``max_unavailable`` workers of each role
    may be missing. A new worker may take ``start_s`` from scheduled to ready, and ``unschedulable_s`` plus one drain
    (``drain_s``) until it is scheduled. One that changes its role may hand sessions over for ``drain_s`` on top of
    ``start_s``. Old workers are drained for one that is unschedulable for ``make_room_s``.
    """

    gpus: int
    max_unavailable: int = 1
    start_s: float = 1800.0
    unschedulable_s: float = 600.0
    drain_s: float = 60.0
    make_room_s: float = 10.0
    pools: Mapping[str, int] = field(default_factory=dict)
    per_hour: float | None = None
    prices: Mapping[str, float] = field(default_factory=dict)

    def left(self, pool: str, used: Mapping[str, int]) -> float:
        """Return the free GPUs of a pool, given those ``used`` of each; negative where these are too many.

        It is not an integer where the price is the limit.
        """
        left: float = self.gpus - sum(used.values())
        if pool in self.pools:
            left = min(left, self.pools[pool] - used.get(pool, 0))
        price = self.prices.get(pool, 0.0)
        if self.per_hour is not None and price:
            spent = sum(self.prices.get(name, 0.0) * gpus for name, gpus in used.items())
            left = min(left, (self.per_hour - spent) / price + ROUNDING)
        return left


def fits(plan: Iterable[GroupTarget], limits: RolloutLimits) -> bool:
    """Return whether a plan is within the limits on GPUs, pools and price."""
    return not beyond(plan, limits)


def beyond(plan: Iterable[GroupTarget], limits: RolloutLimits) -> float:
    """Return the number of GPUs by which a plan exceeds the limits, summed over its pools; 0 where it fits."""
    total: dict[str, int] = {}
    for group in plan:
        total[group.pool] = total.get(group.pool, 0) + gpus_of(group.degree) * group.replicas
    return sum(max(0.0, -limits.left(pool, total)) for pool in total)
