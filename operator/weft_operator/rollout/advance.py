"""The next step of a rollout: the replicas of each group, towards the plan or back to the old one. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from weft_operator.rollout.canary import CanaryRequest, CanaryShare, current_canary, share_of
from weft_operator.rollout.draft import Draft, bounds
from weft_operator.rollout.groups import GroupState, GroupTarget, RolloutLimits, fits
from weft_operator.rollout.ledger import Ledger, Refusal, RefusalReason, current_ledger, target_hash, target_of
from weft_operator.rollout.moves import (
    drain_beyond_bounds,
    drain_replaced,
    drain_unpaired,
    drop_idle,
    make_room,
    surge,
    switch_roles,
    unproven_groups,
)
from weft_operator.workers.roles import group_of

StepOutcome = Literal["Complete", "Progressing", "Canary", "RollingBack", "RolledBack"]
"""Complete: every group is as planned. Progressing: towards the plan or its canary. Canary: the canary runs.
RollingBack: towards the old plan after a failure. RolledBack: every group is as in the old plan."""


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """One step of a rollout.

    ``replicas`` has the replicas of each group by key, in the order in which to write them; a key without a group is a
    group to create. ``ledger`` must be stored before replicas are written. ``retire`` are the groups to delete.
    ``refusal`` says why the rollout was aborted. ``share`` are the groups while a canary runs. ``message`` describes
    the step; ``requeue_after`` is the number of seconds after which to compute the next step in any case.
    """

    replicas: Mapping[str, int]
    outcome: StepOutcome
    ledger: Ledger
    message: str
    retire: tuple[str, ...] = ()
    refusal: Refusal | None = None
    share: CanaryShare | None = None
    requeue_after: float | None = None


def advance(
    groups: Sequence[GroupState],
    target: Sequence[GroupTarget],
    ledger: Ledger | None,
    limits: RolloutLimits,
    *,
    inputs_hash: str,
    now: datetime,
    plan: str = "",
    canary_request: CanaryRequest | None = None,
) -> RolloutStep:
    """Return the next step from the groups there are to the target.

    Call it in every pass with all existing groups of a service, the groups of its plan, and the stored ledger (None:
    there is none yet). ``inputs_hash`` identifies what the plan was made for: a plan whose rollout was aborted is
    tried again only for other inputs. ``plan`` is the name that the ledger gets once the rollout is complete. With a
    ``canary_request`` the rollout completes only after its canary passed.

    These invariants hold at every call, whichever earlier steps were applied:

    - The GPUs of all pods, and their price, never exceed ``limits``.
    - A worker that can change its role to one that lacks workers does so; no worker is started in its place.
    - No role is more than ``limits.max_unavailable`` workers below the lower of old and new plan, except where there
      is no other way; the message then says so.
    - A prefill worker is requested only beside a decode worker of its revision.
    """
    kept = _with_base(current_ledger(ledger, groups, inputs_hash), groups, target)
    refusal = kept.refusal_of(target, inputs_hash)
    can_roll_back = _can_roll_back(kept, target, limits)
    if refusal is None and can_roll_back:
        refusal = _failed(groups, target, kept, limits, inputs_hash=inputs_hash, now=now)
    if refusal is None and kept.canary is not None and kept.canary.state in ("Failed", "RolledBack"):
        kept = replace(kept, canary=None)  # it failed for other inputs
    canary = None
    if canary_request is not None and can_roll_back:
        canary = current_canary(kept, groups, target, canary_request, limits, now=now)
    if refusal is None and canary is not None and canary.state == "Failed":
        refusal = Refusal(tuple(target), inputs_hash, "CanaryFailed", canary.message, now)
    kept = replace(kept, canary=canary)
    if refusal is None:
        if canary is not None and canary.state == "Running" and canary.kind == "Share":
            share = share_of(kept.base, target, limits, canary_request.percent if canary_request is not None else 0)
            step = None
            if share is not None:
                builder = _StepBuilder(
                    groups,
                    share.goal,
                    kept,
                    limits,
                    now,
                    old=kept.base,
                    new=target,
                    can_roll_back=can_roll_back,
                    share=share,
                    plan=plan,
                )
                step = builder.step()
            if step is not None:
                return step
            kept = replace(kept, canary=replace(canary, kind="Whole"))
        builder = _StepBuilder(
            groups, target, kept, limits, now, old=kept.base, new=target, can_roll_back=can_roll_back, plan=plan
        )
        step = builder.step()
        if step is not None:
            return step
        if not can_roll_back:
            return builder.forced()
        refusal = Refusal(tuple(target), inputs_hash, "NoFeasibleStep", builder.infeasible_message(), now)
    kept = kept.with_refusal(refusal)
    if refusal.reason != "CanaryFailed":
        kept = replace(kept, canary=None)
    builder = _StepBuilder(groups, kept.base, kept, limits, now, old=kept.base, new=refusal.groups, refusal=refusal)
    return builder.step() or builder.forced()


def _with_base(ledger: Ledger, groups: Sequence[GroupState], target: Sequence[GroupTarget]) -> Ledger:
    """Return the ledger with the serving workers as the old plan where no rollout was ever completed."""
    if ledger.base:
        return ledger
    wanted = {group.key: group.replicas for group in target}
    if not any(min(group.asked, group.ready) > wanted.get(group.key, 0) for group in groups):
        return ledger
    serving = [target_of(group, min(group.asked, group.ready)) for group in groups if min(group.asked, group.ready)]
    return replace(ledger, base=tuple(sorted(serving, key=lambda group: group.key)))


def _can_roll_back(ledger: Ledger, target: Sequence[GroupTarget], limits: RolloutLimits) -> bool:
    """Return whether a rollback is possible: there is an old plan other than the target that fits into the budget."""
    return bool(ledger.base) and target_hash(ledger.base) != target_hash(target) and fits(ledger.base, limits)


def _deadline(group: GroupState, limits: RolloutLimits) -> datetime | None:
    """Return the deadline of the group's worker that waits longest; None where none waits."""
    if group.since is None or group.ready >= group.asked:
        return None
    timeout_s = limits.unschedulable_s if group.unschedulable else limits.start_s
    if group.unschedulable or group.switching:
        timeout_s += limits.drain_s  # of the workers that free its GPUs, or of its own sessions
    return group.since + timedelta(seconds=timeout_s)


