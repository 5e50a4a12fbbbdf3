"""The next step of a rollout: what to ask of each group, so that the service gets to its plan, or back."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from weft_operator.rollout.canary import CanaryRequest, CanaryShare, share_of, trial_of
from weft_operator.rollout.draft import Draft, bounds
from weft_operator.rollout.groups import GroupState, GroupTarget, RolloutLimits, fits
from weft_operator.rollout.ledger import Ledger, Refusal, RefusalReason, opened, target_hash, target_of
from weft_operator.rollout.moves import (
    drain_anyway,
    drain_replaced,
    drain_useless,
    drop_idle,
    make_room,
    surge,
    unproved,
)

StepOutcome = Literal["Done", "Moving", "Trying", "Returning", "Refused"]
"""At the plan; on the way to it, or to where it is tried; on trial; on the way back from one that was given up; back at
the plan before."""


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """What to do now.

    ``replicas`` are what to ask of each group by key, in the order to write them; keys without a group are to be made.
    ``ledger`` must be kept before anything is asked. ``retire`` are the groups to delete. ``refusal`` says why the
    target was given up. ``share`` is what the groups are to come to while a share of the sessions tries the target.
    ``message`` tells all in words; ``again_s``: seconds after which to look again anyway.
    """

    replicas: Mapping[str, int]
    outcome: StepOutcome
    ledger: Ledger
    message: str
    retire: tuple[str, ...] = ()
    refusal: Refusal | None = None
    share: CanaryShare | None = None
    again_s: float | None = None


def advance(
    groups: Sequence[GroupState],
    target: Sequence[GroupTarget],
    ledger: Ledger | None,
    limits: RolloutLimits,
    *,
    question: str,
    now: datetime,
    plan: str = "",
    canary: CanaryRequest | None = None,
) -> RolloutStep:
    """Return what to ask of each group now.

    To be called at every pass with all groups of a service that exist, the target of its plan, and the ledger that the
    last pass returned (None: there is none yet). ``question`` names what the plan was made for; a plan that was given
    up is tried again only for another question. ``plan`` is the name that the ledger keeps of the target once it is
    carried out. With a ``canary`` a plan is carried out to its end, and the plan before forgotten, only once its trial
    passed. Holds whenever it is called, after whatever was carried out of the answers before: the GPUs of all pods, and
    what they cost, never exceed ``limits``; no role is brought below the lower of old and new plan by more than
    ``limits.max_unavailable`` workers, except where no other way is left and the message says so; a prefill worker is
    asked for only beside a decode worker of its revision.
    """
    kept = _with_base(opened(ledger, groups, question), groups, target)
    refusal = kept.refusal_of(target, question)
    back = _way_back(kept, target, limits)
    if refusal is None and back:
        refusal = _failed(groups, target, kept, limits, question=question, now=now)
    if refusal is None and kept.trial is not None and kept.trial.state in ("Failed", "RolledBack"):
        kept = replace(kept, trial=None)  # it failed for another question
    trial = trial_of(kept, groups, target, canary, limits, now=now) if canary is not None and back else None
    if refusal is None and trial is not None and trial.state == "Failed":
        refusal = Refusal(tuple(target), question, "CanaryFailed", trial.message, now)
    kept = replace(kept, trial=trial)
    if refusal is None:
        if trial is not None and trial.state == "Running" and trial.kind == "Share":
            share = share_of(kept.base, target, limits, canary.percent if canary is not None else 0)
            step = None
            if share is not None:
                course = _Course(
                    groups, share.goal, kept, limits, now, old=kept.base, new=target, back=back, share=share, plan=plan
                )
                step = course.step()
            if step is not None:
                return step
            kept = replace(kept, trial=replace(trial, kind="Whole"))
        course = _Course(groups, target, kept, limits, now, old=kept.base, new=target, back=back, plan=plan)
        step = course.step()
        if step is not None:
            return step
        if not back:
            return course.forced()
        refusal = Refusal(tuple(target), question, "NoFeasibleStep", course.no_room(), now)
    kept = kept.refusing(refusal)
    if refusal.reason != "CanaryFailed":
        kept = replace(kept, trial=None)
    course = _Course(groups, kept.base, kept, limits, now, old=kept.base, new=refusal.groups, refusal=refusal)
    return course.step() or course.forced()


def _with_base(ledger: Ledger, groups: Sequence[GroupState], target: Sequence[GroupTarget]) -> Ledger:
    """Return the ledger with what serves as the old plan where none was ever carried out to its end."""
    if ledger.base:
        return ledger
    wanted = {group.key: group.replicas for group in target}
    if not any(min(group.asked, group.ready) > wanted.get(group.key, 0) for group in groups):
        return ledger
    serving = [target_of(group, min(group.asked, group.ready)) for group in groups if min(group.asked, group.ready)]
    return replace(ledger, base=tuple(sorted(serving, key=lambda group: group.key)))


def _way_back(ledger: Ledger, target: Sequence[GroupTarget], limits: RolloutLimits) -> bool:
    """Tell whether there is an old plan, another than the target, that the budget still has room for."""
    return bool(ledger.base) and target_hash(ledger.base) != target_hash(target) and fits(ledger.base, limits)


def _deadline(group: GroupState, limits: RolloutLimits) -> datetime | None:
    """Return when a worker of a group has waited too long; None where none waits."""
    if group.since is None or group.ready >= group.asked:
        return None
    patience = limits.unschedulable_s + limits.drain_s if group.unschedulable else limits.start_s
    return group.since + timedelta(seconds=patience)


def _failed(
    groups: Iterable[GroupState],
    target: Sequence[GroupTarget],
    ledger: Ledger,
    limits: RolloutLimits,
    *,
    question: str,
    now: datetime,
) -> Refusal | None:
    """Return why the target must be given up: a worker that only it wants did not come up in time."""
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
        trouble = f": {group.trouble}" if group.trouble else ""
        words = f"{group.workers(group.asked - group.ready)} {what} within spec.rollout.{limit}{trouble}"
        return Refusal(tuple(target), question, reason, words, now)
    return None


class _Course:
    """One way, towards the target or back from it, as one pass sees it."""

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
        back: bool = False,
        share: CanaryShare | None = None,
        plan: str = "",
    ) -> None:
        self._back, self._plan = back, plan
        self._new = new
        self._goal, self._ledger, self._limits, self._now = goal, ledger, limits, now
        self._refusal, self._share = refusal, share
        trial = ledger.trial
        self._trial = trial if refusal is None and trial is not None and trial.state == "Running" else None
        self._had = {group.key: group.replicas for group in ledger.base}
        self._draft = Draft(groups, goal, limits)
        self._bounds = bounds(old, new, self._draft)
        self._said: list[str] = []

    def step(self) -> RolloutStep | None:
        """Return the next step, None where there is none although the goal is not reached."""
        if self._finished():
            return self._answer(self._end())
        draft, said = self._draft, self._said
        said += drop_idle(draft)
        if self._settled():
            said += surge(draft)
        if not unproved(draft, self._had):
            said += drain_replaced(draft, self._bounds.soft)
        if self._settled():
            said += make_room(draft, self._bounds, self._had, now=self._now)
        if not draft.changed and not self._in_flight():
            said += drain_useless(draft)
            if not draft.changed:
                said += make_room(draft, self._bounds, self._had, now=self._now, outage=True)
            if not draft.changed:
                return None
        if self._trial is not None and self._trial.since is not None:
            return self._answer("Trying")  # a worker that was lost meanwhile ends no trial
        return self._answer("Moving" if self._refusal is None else "Returning")

    def _end(self) -> StepOutcome:
        if self._refusal is not None:
            return "Refused"
        return "Done" if self._trial is None else "Trying"

    def forced(self) -> RolloutStep:
        """Return a step although the bounds leave none, for there is no way back."""
        self._said += drain_anyway(self._draft)
        return self._answer("Moving" if self._refusal is None else "Returning")

    def no_room(self) -> str:
        """Say why the goal cannot be reached."""
        lacking = ", ".join(
            group.workers(self._draft.missing(group))
            for group in self._draft.groups.values()
            if self._draft.missing(group)
        )
        if not lacking:
            return "old workers cannot be drained, for too few of those that stay are ready"
        limits = self._limits
        bounds = [f"{limits.gpus} GPUs are the budget (spec.capacity.gpus)"]
        pools = sorted({group.pool for group in self._draft.groups.values() if self._draft.missing(group)})
        bounds += [f"{limits.pools[pool]} those of pool {pool}" for pool in pools if pool in limits.pools]
        if limits.per_hour is not None:
            bounds.append(f"{limits.per_hour:g} an hour what they may cost (spec.planning.budgetPerHour)")
        return (
            f"there is no room for {lacking}: {', '.join(bounds)}, and spec.rollout.maxUnavailable: "
            f"{limits.max_unavailable} lets no more be drained; raise one of them"
        )

    def _settled(self) -> bool:
        return all(group.settled for group in self._draft.groups.values())

    def _finished(self) -> bool:
        """Tell whether all is as the goal wants it; of workers that the old plan had, none needs to be ready."""
        draft = self._draft
        return self._settled() and all(
            group.asked == draft.want.get(key, 0) >= group.ready + group.starting
            and not group.draining
            and (group.ready >= group.asked or group.asked <= self._had.get(key, 0))
            for key, group in draft.groups.items()
        )

    def _in_flight(self) -> bool:
        """Tell whether anything is still to happen by itself."""
        return any(
            not group.settled
            or group.held > group.asked
            or (group.ready < group.asked and ((end := _deadline(group, self._limits)) is None or self._now < end))
            for group in self._draft.groups.values()
        )

    def _answer(self, outcome: StepOutcome) -> RolloutStep:
        draft = self._draft
        ledger = self._ledger
        if outcome == "Done":
            base = tuple(sorted(self._goal, key=lambda group: group.key))
            ledger = replace(ledger, base=base, trial=None, plan=self._plan)
        if outcome == "Trying" and self._trial is not None and self._trial.since is None:
            ledger = replace(ledger, trial=replace(self._trial, since=self._now))
        if outcome == "Refused" and ledger.trial is not None:
            ledger = replace(ledger, trial=replace(ledger.trial, state="RolledBack"))
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
            again_s=self._again(),
        )

    def _in_order(self) -> dict[str, int]:
        """Return what to ask: first what leaves, prefill before decode; then what comes, decode before prefill."""
        draft = self._draft

        def place(group: GroupState) -> tuple[bool, bool, str]:
            comes = draft.asked[group.key] > group.asked
            return comes, (group.role == "prefill") == comes, group.key

        return {group.key: draft.asked[group.key] for group in sorted(draft.groups.values(), key=place)}

    def _again(self) -> float | None:
        """Return in how many seconds the next deadline passes."""
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
        why = "" if self._refusal is None else f"back to the plan before, because {self._refusal.message}"
        if outcome in ("Done", "Refused"):
            return why or "every group is as the plan wants it"
        said = list(self._said)
        for key, group in draft.groups.items():
            wanted = draft.want.get(key, 0)
            starting = min(group.asked, wanted) - group.ready
            if starting > 0:
                said.append(f"waiting for {group.workers(starting)} to become ready{self._until(group)}")
            if group.draining:
                said.append(f"waiting for {group.workers(group.draining)} to drain")
            if not group.settled:
                said.append(f"waits until what was asked of {group.workers(group.asked)} is acted on")
            if draft.missing(group):
                said.append(f"{group.workers(draft.missing(group))} more when there is room")
        return "; ".join([*([why] if why else []), *said])

    def _until(self, group: GroupState) -> str:
        trouble = f" ({group.trouble})" if group.trouble else ""
        end = _deadline(group, self._limits)
        new = min(group.asked, self._draft.want.get(group.key, 0)) > self._had.get(group.key, 0)
        if end is None or not new or not self._back:
            return trouble
        return f"{trouble}, till {end:%H:%M:%S} UTC, else back to the plan before"
