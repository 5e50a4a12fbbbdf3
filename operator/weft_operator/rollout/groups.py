"""The inputs of a rollout: the groups as they are, those of a plan, and the limits in between."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from weft_core.layouts import Role

ROUNDING = 1e-6
"""GPUs by which a sum of prices may be off: a plan that costs just what it may is within the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupIdentity:
    """Workers of one role, degree, pool and pod template; ``revision`` names what may exchange KV with it."""

    key: str
    role: Role
    degree: int
    pool: str
    revision: str

    def workers(self, count: int) -> str:
        """Return so many of its workers in words: 2 decode workers of 4 GPUs in pool h100."""
        plural = "" if count == 1 else "s"
        gpus = "1 GPU" if self.degree == 1 else f"{self.degree} GPUs"
        return f"{count} {self.role} worker{plural} of {gpus} in pool {self.pool}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTarget(GroupIdentity):
    """A group of a plan, with as many workers as the plan has."""

    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState(GroupIdentity):
    """A group as it is.

    ``asked`` is what was last asked of it. ``ready`` and ``starting`` are the workers that are to stay; ``draining``
    those that were told to go and whose pods are still there. ``unschedulable`` of the starting ones have a pod for
    which the scheduler finds no node. ``since``: since when the worker that waits longest is what it is, not yet
    scheduled or scheduled and not ready (of a worker without a pod: since it was asked for); None where none waits.
    ``trouble`` says what keeps it. ``settled``: the group's controller has acted on what was asked.
    """

    asked: int
    ready: int = 0
    starting: int = 0
    draining: int = 0
    unschedulable: int = 0
    since: datetime | None = None
    trouble: str = ""
    settled: bool = True

    @property
    def held(self) -> int:
        """Return how many workers hold GPUs, or may at any moment: those asked for and not yet made, too."""
        return max(self.asked, self.ready + self.starting) + self.draining


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits:
    """What a transition may take.

    ``gpus`` is the budget, ``pools`` the GPUs of pools that have a bound of their own, ``per_hour`` the most that all
    GPUs may cost an hour at the ``prices`` of one in each pool. ``max_unavailable`` workers of each role
    may be missing on the way. A new worker may take ``start_s`` to get ready once it is scheduled, and
    ``unschedulable_s`` to be scheduled, on top of one drain (``drain_s``). Where it is not scheduled for
    ``make_room_s``, old workers are drained to make room. All in seconds.
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
        """Return how many GPUs of a pool may be taken beside those ``used`` of each; below 0 where these are too many.

        Not whole where money is what is left.
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
    """Tell whether a plan as a whole stays within GPUs, pools and money."""
    return not beyond(plan, limits)


def beyond(plan: Iterable[GroupTarget], limits: RolloutLimits) -> float:
    """Return how far a plan is beyond its limits, in GPUs that each of its pools lacks; 0 where it fits."""
    total: dict[str, int] = {}
    for group in plan:
        total[group.pool] = total.get(group.pool, 0) + group.degree * group.replicas
    return sum(max(0.0, -limits.left(pool, total)) for pool in total)