def _failed(
    groups: Iterable[GroupState],
    target: Sequence[GroupTarget],
    ledger: Ledger,
    limits: RolloutLimits,
    *,
    inputs_hash: str,
    now: datetime,
) -> Refusal | None:
    """Return why the rollout must be aborted: a worker that only the new plan has did not start in time."""
    wanted = {group.key: group.replicas for group in target}
    had = {group.key: group.replicas for group in ledger.base}
    for group in groups:
        deadline = _deadline(group, limits)
        new = min(group.asked, wanted.get(group.key, 0)) > had.get(group.key, 0)
        if not new or deadline is None or now < deadline:
            continue
        reason: RefusalReason = "Unschedulable" if group.unschedulable else "NeverReady"
        limit = "unschedulableTimeout" if group.unschedulable else "startTimeout"
        what = "found no node" if group.unschedulable else "did not get ready"
        if group.switching and not group.unschedulable:
            limit, what = "startTimeout and drainTimeout", "did not confirm this role"
        trouble = f": {group.trouble}" if group.trouble else ""
        words = f"{group.workers(group.asked - group.ready)} {what} within spec.rollout.{limit}{trouble}"
        return Refusal(tuple(target), inputs_hash, reason, words, now)
    return None


class _StepBuilder:
    """Computes one step towards a goal: the target, a canary of it, or the old plan."""

    def __init__(
        self,
        groups: Sequence[GroupState],
        goal: Sequence[GroupTarget],
        ledger: Ledger,
        limits: RolloutLimits,
        now: datetime,
        *,
        old: Sequence[GroupTarget],
        new: Sequence[GroupTarget],
        refusal: Refusal | None = None,
        can_roll_back: bool = False,
        share: CanaryShare | None = None,
        plan: str = "",
    ) -> None:
        self._back, self._plan = can_roll_back, plan
        self._new = new
        self._goal, self._ledger, self._limits, self._now = goal, ledger, limits, now
        self._refusal, self._share = refusal, share
        canary = ledger.canary
        self._canary = canary if refusal is None and canary is not None and canary.state == "Running" else None
        self._had = {group.key: group.replicas for group in ledger.base}
        self._draft = Draft(groups, goal, limits)
        self._bounds = bounds(old, new, self._draft)
        self._messages: list[str] = []

    def step(self) -> RolloutStep | None:
        """Return the next step; None where the goal is not reached and the limits allow no step."""
        if self._finished():
            return self._step(self._end())
        draft, messages = self._draft, self._messages
        if self._settled():
            messages += switch_roles(draft, self._bounds.hard)
        messages += drop_idle(draft)
        if self._settled():
            messages += surge(draft)
        if not unproven_groups(draft, self._had):
            messages += drain_replaced(draft, self._bounds.soft)
        if self._settled():
            messages += make_room(draft, self._bounds, self._had, now=self._now)
        if not draft.changed and not self._in_flight():
            messages += drain_unpaired(draft)
            if not draft.changed:
                messages += switch_roles(draft, self._bounds.hard, outage=True)
            if not draft.changed:
                messages += make_room(draft, self._bounds, self._had, now=self._now, outage=True)
            if not draft.changed:
                return None
        if self._canary is not None and self._canary.since is not None:
            return self._step("Canary")  # a worker that is lost meanwhile does not end the canary
        return self._step("Progressing" if self._refusal is None else "RollingBack")

    def _end(self) -> StepOutcome:
        if self._refusal is not None:
            return "RolledBack"
        return "Complete" if self._canary is None else "Canary"

    def forced(self) -> RolloutStep:
        """Return a step that exceeds ``max_unavailable``, for a rollback is not possible."""
        self._messages += drain_beyond_bounds(self._draft)
        return self._step("Progressing" if self._refusal is None else "RollingBack")

    def infeasible_message(self) -> str:
        """Return why the goal cannot be reached."""
        lacking = ", ".join(
            group.workers(self._draft.missing(group))
            for group in self._draft.groups.values()
            if self._draft.missing(group)
        )
        if not lacking:
            return "old workers cannot be drained: too few of the remaining workers are ready"
        limits = self._limits
        bounds = [f"the budget is {limits.gpus} GPUs (spec.capacity.gpus)"]
        pools = sorted({group.pool for group in self._draft.groups.values() if self._draft.missing(group)})
        bounds += [f"pool {pool} has {limits.pools[pool]}" for pool in pools if pool in limits.pools]
        if limits.per_hour is not None:
            bounds.append(f"they may cost {limits.per_hour:g} an hour (spec.planning.budgetPerHour)")
        return (
            f"there are too few free GPUs for {lacking}: {', '.join(bounds)}, and spec.rollout.maxUnavailable: "
            f"{limits.max_unavailable} allows no further drain; raise one of them"
        )

    def _settled(self) -> bool:
        return all(group.settled for group in self._draft.groups.values())

    def _finished(self) -> bool:
        """Return whether the goal is reached; workers that the old plan had need not be ready."""
        draft = self._draft
        return self._settled() and all(
            group.asked == draft.want.get(key, 0) >= group.ready + group.starting
            and not group.draining
            and (group.ready >= group.asked or group.asked <= self._had.get(key, 0))
            for key, group in draft.groups.items()
        )

    def _in_flight(self) -> bool:
        """Return whether earlier changes are still in progress."""
        return any(
            not group.settled
            or group.held > group.asked
            or (group.ready < group.asked and ((end := _deadline(group, self._limits)) is None or self._now < end))
            for group in self._draft.groups.values()
        )

    def _step(self, outcome: StepOutcome) -> RolloutStep:
        draft = self._draft
        ledger = self._ledger
        if outcome == "Complete":
            base = tuple(sorted(self._goal, key=lambda group: group.key))
            ledger = replace(ledger, base=base, canary=None, plan=self._plan)
        if outcome == "Canary" and self._canary is not None and self._canary.since is None:
            ledger = replace(ledger, canary=replace(self._canary, since=self._now))
        if outcome == "RolledBack" and ledger.canary is not None:
            ledger = replace(ledger, canary=replace(ledger.canary, state="RolledBack"))
        needed = {group.key for plan in (self._goal, self._new, ledger.base) for group in plan}
        retire = [
            key
            for key, group in draft.groups.items()
            if key not in needed and group.settled and not group.held and not draft.asked[key]
        ]
        return RolloutStep(
            replicas=self._in_order(),
            outcome=outcome,
            ledger=ledger,
            message=self._message(outcome),
            retire=tuple(sorted(retire)),
            refusal=self._refusal,
            share=self._share,
            requeue_after=self._next_deadline_s(),
        )

    def _in_order(self) -> dict[str, int]:
        """Return the replicas in writing order: first decreases, prefill first; then increases, decode first.

        The roles of one WorkerGroup are written together, so it counts as a whole.
        """
        draft = self._draft
        more: dict[str, int] = {}
        for key, group in draft.groups.items():
            more[group_of(key)] = more.get(group_of(key), 0) + draft.asked[key] - group.asked

        def place(group: GroupState) -> tuple[bool, bool, str]:
            comes = more[group_of(group.key)] > 0
            return comes, (group.role == "prefill") == comes, group.key

        return {group.key: draft.asked[group.key] for group in sorted(draft.groups.values(), key=place)}

    def _next_deadline_s(self) -> float | None:
        """Return the number of seconds until the next deadline."""
        ends = [end for group in self._draft.groups.values() if (end := _deadline(group, self._limits)) is not None]
        ends += [
            group.since + timedelta(seconds=self._limits.make_room_s)
            for group in self._draft.groups.values()
            if group.unschedulable and group.since is not None
        ]
        waits = [(end - self._now).total_seconds() for end in ends]
        return min((wait for wait in waits if wait > 0), default=None)

    def _message(self, outcome: StepOutcome) -> str:
        draft = self._draft
        why = "" if self._refusal is None else f"rollback to the plan before, because {self._refusal.message}"
        if outcome in ("Complete", "RolledBack"):
            return why or "every group is as planned"
        messages = list(self._messages)
        for key, group in draft.groups.items():
            wanted = draft.want.get(key, 0)
            starting = min(group.asked, wanted) - group.ready
            if starting > 0:
                messages.append(f"waiting for {group.workers(starting)} to become ready{self._until(group)}")
            if group.draining:
                messages.append(f"waiting for {group.workers(group.draining)} to drain")
            if not group.settled:
                messages.append(f"waiting for the controller of {group.workers(group.asked)}")
            if draft.missing(group):
                messages.append(f"{group.workers(draft.missing(group))} more when GPUs are free")
        return "; ".join([*([why] if why else []), *messages])

    def _until(self, group: GroupState) -> str:
        trouble = f" ({group.trouble})" if group.trouble else ""
        end = _deadline(group, self._limits)
        new = min(group.asked, self._draft.want.get(group.key, 0)) > self._had.get(group.key, 0)
        if end is None or not new or not self._back:
            return trouble
        return f"{trouble}; rollback at {end:%H:%M:%S} UTC"
