"""A small world for rollouts of groups whose workers' roles can change: their controllers, pods and sidecars.

Like rollout_world, it checks what is true at every moment and knows nothing of how a step is chosen.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Literal

from weft_core.layouts import ROLES, WORKER_ROLES, Role, WorkerRole, duties_of
from weft_core.parallelism import gpus_of
from weft_operator.rollout.advance import RolloutStep, advance
from weft_operator.rollout.groups import GroupState, GroupTarget, RolloutLimits
from weft_operator.rollout.ledger import Ledger, ledger_json, read_ledger
from weft_operator.workers.roles import assign_roles, group_of, is_role_key, role_key, role_of_key

START = datetime(2026, 1, 1, tzinfo=UTC)
FORCED = "beyond spec.rollout.maxUnavailable"


def targets(name: str, degree: int, **roles: int) -> tuple[GroupTarget, ...]:
    """Return the workers of a group by role: prefill, decode, both."""
    return tuple(
        GroupTarget(key=role_key(name, role), role=role, degree=degree, pool="h100", revision="a", replicas=roles[role])
        for role in WORKER_ROLES
        if roles.get(role)
    )


def fixed(role: Role, degree: int, replicas: int) -> GroupTarget:
    """Return a group with one role for good."""
    key = f"{role[0]}{degree}"
    return GroupTarget(key=key, role=role, degree=degree, pool="h100", revision="a", replicas=replicas)


@dataclass
class Member:
    """One worker: the role it is given, the role its sidecar has, and its pod."""

    name: str
    role: WorkerRole
    confirmed: WorkerRole
    phase: Literal["starting", "ready", "draining"] = "starting"


@dataclass
class Group:
    """One WorkerGroup: how many workers of each role it is asked for, and those that it has."""

    name: str
    degree: int
    is_fixed: bool
    asked: dict[WorkerRole, int]
    settled: bool = False
    members: list[Member] = field(default_factory=list)

    @property
    def staying(self) -> list[Member]:
        """Return the workers that do not drain."""
        return [member for member in self.members if member.phase != "draining"]


@dataclass
class RoleWorld:
    """A service on its way from plan to plan; ``started`` and ``drained`` count workers, ``switched`` changed roles."""

    target: tuple[GroupTarget, ...]
    limits: RolloutLimits
    rng: random.Random
    groups: dict[str, Group] = field(default_factory=dict)
    ledger: str | None = None
    now: datetime = START
    names: Iterator[int] = field(default_factory=count)
    started: int = 0
    drained: int = 0
    switched: int = 0
    forced: bool = False

    def seen(self) -> list[GroupState]:
        """Return the groups as the operator observes them."""
        return [state for group in self.groups.values() for state in self._states(group)]

    def operate(self, *, writes: int = 1000) -> RolloutStep:
        """Make one pass that is killed after so many writes."""
        before = read_ledger(self.ledger)
        step = advance(self.seen(), self.target, before, self.limits, inputs_hash="q", now=self.now)
        self.forced |= FORCED in step.message
        if writes == 0:
            return step
        self.ledger = ledger_json(step.ledger)
        for name in dict.fromkeys(group_of(key) for key in step.replicas):
            writes -= 1
            if writes <= 0:
                break
            asked = {key: number for key, number in step.replicas.items() if group_of(key) == name}
            self._ask(name, asked, step.ledger)
        self.check(step.ledger)
        return step

    def _ask(self, name: str, asked: dict[str, int], ledger: Ledger) -> None:
        group = self.groups.get(name)
        if group is None:
            known = next(one for one in (*self.target, *ledger.base) if group_of(one.key) == name)
            group = Group(name, gpus_of(known.degree), not is_role_key(known.key), dict.fromkeys(WORKER_ROLES, 0))
            self.groups[name] = group
            if group.is_fixed:
                group.asked = {known.role: 0}
        wanted = dict(group.asked)
        for key, number in asked.items():
            role = next((one for one in WORKER_ROLES if one == role_of_key(key)), next(iter(group.asked)))
            wanted[role] = number
        if wanted != group.asked:
            group.asked, group.settled = wanted, False

    def control(self, name: str) -> None:
        """Let a group's controller create, drain and relabel its workers."""
        group = self.groups[name]
        order = {"ready": 0, "starting": 1}
        staying = sorted(group.staying, key=lambda member: (order[member.phase], member.name))
        found = assign_roles(group.asked, [(member.name, member.role) for member in staying])
        for member in staying:
            role = found.kept.get(member.name)
            if role is None:
                member.phase = "draining"
                self.drained += 1
            elif role != member.role:
                member.role = role
                self.switched += 1
                if member.phase == "starting":
                    member.confirmed = role
        for role in found.new:
            self.started += 1
            group.members.append(Member(f"{name}-{next(self.names)}", role, role))
        group.settled = True
        self.check(read_ledger(self.ledger))

    def pass_time(self, seconds: float) -> None:
        """Let time pass: some pods get ready or end, and some sidecars follow their role."""
        self.now += timedelta(seconds=seconds)
        for group in self.groups.values():
            for member in list(group.members):
                if self.rng.random() < 0.5:
                    continue
                if member.phase == "draining":
                    group.members.remove(member)
                elif member.phase == "starting":
                    member.phase = "ready"
                else:
                    member.confirmed = member.role

    def settle(self) -> RolloutStep:
        """Let everything go on until nothing changes any more."""
        for _ in range(300):
            for name in self.groups:
                self.control(name)
            self.pass_time(1.0)
            step = self.operate()
            if step.outcome in ("Complete", "RolledBack") and self._at_rest():
                return step
        raise AssertionError(f"does not end: {step}")

    def _at_rest(self) -> bool:
        return all(
            group.settled and all(one.phase == "ready" and one.role == one.confirmed for one in group.members)
            for group in self.groups.values()
        )

    def serving(self) -> dict[Role, int]:
        """Return the GPUs of each duty that serve: by workers that have confirmed their role."""
        total: dict[Role, int] = dict.fromkeys(ROLES, 0)
        for group in self.groups.values():
            for member in group.staying:
                if member.phase == "ready" and member.confirmed == member.role:
                    for role in duties_of(member.role):
                        total[role] += group.degree
        return total

    def check(self, ledger: Ledger | None) -> None:
        """Fail where there are too many GPUs, or where too few of a role serve."""
        gpus = sum(group.degree * len(group.members) for group in self.groups.values())
        assert gpus <= self.limits.gpus, f"{gpus} GPUs of {self.limits.gpus}"
        if ledger is None or not ledger.base or self.forced:
            return
        serving = self.serving()
        for role, least in self.floor(ledger).items():
            if role == "prefill" and not serving["decode"]:
                continue
            assert serving[role] >= least, f"{role}: {serving}, floor {least}"

    def floor(self, ledger: Ledger) -> dict[Role, int]:
        """Return the GPUs of each role that must serve: those of the lower plan less what may be missing."""
        found: dict[Role, int] = {}
        for role in ROLES:
            plans = [[one for one in plan if role in duties_of(one.role)] for plan in (ledger.base, self.target)]
            lower = min(sum(gpus_of(one.degree) * one.replicas for one in plan) for plan in plans)
            sizes = [gpus_of(one.degree) for plan in plans for one in plan if one.replicas]
            sizes += [group.degree for group in self.groups.values() if group.members]
            found[role] = lower - self.limits.max_unavailable * max(sizes, default=0)
        return found

    def counts(self) -> dict[str, int]:
        """Return how many workers have each role, by key."""
        found: dict[str, int] = {}
        for group in self.groups.values():
            for member in group.staying:
                key = group.name if group.is_fixed else role_key(group.name, member.role)
                found[key] = found.get(key, 0) + 1
        return found

    def _states(self, group: Group) -> list[GroupState]:
        states = []
        for role, asked in group.asked.items():
            mine = [member for member in group.members if member.role == role]
            staying = [member for member in mine if member.phase != "draining"]
            ready = sum(member.phase == "ready" and member.confirmed == role for member in staying)
            waits = len(staying) - ready or asked > len(staying)
            states.append(
                GroupState(
                    key=group.name if group.is_fixed else role_key(group.name, role),
                    role=role,
                    degree=group.degree,
                    pool="h100",
                    revision="a",
                    asked=asked,
                    ready=ready,
                    starting=len(staying) - ready,
                    switching=sum(member.phase == "ready" and member.confirmed != role for member in staying),
                    draining=len(mine) - len(staying),
                    since=self.now if waits else None,
                    settled=group.settled,
                )
            )
        return states


def carried_out(plan: Sequence[GroupTarget], limits: RolloutLimits, *, seed: int) -> RoleWorld:
    """Return a world in which a first plan was carried out."""
    world = RoleWorld(tuple(plan), limits, random.Random(seed))
    assert world.settle().outcome == "Complete"
    assert world.counts() == replicas(plan)
    world.started = world.drained = world.switched = 0
    return world


def replicas(plan: Sequence[GroupTarget]) -> dict[str, int]:
    """Return how many workers a plan has of each role, by key."""
    return {one.key: one.replicas for one in plan if one.replicas}
