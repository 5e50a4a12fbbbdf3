"""Decide what to do about a service whose traffic or SLO may have drifted: keep, ask the planner, propose or apply.

Pure: everything comes in, and a decision goes out. The order of the questions is the order of the code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from weft_core.durations import format_seconds, parse_duration
from weft_core.plan import Plan
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.metrics.history import History
from weft_operator.metrics.observation import STARTING, Observation, UnavailableReason, WorkerPressure
from weft_operator.planning.planner_process import Answer, Planned
from weft_operator.render.inputs import PlanRecord
from weft_operator.render.plan_baseline import PlanBaseline, Proposal, proposal_hash
from weft_operator.render.plan_summary import plan_summary
from weft_operator.replanning.comparison import no_gain, same_rules, same_workers, shrinks, too_small, within_bounds
from weft_operator.replanning.drift import DetectedDrift, drifts_of
from weft_operator.replanning.drift_report import has_grown, judged_traffic
from weft_operator.replanning.rollback import still_held
from weft_operator.replanning.workload import observed_workload, stored

UNMEASURED: tuple[UnavailableReason, ...] = ("NotConfigured", "NotYetObserved", "TooFewSamples")
"""Not blind: nobody was to look, or nobody has looked for long enough."""

SHORTEST_PAUSE_S = 60.0
NEWS_PAUSE_S = 10.0
"""How long a judgement stands at least, however much more arrives."""


@dataclass(frozen=True, slots=True)
class ReplanRequest:
    """What the planner is asked for: a workload in a request's form, unchanged until there is an answer, and why."""

    workload: Mapping[str, Any]
    cause: str


@dataclass(frozen=True, slots=True)
class ReplanInputs:
    """All that a decision follows from; ``prior`` is the workload of the spec's own request.

    ``history`` ends with ``observation``; ``approval`` is the hash in the service's annotation, "" for none.
    """

    spec: DisaggInferenceServiceSpec
    prior: Mapping[str, Any]
    record: PlanRecord
    history: History
    observation: Observation | None
    now: datetime
    approval: str = ""
    replan_request: ReplanRequest | None = None
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class KeepPlan:
    """Change no worker; ``record`` may hold a new proposal or verdict. ``reason`` "" has nothing to tell."""

    record: PlanRecord
    reason: str = ""
    message: str = ""
    requeue_after: float | None = None
    """When to decide again although nothing else happens, seconds."""


@dataclass(frozen=True, slots=True)
class AskPlanner:
    """Let the planner answer the replan request, and decide again with its answer."""

    replan_request: ReplanRequest


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """Put another plan in force."""

    record: PlanRecord


Decision = KeepPlan | AskPlanner | ChangePlan


def decide(now: ReplanInputs) -> Decision:
    """Return what to do; while the newest look is blind nothing is changed but what a person approved, and that only
    where it takes no GPUs away.
    """
    mode = now.spec.planning.mode
    if mode == "Off":
        return KeepPlan(now.record)
    if mode == "Auto" and now.record.baseline.proposal is not None:
        # No approval is needed any more: the proposal is judged again, on what is observed now.
        baseline = replace(now.record.baseline, proposal=None, judged_at=None, verdict=("", ""))
        return decide(replace(now, record=replace(now.record, baseline=baseline)))
    if mode == "Manual" and now.approval not in ("", now.record.baseline.approved):
        return _approval(now)
    return _unapproved(now)


def approve(record: PlanRecord, spec: DisaggInferenceServiceSpec, *, now: datetime) -> PlanRecord:
    """Return the record with its proposal in force."""
    proposal = record.baseline.proposal
    if proposal is None:
        raise ValueError("there is no proposal to approve")
    return PlanRecord(
        spec=spec,
        plan=proposal.plan,
        profile=proposal.profile,
        request_hash=proposal.request_hash,
        profiles=proposal.profiles,
        baseline=PlanBaseline(
            workload=proposal.workload,
            cause=proposal.cause if proposal.request_hash == record.request_hash else "",
            changed_at=now,
            judged_at=now,
            approved=proposal.hash,
            rolled_back=record.baseline.rolled_back,
        ),
    )


