"""A small world for transitions: groups with their controllers, pods, nodes, and an operator killed at any write.

Nothing here knows how a step is chosen: the world checks what is true of it at every moment.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

from weft_core.layouts import Role
from weft_core.parallelism import gpus_of
from weft_operator.rollout.advance import RolloutStep, advance
from weft_operator.rollout.canary import CanaryRequest
from weft_operator.rollout.groups import GroupIdentity, GroupState, GroupTarget, RolloutLimits, fits
from weft_operator.rollout.ledger import Ledger, ledger_json, read_ledger, target_hash

START = datetime(2026, 1, 1, tzinfo=UTC)
FORCED = "beyond spec.rollout.maxUnavailable"


def group(
    role: Role,
    degree: int,
    replicas: int,
    revision: str = "a",
    *,
    pool: str = "h100",
    template: str = "",
) -> GroupTarget:
    """Return a group of a plan; its key names all but the number of its workers."""
    key = f"{role[0]}{degree}-{pool}-{revision}{template}"
    return GroupTarget(key=key, role=role, degree=degree, pool=pool, revision=revision, replicas=replicas)


@dataclass
class Pod:
    """One worker and its pod; ``since`` as in a GroupState, ``until`` is when the pod leaves its phase by itself."""

    phase: Literal["pending", "starting", "ready", "draining"]
    since: datetime
    until: datetime | None = None


@dataclass
class Live:
    """A group in the cluster: its spec with a generation, its pods, and how far its controller is.

    ``read`` is what the controller read and has not acted on yet.
    """

    group: GroupIdentity
    asked: int
    asked_at: datetime
    generation: int = 1
    acted: int = 0
    read: tuple[int, int] | None = None
    pods: list[Pod] = field(default_factory=list)

    def count(self, *phases: str) -> int:
        """Return how many pods are in one of some phases."""
        return sum(pod.phase in phases for pod in self.pods)


@dataclass
class World:
    """A service on its way from plan to plan. ``bad`` are groups whose workers never start; ``nodes`` GPUs of pools.

    With a ``percent`` plans are tried on so many of the new sessions for ``window_s``; those of which a group is in
    ``worse`` then fail.
    """

    target: tuple[GroupTarget, ...]
    limits: RolloutLimits
    nodes: dict[str, int]
    rng: random.Random
    bad: set[str] = field(default_factory=set)
    percent: int = 0
    worse: set[str] = field(default_factory=set)
    window_s: float = 120.0
    tried: set[str] = field(default_factory=set)
    """Hashes of plans that had a canary."""
    question: str = "q0"
    start_s: tuple[float, float] = (20.0, 90.0)
    drain_s: tuple[float, float] = (1.0, 60.0)
    now: datetime = START
    live: dict[str, Live] = field(default_factory=dict)
    ledger: str | None = None
    last: RolloutStep | None = None
    forced: int = 0

    # What the operator does.

    def seen(self) -> list[GroupState]:
        """Return the groups as the operator observes them."""
        return [self._state(one) for one in self.live.values()]

    def operate(self, writes: int | None = None) -> RolloutStep:
        """Make one pass; ``writes``: how many writes it lives to make, None for all."""
        kept = read_ledger(self.ledger)
        canary = self._canary(kept)
        step = advance(
            self.seen(), self.target, kept, self.limits, inputs_hash=self.question, now=self.now, canary_request=canary
        )
        self._check_trial(kept, step)
        left = 10**6 if writes is None else writes
        if kept != step.ledger:
            if left == 0:
                return step
            left -= 1
            self.ledger = ledger_json(step.ledger)
        if FORCED in step.message:
            self.forced += 1
            assert step.outcome == "RollingBack", step
        for key, replicas in step.replicas.items():
            found = self.live.get(key)
            if replicas == (found.asked if found is not None else 0):
                continue
            if left == 0:
                return step
            left -= 1
            self._ask(key, replicas, step)
        for key in step.retire:
            assert not self.live[key].pods, f"{key} is retired and has workers"
            del self.live[key]
        self.last = step
        return step

    def _canary(self, kept: Ledger | None) -> CanaryRequest | None:
        if not self.percent:
            return None
        trial = None if kept is None else kept.canary
        if trial is None or trial.since is None or trial.plan != target_hash(self.target):
            return CanaryRequest(self.percent)
        if (self.now - trial.since).total_seconds() < self.window_s:
            return CanaryRequest(self.percent)
        good = not any(group.key in self.worse for group in self.target)
        return CanaryRequest(self.percent, passed=good, message="it was good" if good else "it did worse")

    def _check_trial(self, kept: Ledger | None, step: RolloutStep) -> None:
        trial, base = step.ledger.canary, () if kept is None else kept.base
        if step.outcome == "Canary":
            assert trial is not None
            assert trial.since is not None
            self.tried.add(trial.plan)
        another = bool(base) and target_hash(base) != target_hash(self.target) and fits(base, self.limits)
        if step.outcome == "Complete" and self.percent and another:
            assert target_hash(self.target) in self.tried, f"carried out without a trial: {step}"
            assert not any(group.key in self.worse for group in self.target), f"a plan that failed is kept: {step}"
        share = step.share
        if share is not None:
            assert sum(gpus_of(one.degree) * one.replicas for one in share.goal) <= self.limits.gpus
            assert 1 <= share.percent <= self.percent
            for role in ("decode", "prefill"):
                new = [one for one in share.canary if one.role == role]
                assert role == "prefill" or new, "new sessions are sent to workers that are not there"

    def _ask(self, key: str, replicas: int, step: RolloutStep) -> None:
        before = self.usable()
        found = self.live.get(key)
        if found is None:
            known = [*self.target, *step.ledger.base]
            of = next(one for one in known if one.key == key)
            found = self.live[key] = Live(of, 0, self.now)
        was = found.asked
        found.asked, found.asked_at = replicas, self.now
        found.generation += 1
        self._check_pairs(found, was)
        if replicas < was and FORCED not in step.message:
            self._check_floor(before, self.usable(), step)

    # What happens by itself.

    def controller_reads(self, key: str) -> None:
        """Let a group's controller read its spec; it acts on it later."""
        one = self.live[key]
        one.read = one.read or (one.generation, one.asked)

    def controller_acts(self, key: str) -> None:
        """Let it make or remove workers for what it read, and say that it did."""
        one = self.live[key]
        if one.read is None:
            return
        generation, asked = one.read
        staying = [pod for pod in one.pods if pod.phase != "draining"]
        for _ in range(asked - len(staying)):
            one.pods.append(Pod("pending", self.now))
        order = {"pending": 0, "starting": 1, "ready": 2}
        for pod in sorted(staying, key=lambda pod: order[pod.phase])[: max(0, len(staying) - asked)]:
            pod.until = self.now + timedelta(seconds=self.rng.uniform(*self.drain_s) if pod.phase == "ready" else 1.0)
            pod.phase = "draining"
        one.acted, one.read = generation, None
        self.check()

    def pass_time(self, seconds: float) -> None:
        """Let time pass: pods end, find nodes and get ready."""
        self.now += timedelta(seconds=seconds)
        for one in self.live.values():
            for pod in [pod for pod in one.pods if pod.phase == "draining" and self._due(pod)]:
                one.pods.remove(pod)
        for one in self.live.values():
            for pod in one.pods:
                if pod.phase == "pending" and self._free(one.group.pool) >= gpus_of(one.group.degree):
                    pod.phase, pod.since = "starting", self.now
                    pod.until = None
                    if one.group.key not in self.bad:
                        pod.until = self.now + timedelta(seconds=self.rng.uniform(*self.start_s))
                elif pod.phase == "starting" and self._due(pod):
                    pod.phase, pod.since, pod.until = "ready", self.now, None
        self.check()

    def crash(self) -> None:
        """Let one ready worker lose its readiness for a while."""
        pods = [pod for one in self.live.values() for pod in one.pods if pod.phase == "ready"]
        if pods:
            pod = self.rng.choice(pods)
            pod.phase, pod.since = "starting", self.now
            pod.until = self.now + timedelta(seconds=self.rng.uniform(5, 60))

    def settle(self, rounds: int = 400) -> RolloutStep:
        """Let everything go on without further failures until nothing is asked any more; return the last step."""
        calm = 0
        for _ in range(rounds):
            for key in list(self.live):
                self.controller_reads(key)
                self.controller_acts(key)
            self.pass_time(60.0)
            before = {key: one.asked for key, one in self.live.items()}
            step = self.operate()
            still = before == {key: one.asked for key, one in self.live.items()}
            calm = calm + 1 if still and step.outcome in ("Complete", "RolledBack") else 0
            if calm >= 2:
                return step
        raise AssertionError(f"does not end: {self.last}")

    # What must be true at every moment.

    def gpus(self) -> int:
        """Return the GPUs of all pods that are not gone, those on their way out included."""
        return sum(gpus_of(one.group.degree) * len(one.pods) for one in self.live.values())

    def usable(self) -> dict[str, int]:
        """Return the GPUs of each role that serve and are to stay: prefill only beside decode of its revision."""
        serving = {key: min(one.asked, one.count("ready")) for key, one in self.live.items()}
        paired = {one.group.revision for key, one in self.live.items() if one.group.role == "decode" and serving[key]}
        total = {"prefill": 0, "decode": 0}
        for key, one in self.live.items():
            if one.group.role == "decode" or one.group.revision in paired:
                total[one.group.role] += gpus_of(one.group.degree) * serving[key]
        return total

    def check(self) -> None:
        """Fail where the pods hold more GPUs than the budget, than their pool has, or than may be paid for."""
        assert self.gpus() <= self.limits.gpus, f"{self.gpus()} GPUs of {self.limits.gpus}"
        held = {one.group.pool: 0 for one in self.live.values()}
        for one in self.live.values():
            held[one.group.pool] += gpus_of(one.group.degree) * len(one.pods)
        for pool, gpus in held.items():
            assert gpus <= self.limits.pools.get(pool, gpus), f"{gpus} GPUs of {self.limits.pools[pool]} in {pool}"
        if self.limits.per_hour is not None:
            cost = sum(self.limits.prices[pool] * gpus for pool, gpus in held.items())
            assert cost <= self.limits.per_hour + 1e-3, f"{cost} an hour of {self.limits.per_hour}"

    def floor(self, step: RolloutStep) -> dict[str, int]:
        """Return what must stay: the lower of old and new plan, less the largest workers that may be missing."""
        ends = [step.ledger.base, step.refusal.groups if step.refusal is not None else self.target]
        there = [(one.group.role, one.group.degree) for one in self.live.values() if one.pods or one.asked]
        least = {}
        for role in ("prefill", "decode"):
            lower = min(sum(gpus_of(one.degree) * one.replicas for one in plan if one.role == role) for plan in ends)
            sizes = [gpus_of(one.degree) for plan in ends for one in plan if one.role == role and one.replicas]
            sizes += [gpus_of(degree) for of, degree in there if of == role]
            least[role] = lower - self.limits.max_unavailable * max(sizes, default=0)
        return least

    def _check_floor(self, before: dict[str, int], after: dict[str, int], step: RolloutStep) -> None:
        least = self.floor(step)
        for role in ("prefill", "decode"):
            serving = {key: one.count("ready") for key, one in self.live.items() if one.group.role == "decode"}
            outage = not any(min(step.replicas[key], ready) for key, ready in serving.items())
            if role == "prefill" and outage and least["decode"] <= 0:
                continue  # the only decode worker may be missing, and prefill workers are worth nothing without one
            assert after[role] >= min(before[role], least[role]), f"{role}: {before} -> {after}, floor {least}: {step}"

    def _check_pairs(self, changed: Live, was: int) -> None:
        asked = [one for one in self.live.values() if one.asked]
        revision = changed.group.revision
        decode = any(one.group.role == "decode" and one.group.revision == revision for one in asked)
        if changed.group.role == "prefill" and changed.asked > was:
            assert decode, f"{changed.group.key} is asked for without a decode worker of its revision"
        if changed.group.role == "decode" and changed.asked < was and not decode:
            left = [one.group.key for one in asked if one.group.role == "prefill" and one.group.revision == revision]
            others = any(one.group.role == "decode" for one in asked)
            assert not (left and others), f"{left} are left with decode workers of another revision"

    def _state(self, one: Live) -> GroupState:
        waiting = [pod.since for pod in one.pods if pod.phase in ("pending", "starting")]
        missing = one.asked - one.count("pending", "starting", "ready")
        if missing > 0:
            waiting.append(one.asked_at)
        return GroupState(
            key=one.group.key,
            role=one.group.role,
            degree=one.group.degree,
            pool=one.group.pool,
            revision=one.group.revision,
            asked=one.asked,
            ready=one.count("ready"),
            starting=one.count("pending", "starting"),
            draining=one.count("draining"),
            unschedulable=sum(pod.phase == "pending" and pod.since < self.now for pod in one.pods),
            since=min(waiting, default=None),
            settled=one.acted == one.generation,
        )

    def _free(self, pool: str) -> int:
        on_nodes = sum(
            gpus_of(one.group.degree) * one.count("starting", "ready", "draining")
            for one in self.live.values()
            if one.group.pool == pool
        )
        return self.nodes.get(pool, 0) - on_nodes

    def _due(self, pod: Pod) -> bool:
        return pod.until is not None and pod.until <= self.now


def asked(world: World) -> dict[str, int]:
    """Return how many workers are asked of each group that has any."""
    return {key: one.asked for key, one in world.live.items() if one.asked}


def replicas(plan: Sequence[GroupTarget]) -> dict[str, int]:
    """Return how many workers a plan has of each group."""
    return {one.key: one.replicas for one in plan if one.replicas}


def settled_on(plan: Sequence[GroupTarget], limits: RolloutLimits, *, seed: int = 0, nodes: int = 64) -> World:
    """Return a world in which a first plan was carried out."""
    world = World(tuple(plan), limits, dict.fromkeys(("h100", "h20"), nodes), random.Random(seed))
    assert world.settle().outcome == "Complete"
    assert asked(world) == replicas(plan)
    return world
