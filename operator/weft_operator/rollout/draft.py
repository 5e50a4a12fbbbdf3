"""A draft of the replicas of all groups, with the capacity and the budget that it leaves."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from weft_core.layouts import ROLES, Role, duties_of
from weft_core.parallelism import gpus_of
from weft_operator.rollout.groups import GroupState, GroupTarget, RolloutLimits
from weft_operator.workers.roles import group_of

WorkersByRole = Mapping[Role, int]
"""GPUs of each role."""


@dataclass(frozen=True, slots=True)
class AvailabilityBounds:
    """GPUs of each role that must stay ready: ``soft`` without use of ``max_unavailable``, ``hard`` with it."""

    soft: WorkersByRole
    hard: WorkersByRole


class Draft:
    """The groups by key, the goal's replicas, and the drafted replicas, which moves change worker by worker.

    A group of the goal that does not exist yet is an empty group.
    """

    def __init__(self, groups: Iterable[GroupState], goal: Iterable[GroupTarget], limits: RolloutLimits) -> None:
        self.limits = limits
        self.want = {group.key: group.replicas for group in goal}
        self.groups = {group.key: empty(group) for group in goal} | {group.key: group for group in groups}
        self.asked = {key: group.asked for key, group in self.groups.items()}
        self.reserved: dict[str, int] = {}
        """Workers that each group will add once the GPUs of draining workers are free."""

    @property
    def changed(self) -> bool:
        """Return whether the draft differs from the current replicas."""
        return any(self.asked[key] != group.asked for key, group in self.groups.items())

    def missing(self, group: GroupState) -> int:
        """Return the number of workers that the draft lacks for the goal."""
        return max(0, self.want.get(group.key, 0) - self.asked[group.key])

    def surplus(self, group: GroupState) -> int:
        """Return the number of drafted workers beyond the goal."""
        return max(0, self.asked[group.key] - self.want.get(group.key, 0))

    def serving(self, group: GroupState) -> int:
        """Return the number of ready workers that stay: a scale-down removes unready workers first."""
        return min(self.asked[group.key], group.ready)

    def usable(self) -> WorkersByRole:
        """Return the GPUs of each role that serve; a prefill worker needs a decode worker of its revision.

        A decode worker serves alone, because it can prefill too. A worker of both roles counts for each.
        """
        total: dict[Role, int] = dict.fromkeys(ROLES, 0)
        paired = {group.revision for group in self.groups.values() if group.decodes and self.serving(group)}
        for group in self.groups.values():
            if group.decodes or group.revision in paired:
                for role in duties_of(group.role):
                    total[role] += gpus_of(group.degree) * self.serving(group)
        return total

    def switchable(self, group: GroupState) -> int:
        """Return how many surplus workers could change their role to the one of this group."""
        name = group_of(group.key)
        return sum(self.surplus(one) for key, one in self.groups.items() if key != group.key and group_of(key) == name)

    def may_switch(self, group: GroupState, taker: GroupState, bound: WorkersByRole, *, outage: bool = False) -> bool:
        """Return whether a surplus worker of one group may change its role to the taker's.

        It counts for neither role until it confirms the new one. Without ``outage`` the last decode worker stays until
        another one is ready.
        """
        if not self.surplus(group) or group.key == taker.key or group_of(group.key) != group_of(taker.key):
            return False
        if not self.may_lower(group, bound, unpaired=True, outage=outage):
            return False
        before = self.usable()
        self.asked[group.key] -= 1
        after = self.usable()
        self.asked[group.key] += 1
        return outage or after["decode"] > 0 or before["decode"] == 0

    def has_decode(self, revision: str) -> bool:
        """Return whether a decode worker of a revision that stays is drafted or reserved."""
        return any(
            group.decodes
            and group.revision == revision
            and min(self.want.get(key, 0), self.asked[key] + self.reserved.get(key, 0)) > 0
            for key, group in self.groups.items()
        )

    def free_now(self, pool: str) -> float:
        """Return the GPUs of a pool that are free now: no existing or draining pod can hold them."""
        return self._within(pool, self._held)

    def free_after_drain(self, pool: str) -> float:
        """Return the GPUs of a pool that are free after all drains; negative where the draft exceeds the limits."""
        return self._within(pool, lambda group: self.asked[group.key] + self.reserved.get(group.key, 0))

    def draining_gpus(self, pool: str) -> int:
        """Return the GPUs of a pool that draining workers hold."""
        return sum(
            gpus_of(group.degree) * (self._held(group) - self.asked[group.key])
            for group in self.groups.values()
            if group.pool == pool
        )

    def may_lower(
        self, group: GroupState, bound: WorkersByRole, *, unpaired: bool = False, outage: bool = False
    ) -> bool:
        """Return whether a group may lose one worker: each role that loses ready GPUs by it stays at its bound.

        An unready worker costs none. With ``unpaired`` a ready worker without a partner costs none either. With
        ``outage`` the last decode worker may go where its bound allows that, although prefill workers then idle.
        """
        if group.decodes and self.asked[group.key] == 1 and self._leaves_prefill(group, outage=outage):
            return False
        if self.asked[group.key] > group.ready:
            return True
        before = self.usable()
        self.asked[group.key] -= 1
        after = self.usable()
        self.asked[group.key] += 1
        touched = [role for role in ROLES if role in duties_of(group.role) or after[role] != before[role]]
        if outage and group.decodes and not after["decode"]:
            touched = ["decode"]
        return all(after[role] >= bound[role] or (unpaired and after[role] == before[role]) for role in touched)

    def _leaves_prefill(self, group: GroupState, *, outage: bool) -> bool:
        """Return whether the last decode worker of a revision would go before prefill workers that pair with it.

        Surplus prefill workers go first. Those that stay may wait for their next decode worker, but never beside
        decode workers of another revision, drafted or existing.
        """
        others = [one for one in self.groups.values() if one.key != group.key]
        mine = [one for one in others if one.revision == group.revision and self.asked[one.key]]
        if any(one.decodes for one in mine):
            return False
        prefill = [one for one in mine if one.role == "prefill"]
        other_revision = any(one.decodes and (one.asked or self.asked[one.key]) for one in others)
        return any(other_revision or (self.surplus(one) and not outage) for one in prefill)

    def _held(self, group: GroupState) -> int:
        return max(group.held, self.asked[group.key] + group.draining)

    def _within(self, pool: str, count: Callable[[GroupState], int]) -> float:
        used = dict.fromkeys((group.pool for group in self.groups.values()), 0)
        for group in self.groups.values():
            used[group.pool] += gpus_of(group.degree) * count(group)
        return self.limits.left(pool, used)


def empty(group: GroupTarget) -> GroupState:
    """Return the state of a planned group that does not exist yet."""
    return GroupState(
        key=group.key, role=group.role, degree=group.degree, pool=group.pool, revision=group.revision, asked=0
    )


def bounds(old: Iterable[GroupTarget], new: Iterable[GroupTarget], draft: Draft) -> AvailabilityBounds:
    """Return the GPUs that must stay ready during a rollout from one plan to another.

    soft = min(old, new) in GPUs of ready workers; hard = soft - max_unavailable * the largest degree of the role in
    either plan or among existing workers.
    """
    soft: dict[Role, int] = {}
    hard: dict[Role, int] = {}
    plans = (tuple(old), tuple(new))
    for role in ROLES:
        soft[role] = min(
            sum(gpus_of(one.degree) * one.replicas for one in plan if role in duties_of(one.role)) for plan in plans
        )
        sizes = [gpus_of(one.degree) for plan in plans for one in plan if role in duties_of(one.role) and one.replicas]
        sizes += [gpus_of(one.degree) for one in draft.groups.values() if role in duties_of(one.role) and one.held]
        hard[role] = max(0, soft[role] - draft.limits.max_unavailable * max(sizes, default=0))
    return AvailabilityBounds(soft, hard)