def propose(
    record: PlanRecord,
    answer: Planned,
    *,
    request_hash: str,
    cause: str,
    now: datetime,
    workload: Mapping[str, Any] | None = None,
) -> PlanRecord:
    """Return the record with a proposal; one for the same change stays as it was first made."""
    before = record.baseline.proposal
    same = before is not None and before.request_hash == request_hash and same_rules(before.plan, answer.plan)
    proposal = (
        before
        if before is not None and same
        else Proposal(
            hash=proposal_hash(answer.plan, instead_of=record.plan, request_hash=request_hash, made_at=now),
            plan=answer.plan,
            profile=answer.profile,
            profiles=answer.profiles,
            request_hash=request_hash,
            workload=None if workload is None else stored(workload),
            cause=cause,
            made_at=now,
        )
    )
    return replace(record, baseline=replace(record.baseline, proposal=proposal, judged_at=now, verdict=("", "")))


def waits(record: PlanRecord, mode: str) -> tuple[str, str]:
    """Return the reason and message of a record whose proposal waits for somebody."""
    proposal = record.baseline.proposal
    if proposal is None:
        return "", ""
    change = f"{plan_summary(record.plan)} -> {plan_summary(proposal.plan)}"
    if mode == "Manual":
        return "AwaitingApproval", (
            f"{change} is proposed, because {proposal.cause}; approve it with the annotation weft.dev/approve: "
            f"{proposal.hash}"
        )
    return (
        "ReplanProposed",
        f"{change} is proposed, because {proposal.cause}; spec.planning.mode {mode} applies nothing",
    )


def stale(record: PlanRecord, approval: str) -> str:
    """Return what to tell of an approval that names no proposal."""
    proposal = record.baseline.proposal
    there = "there is no proposal" if proposal is None else f"the proposal is {proposal.hash}"
    return (
        f"the annotation weft.dev/approve names {approval[:64]!r}, and {there}; nothing was changed: look at "
        "status.proposedPlan, and approve its hash or remove the annotation"
    )


def _approval(now: ReplanInputs) -> Decision:
    proposal = now.record.baseline.proposal
    if proposal is None or proposal.hash != now.approval:
        decision = _unapproved(now)
        if isinstance(decision, KeepPlan):
            return replace(decision, reason="ApprovalStale", message=stale(decision.record, now.approval))
        return decision
    held = _held(now, proposal.plan, proposal.profile, proposal.profiles, patient=False)
    if held is not None:
        reason, message = held
        return KeepPlan(now.record, reason, f"approved, and waits: {message}")
    return ChangePlan(approve(now.record, now.spec, now=now.now))


def _unapproved(now: ReplanInputs) -> Decision:
    record, baseline, seen = now.record, now.record.baseline, now.observation
    waiting = waits(record, now.spec.planning.mode)
    if baseline.hold is not None:
        # Blind, too, nothing is known that would speak against the plan that was taken up again.
        if seen is None or still_held(record, now.spec, now.history, seen):
            return KeepPlan(record)
        return _unapproved(replace(now, record=replace(record, baseline=replace(baseline, hold=None))))
    if seen is None or seen.availability.reason in {*UNMEASURED, *STARTING}:
        return KeepPlan(record, *waiting)
    newest = now.history.newest
    if not seen.availability.seen or newest is None or not newest.seen:
        # The message may hold figures that change with every query; the condition MetricsAvailable has them.
        why = seen.availability.reason
        words = f"the plan is kept while its metrics are missing ({why}); see the condition MetricsAvailable"
        return KeepPlan(record, *(waiting if waiting[0] else ("MetricsUnavailable", words)))
    drifts = drifts_of(
        record.plan,
        now.spec.slo,
        now.spec.planning,
        history=now.history,
        observation=seen,
        changed_at=baseline.changed_at,
    )
    if not drifts:
        return _nothing_drifted(now)
    if now.replan_request is not None:
        return AskPlanner(now.replan_request) if now.answer is None else _judge(now, now.replan_request, now.answer)
    cooldown = _cooldown(now)
    if cooldown is not None:
        return replace(cooldown, reason=waiting[0], message=waiting[1]) if waiting[0] else cooldown
    return AskPlanner(_inquiry(now, seen, drifts))


