"""What would be asked of the groups after this pass, and what that would leave of capacity and of the budget."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from weft_core.layouts import ROLES, Role
from weft_operator.rollout.groups import GroupState, GroupTarget, RolloutLimits

WorkersByRole = Mapping[Role, int]
"""GPUs of each role."""


@dataclass(frozen=True, slots=True)
class AvailabilityBounds:
    """GPUs of each role that must stay ready: ``soft`` where nothing needs to be given up, ``hard`` in any case."""

    soft: WorkersByRole
    hard: WorkersByRole


class Draft:
    """The groups by key, what the goal wants of each, and what is asked, changed worker by worker.

    A group of the goal that is not there yet is one with nothing in it.
    """

    def __init__(self, groups: Iterable[GroupState], goal: Iterable[GroupTarget], limits: RolloutLimits) -> None:
        self.limits = limits
        self.want = {group.key: group.replicas for group in goal}
        self.groups = {group.key: empty(group) for group in goal} | {group.key: group for group in groups}
        self.asked = {key: group.asked for key, group in self.groups.items()}
        self.reserved: dict[str, int] = {}
        """Workers of which each group will ask more as soon as what leaves is gone."""

    @property
    def changed(self) -> bool:
        """Tell whether anything else is asked than before."""
        return any(self.asked[key] != group.asked for key, group in self.groups.items())

    def missing(self, group: GroupState) -> int:
        """Return how many more workers the goal wants than are asked for."""
        return max(0, self.want.get(group.key, 0) - self.asked[group.key])

    def surplus(self, group: GroupState) -> int:
        """Return how many workers are asked for and not wanted."""
        return max(0, self.asked[group.key] - self.want.get(group.key, 0))

    def serving(self, group: GroupState) -> int:
        """Return how many ready workers stay: where fewer are asked for, those that are not ready go first."""
        return min(self.asked[group.key], group.ready)

    def usable(self) -> WorkersByRole:
        """Return the GPUs of each role that serve: a prefill worker does only beside a decode worker of its revision.

        A decode worker serves alone, for it may prefill too.
        """
        total: dict[Role, int] = dict.fromkeys(ROLES, 0)
        paired = {group.revision for group in self.groups.values() if group.role == "decode" and self.serving(group)}
        for group in self.groups.values():
            if group.role == "decode" or group.revision in paired:
                total[group.role] += group.degree * self.serving(group)
        return total

    def has_decode(self, revision: str) -> bool:
        """Tell whether a decode worker of a revision that is to stay is asked for, or has a place kept for it."""
        return any(
            group.role == "decode"
            and group.revision == revision
            and min(self.want.get(key, 0), self.asked[key] + self.reserved.get(key, 0)) > 0
            for key, group in self.groups.items()
        )

    def room(self, pool: str) -> float:
        """Return the GPUs of a pool that may be taken at once: no pod that may be there now has them."""
        return self._within(pool, self._held)

    def room_later(self, pool: str) -> float:
        """Return the same for when all that leaves is gone; below 0 where more is asked for than there is."""
        return self._within(pool, lambda group: self.asked[group.key] + self.reserved.get(group.key, 0))

    def leaving(self, pool: str) -> int:
        """Return the GPUs of a pool whose pods are on their way out."""
        return sum(
            group.degree * (self._held(group) - self.asked[group.key])
            for group in self.groups.values()
            if group.pool == pool
        )

    def may_lower(
        self, group: GroupState, bound: WorkersByRole, *, useless: bool = False, outage: bool = False
    ) -> bool:
        """Tell whether one worker less of a group leaves each role that it costs at its bound.

        A worker that is not ready costs nothing. ``useless``: nor does a ready one that has none to pair with.
        ``outage``: where the bound lets the last decode worker of all go, what prefill workers lose by it is no more.
        """
        if group.role == "decode" and self.asked[group.key] == 1 and self._leaves_prefill(group, outage=outage):
            return False
        if self.asked[group.key] > group.ready:
            return True
        before = self.usable()
        self.asked[group.key] -= 1
        after = self.usable()
        self.asked[group.key] += 1
        touched = [role for role in ROLES if role == group.role or after[role] != before[role]]
        if outage and group.role == "decode" and not after["decode"]:
            touched = ["decode"]
        return all(after[role] >= bound[role] or (useless and after[role] == before[role]) for role in touched)

    def _leaves_prefill(self, group: GroupState, *, outage: bool) -> bool:
        """Tell whether the last decode worker of a revision would go before prefill workers that pair with it.

        Those that are to go too go first. Those that stay may wait for their next decode worker alone, but never
        beside decode workers of another revision, asked for now or until this pass.
        """
        others = [one for one in self.groups.values() if one.key != group.key]
        mine = [one for one in others if one.revision == group.revision and self.asked[one.key]]
        if any(one.role == "decode" for one in mine):
            return False
        prefill = [one for one in mine if one.role == "prefill"]
        strange = any(one.role == "decode" and (one.asked or self.asked[one.key]) for one in others)
        return any(strange or (self.surplus(one) and not outage) for one in prefill)

    def _held(self, group: GroupState) -> int:
        return max(group.held, self.asked[group.key] + group.draining)

    def _within(self, pool: str, count: Callable[[GroupState], int]) -> float:
        used = dict.fromkeys((group.pool for group in self.groups.values()), 0)
        for group in self.groups.values():
            used[group.pool] += group.degree * count(group)
        return self.limits.left(pool, used)


def empty(group: GroupTarget) -> GroupState:
    """Return a group of a plan as long as there is nothing of it."""
    return GroupState(
        key=group.key, role=group.role, degree=group.degree, pool=group.pool, revision=group.revision, asked=0
    )


def bounds(old: Iterable[GroupTarget], new: Iterable[GroupTarget], draft: Draft) -> AvailabilityBounds:
    """Return what must stay ready on the way between two plans.

    soft = min(old, new) in GPUs of ready workers; hard = soft - max_unavailable * the largest worker of the role that
    either plan has or that is there.
    """
    soft: dict[Role, int] = {}
    hard: dict[Role, int] = {}
    plans = (tuple(old), tuple(new))
    for role in ROLES:
        soft[role] = min(sum(one.degree * one.replicas for one in plan if one.role == role) for plan in plans)
        sizes = [one.degree for plan in plans for one in plan if one.role == role and one.replicas]
        sizes += [one.degree for one in draft.groups.values() if one.role == role and one.held]
        hard[role] = max(0, soft[role] - draft.limits.max_unavailable * max(sizes, default=0))
    return AvailabilityBounds(soft, hard)