def _nothing_drifted(now: ReplanInputs) -> KeepPlan:
    """Withdraw a proposal, and forget a verdict, once the traffic has long been what the plan in force is for."""
    record = now.record
    calm = now.history.throughout(parse_duration(now.spec.planning.drift.shrink_after), lambda s: not s.missing_slo)
    if calm and record.baseline.proposal is not None:
        record = replace(record, baseline=replace(record.baseline, proposal=None, verdict=("", "")))
    return KeepPlan(record, *waits(record, now.spec.planning.mode))


def _cooldown(now: ReplanInputs) -> KeepPlan | None:
    """Return why the planner is not asked yet, None when it may be."""
    baseline = now.record.baseline
    until = now.now
    if baseline.changed_at is not None:
        until = max(until, baseline.changed_at + timedelta(seconds=parse_duration(now.spec.planning.cooldown)))
    if baseline.judged_at is not None:
        news = has_grown(baseline.judged, now.history.newest, tolerance=now.spec.planning.drift.workload)
        pause = timedelta(seconds=NEWS_PAUSE_S) if news else _pause(now.spec)
        until = max(until, baseline.judged_at + pause)
    if until <= now.now:
        return None
    wait = (until - now.now).total_seconds()
    if baseline.verdict[0]:
        return KeepPlan(now.record, *baseline.verdict, requeue_after=wait)
    words = (
        f"traffic or SLO drifted from what the plan is for; the planner is asked at {until:%H:%M:%S} UTC "
        f"(spec.planning.cooldown {now.spec.planning.cooldown})"
    )
    return KeepPlan(now.record, "Cooldown", words, requeue_after=wait)


def _inquiry(now: ReplanInputs, seen: Observation, drifts: tuple[DetectedDrift, ...]) -> ReplanRequest:
    """Ask for the highest rate of the window, or of the whole quiet time where less is enough."""
    settings = now.spec.planning.drift
    more = any(drift.direction == "more" for drift in drifts)
    span = seen.window_s if more else parse_duration(settings.shrink_after)
    load, valid = seen.workload, now.record.plan.validity
    if load is None:
        raise ValueError("a look that saw has a workload")
    newest = now.history.newest
    known = None if newest is None else newest.figures.get("rounds")
    if load.rounds is not None and known is not None:
        load = replace(load, rounds=replace(load.rounds, mean=known.value))
    # An hour without a session says that there are fewer than a few an hour, not that there are none.
    rate = max(now.history.peak_rate(span) or 0.0, 1 / span)
    return ReplanRequest(
        workload=observed_workload(now.prior, load, rate=rate, validity=valid, min_samples=settings.min_samples),
        cause="; ".join(drift.sentence for drift in drifts),
    )


def _judge(now: ReplanInputs, replan_request: ReplanRequest, answer: Answer) -> Decision:
    """Weigh the planner's answer; what it was made for is remembered only with the plan."""
    if not isinstance(answer, Planned):
        return _judged(now, "ReplanFailed", f"{answer.reason}: {answer.message}")
    plan, record = answer.plan, now.record
    broken = within_bounds(now.spec, plan)
    if broken:
        return _judged(now, "ReplanFailed", f"the planner's plan {plan_summary(plan)} cannot be used: {broken}")
    if same_rules(record.plan, plan):
        words = f"{plan_summary(plan)} stays the best although {replan_request.cause}"
        # The same workers, now known to be right for this traffic: from here on drift is measured from it.
        renewed = replace(record, plan=plan, profile=answer.profile, profiles=answer.profiles)
        made_from = stored(replan_request.workload)
        baseline = replace(record.baseline, workload=made_from, proposal=None)
        return _judged(replace(now, record=replace(renewed, baseline=baseline)), "NoBetterPlan", words)
    why = no_gain(record.plan, plan, min_improvement=now.spec.planning.min_improvement)
    if why:
        other = f"policy {plan.policy}" if same_workers(record.plan, plan) else plan_summary(plan)
        words = f"{plan_summary(record.plan)} stays although {replan_request.cause}: {other} was found, but {why}"
        return _judged(now, "NoBetterPlan", words)
    held = _held(now, plan, answer.profile, answer.profiles, patient=True)
    if held is not None:
        return _judged(now, *held)
    offered = propose(
        record,
        answer,
        request_hash=record.request_hash,
        cause=replan_request.cause,
        now=now.now,
        workload=replan_request.workload,
    )
    if now.spec.planning.mode == "Auto":
        changed = approve(offered, now.spec, now=now.now)
        # Nobody approved this one, so the last approval is still the last.
        return ChangePlan(replace(changed, baseline=replace(changed.baseline, approved=record.baseline.approved)))
    return KeepPlan(offered, *waits(offered, now.spec.planning.mode))


def _judged(now: ReplanInputs, reason: str, message: str) -> KeepPlan:
    record = now.record
    judged = judged_traffic(now.replan_request.workload) if now.replan_request is not None else None
    baseline = replace(record.baseline, judged_at=now.now, verdict=(reason, message), judged=judged)
    return KeepPlan(replace(record, baseline=baseline), reason, message, requeue_after=_pause(now.spec).total_seconds())


def _pause(spec: DisaggInferenceServiceSpec) -> timedelta:
    """Return how long a judgement stands: without a cooldown, too, the planner must not run all the time."""
    return timedelta(seconds=max(SHORTEST_PAUSE_S, parse_duration(spec.planning.cooldown)))


def _held(
    now: ReplanInputs,
    plan: Plan,
    profile: Mapping[str, Any],
    profiles: Mapping[str, Mapping[str, Any]],
    *,
    patient: bool,
) -> tuple[str, str] | None:
    """Return why a plan must wait, None when it need not; ``patient``: a shrink needs a long quiet time before it,
    which is longer than the time to grow, so that plans do not flap.

    Whatever is changed, live sessions must fit, and nothing is changed for fewer GPUs that is not seen.
    """
    seen, newest = now.observation, now.history.newest
    smaller = shrinks(now.record.plan, plan)
    sighted = seen is not None and seen.availability.seen and newest is not None and newest.seen
    if smaller and not sighted:
        why = f": {seen.availability.reason}" if seen is not None else ""
        return "MetricsUnavailable", f"a plan with fewer GPUs needs fresh measurements{why}"
    if smaller and patient:
        span = parse_duration(now.spec.planning.drift.shrink_after)
        changed_at = now.record.baseline.changed_at
        rested = changed_at is None or now.now - changed_at >= timedelta(seconds=span)
        if not rested or not now.history.throughout(span, lambda sample: not sample.missing_slo):
            return "ScaleDownStabilized", (
                f"{plan_summary(plan)} with fewer GPUs waits until the plan in force was seen to hold the SLO for "
                f"{format_seconds(span)} (spec.planning.drift.shrinkAfter)"
            )
    live = too_small(
        now.record, plan, {"": profile, **profiles}, seen.pressure if seen is not None else WorkerPressure()
    )
    if live and sighted:
        return "SessionsDoNotFit", f"{plan_summary(plan)} is too small for the sessions that live now: {live}"
    return None
