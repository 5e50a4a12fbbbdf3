"""Replanning decisions for a service whose traffic or SLO may have drifted: keep, ask the planner, propose or apply.

Pure: inputs in, decision out. The checks run in the order of the code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from weft_core.durations import format_seconds, parse_duration
from weft_core.layouts import only_roles_differ
from weft_core.plan import Plan
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.metrics.history import History
from weft_operator.metrics.observation import STARTING, Observation, UnavailableReason, WorkerPressure
from weft_operator.planning.planner_process import Answer, Planned
from weft_operator.render.engines.adapters import has_fixed_roles
from weft_operator.render.inputs import PlanRecord
from weft_operator.render.plan_summary import plan_summary
from weft_operator.replanning.comparison import no_gain, same_rules, same_workers, shrinks, too_small, within_bounds
from weft_operator.replanning.drift import DetectedDrift, detect_drifts, holds_workers
from weft_operator.replanning.drift_report import differs, has_grown, has_risen, judged_traffic
from weft_operator.replanning.proposals import approve, propose, stale, waits
from weft_operator.replanning.rollback import still_held
from weft_operator.replanning.workload import observed_workload, stored, with_longer_fast_lengths

UNMEASURED: tuple[UnavailableReason, ...] = ("NotConfigured", "NotYetObserved", "TooFewSamples")
"""Reasons for missing metrics that are no fault: none are configured, or too few were collected yet."""

MIN_COOLDOWN_S = 60.0
GROWTH_COOLDOWN_S = 10.0
"""Shortest time from a decision to the next planner request where the traffic grows."""


@dataclass(frozen=True, slots=True)
class ReplanRequest:
    """A pending request for another plan: its workload, in the planner request's form, and its cause."""

    workload: Mapping[str, Any]
    cause: str
    growth: float = 1.0
    """How many times the observed rate the workload has, because a trigger asked for more."""


@dataclass(frozen=True, slots=True)
class ReplanInputs:
    """The inputs of a decision; ``prior`` is the workload of the spec's planner request.

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
    """Keep the plan; ``record`` may have a new proposal or decision. ``reason`` is "" where there is none to report."""

    record: PlanRecord
    reason: str = ""
    message: str = ""
    requeue_after: float | None = None
    """Seconds after which to decide again without an event."""


@dataclass(frozen=True, slots=True)
class AskPlanner:
    """Send the replan request to the planner, and decide again with its answer."""

    replan_request: ReplanRequest


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """Apply another plan."""

    record: PlanRecord


Decision = KeepPlan | AskPlanner | ChangePlan


def decide(now: ReplanInputs) -> Decision:
    """Return the decision.

    Without current metrics only an approved plan is applied, and only if it has no fewer GPUs.
    """
    mode = now.spec.planning.mode
    if mode == "Off":
        return KeepPlan(now.record)
    if mode == "Auto" and now.record.baseline.proposal is not None:
        # Approval is no longer needed: decide again on current metrics.
        baseline = replace(now.record.baseline, proposal=None, judged_at=None, verdict=("", ""))
        return decide(replace(now, record=replace(now.record, baseline=baseline)))
    if mode == "Manual" and now.approval not in ("", now.record.baseline.approved):
        return _approval(now)
    return _unapproved(now)


def _approval(now: ReplanInputs) -> Decision:
    proposal = now.record.baseline.proposal
    if proposal is None or proposal.hash != now.approval:
        decision = _unapproved(now)
        if isinstance(decision, KeepPlan):
            return replace(decision, reason="ApprovalStale", message=stale(decision.record, now.approval))
        return decision
    waiting = _must_wait(now, proposal.plan, proposal.profile, proposal.profiles, stabilize=False)
    if waiting is not None:
        reason, message = waiting
        return KeepPlan(now.record, reason, f"approved, and waits: {message}")
    return ChangePlan(approve(now.record, now.spec, now=now.now))


def _unapproved(now: ReplanInputs) -> Decision:
    record, baseline, seen = now.record, now.record.baseline, now.observation
    waiting = waits(record, now.spec.planning.mode)
    if baseline.hold is not None:
        # Without metrics nothing is known against the held plan.
        if seen is None or still_held(record, now.spec, now.history, seen):
            return KeepPlan(record)
        return _unapproved(replace(now, record=replace(record, baseline=replace(baseline, hold=None))))
    if seen is None or seen.availability.reason in {*UNMEASURED, *STARTING}:
        return KeepPlan(record, *waiting)
    newest = now.history.newest
    if not seen.availability.seen or newest is None or not newest.seen:
        # The availability's message may have figures that change with every query; MetricsAvailable shows them.
        why = seen.availability.reason
        words = f"the plan is kept while its metrics are missing ({why}); see the condition MetricsAvailable"
        return KeepPlan(record, *(waiting if waiting[0] else ("MetricsUnavailable", words)))
    drifts = detect_drifts(
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
        return (
            AskPlanner(now.replan_request)
            if now.answer is None
            else _decide_on_answer(now, now.replan_request, now.answer)
        )
    request = _replan_request(now, seen, drifts)
    cooldown = _cooldown(now, drifts, request)
    if cooldown is not None:
        return replace(cooldown, reason=waiting[0], message=waiting[1]) if waiting[0] else cooldown
    return AskPlanner(request)


def _nothing_drifted(now: ReplanInputs) -> KeepPlan:
    """Withdraw a proposal once the traffic has matched the active plan for ``shrinkAfter``."""
    record = now.record
    stable = now.history.throughout(parse_duration(now.spec.planning.drift.shrink_after), lambda s: not s.missing_slo)
    if stable and record.baseline.proposal is not None:
        record = replace(record, baseline=replace(record.baseline, proposal=None, verdict=("", "")))
    return KeepPlan(record, *waits(record, now.spec.planning.mode))


def _cooldown(now: ReplanInputs, drifts: Sequence[DetectedDrift], request: ReplanRequest) -> KeepPlan | None:
    """Return why the planner is not asked yet, None when it may be asked."""
    baseline = now.record.baseline
    until = now.now
    usual = parse_duration(now.spec.planning.cooldown)
    own = min(usual if drift.cooldown_s is None else drift.cooldown_s for drift in drifts)
    if baseline.changed_at is not None:
        until = max(until, baseline.changed_at + timedelta(seconds=own))
    if baseline.judged_at is not None:
        newest, seen = now.history.newest, now.observation
        different = has_grown(baseline.judged, newest, tolerance=now.spec.planning.drift.workload)
        # Until a window has passed, the last question may have been about the beginning of a change.
        if seen is not None and now.now - baseline.judged_at < timedelta(seconds=seen.window_s):
            more = any(drift.direction == "more" for drift in drifts)
            other = differs(baseline.judged, _traffic_of(request), tolerance=now.spec.planning.drift.workload)
            different = different or has_risen(baseline.judged, newest) or (more and other)
        pause = timedelta(seconds=GROWTH_COOLDOWN_S if different else max(MIN_COOLDOWN_S, own))
        until = max(until, baseline.judged_at + pause)
    if until <= now.now:
        return None
    wait = (until - now.now).total_seconds()
    if baseline.verdict[0]:
        return KeepPlan(now.record, *baseline.verdict, requeue_after=wait)
    setting = f"spec.planning.cooldown {now.spec.planning.cooldown}"
    if own != usual:
        setting = f"spec.planning.triggers.cooldown {format_seconds(own)}"
    words = (
        f"traffic, SLO or load drifted from what the plan is for; the planner is asked at {until:%H:%M:%S} UTC "
        f"({setting})"
    )
    return KeepPlan(now.record, "Cooldown", words, requeue_after=wait)


def _replan_request(now: ReplanInputs, seen: Observation, drifts: tuple[DetectedDrift, ...]) -> ReplanRequest:
    """Return the request: for the highest rate of the window, or of ``shrinkAfter`` where less traffic arrives.

    Lengths that are significantly longer in the fast window are those of that window, unless all drifts allow a smaller
    plan.
    Triggers ask for more than that rate: the workers carry more than they are to.
    """
    settings = now.spec.planning.drift
    more = any(drift.direction == "more" for drift in drifts)
    span = seen.window_s if more else parse_duration(settings.shrink_after)
    load, valid = seen.workload, now.record.plan.validity
    if load is None:
        raise ValueError("an observation with metrics has a workload")
    newest = now.history.newest
    known = None if newest is None else newest.figures.get("rounds")
    if load.rounds is not None and known is not None:
        load = replace(load, rounds=replace(load.rounds, mean=known.value))
    if more:
        load = with_longer_fast_lengths(load, min_samples=settings.min_samples)
    # A span without a session means a rate below one per span, not a rate of 0.
    growth = max(drift.growth for drift in drifts)
    rate = max(now.history.peak_rate(span) or 0.0, 1 / span) * growth
    return ReplanRequest(
        workload=observed_workload(now.prior, load, rate=rate, validity=valid, min_samples=settings.min_samples),
        cause="; ".join(drift.sentence for drift in drifts),
        growth=growth,
    )


def _decide_on_answer(now: ReplanInputs, replan_request: ReplanRequest, answer: Answer) -> Decision:
    """Decide on the planner's answer."""
    if not isinstance(answer, Planned):
        return _record_decision(now, "ReplanFailed", f"{answer.reason}: {answer.message}")
    plan, record = answer.plan, now.record
    broken = within_bounds(now.spec, plan)
    if broken:
        return _record_decision(
            now, "ReplanFailed", f"the planner's plan {plan_summary(plan)} cannot be used: {broken}"
        )
    if same_rules(record.plan, plan):
        words = f"{plan_summary(plan)} stays the best although {replan_request.cause}"
        if replan_request.growth > 1:
            return _record_decision(now, "NoBetterPlan", words)
        # The same workers are right for this traffic, too: from now on drift is measured against it.
        renewed = replace(record, plan=plan, profile=answer.profile, profiles=answer.profiles)
        made_from = stored(replan_request.workload)
        baseline = replace(record.baseline, workload=made_from, proposal=None)
        return _record_decision(replace(now, record=replace(renewed, baseline=baseline)), "NoBetterPlan", words)
    why = no_gain(record.plan, plan, min_improvement=_least_gain(now, plan))
    if why:
        other = f"policy {plan.policy}" if same_workers(record.plan, plan) else plan_summary(plan)
        words = f"{plan_summary(record.plan)} stays although {replan_request.cause}: {other} was found, but {why}"
        return _record_decision(now, "NoBetterPlan", words)
    waiting = _must_wait(now, plan, answer.profile, answer.profiles, stabilize=True)
    if waiting is not None:
        return _record_decision(now, *waiting)
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
        # This plan was not approved by a person, so the last approval stays.
        baseline = replace(changed.baseline, approved=record.baseline.approved, judged=_traffic_of(replan_request))
        return ChangePlan(replace(changed, baseline=baseline))
    return KeepPlan(offered, *waits(offered, now.spec.planning.mode))


def _least_gain(now: ReplanInputs, plan: Plan) -> float:
    """Return the share by which a plan must be better; 0 where workers change nothing but roles, within seconds."""
    active = now.record.plan
    roles_change = only_roles_differ(active.groups, plan.groups) and not same_workers(active, plan)
    return 0.0 if roles_change and not has_fixed_roles(now.spec) else now.spec.planning.min_improvement


def _record_decision(now: ReplanInputs, reason: str, message: str) -> KeepPlan:
    record = now.record
    traffic = _traffic_of(now.replan_request) if now.replan_request is not None else None
    baseline = replace(record.baseline, judged_at=now.now, verdict=(reason, message), judged=traffic)
    return KeepPlan(
        replace(record, baseline=baseline), reason, message, requeue_after=_cooldown_of(now.spec).total_seconds()
    )


def _traffic_of(replan_request: ReplanRequest) -> dict[str, float]:
    """Return the observed figures of a request, without the growth that a trigger asked for."""
    traffic = judged_traffic(replan_request.workload)
    if "rate" in traffic:
        traffic["rate"] /= replan_request.growth
    return traffic


def _cooldown_of(spec: DisaggInferenceServiceSpec) -> timedelta:
    """Return the cooldown; even if the spec has none, the planner must not run all the time."""
    return timedelta(seconds=max(MIN_COOLDOWN_S, parse_duration(spec.planning.cooldown)))


def _must_wait(
    now: ReplanInputs,
    plan: Plan,
    profile: Mapping[str, Any],
    profiles: Mapping[str, Mapping[str, Any]],
    *,
    stabilize: bool,
) -> tuple[str, str] | None:
    """Return the reason and message for which a plan must wait, None when it need not.

    A plan with fewer GPUs needs current metrics and, if ``stabilize``, a ``shrinkAfter`` without a missed SLO, so that
    plans do not flap. Live sessions must fit into any plan.
    """
    seen, newest = now.observation, now.history.newest
    smaller = shrinks(now.record.plan, plan)
    observed = seen is not None and seen.availability.seen and newest is not None and newest.seen
    if smaller and not observed:
        why = f": {seen.availability.reason}" if seen is not None else ""
        return "MetricsUnavailable", f"a plan with fewer GPUs needs current metrics{why}"
    if smaller and stabilize:
        span = parse_duration(now.spec.planning.drift.shrink_after)
        changed_at = now.record.baseline.changed_at
        stable = changed_at is None or now.now - changed_at >= timedelta(seconds=span)
        if not stable or not now.history.throughout(span, lambda sample: not sample.missing_slo):
            return "ScaleDownStabilized", (
                f"{plan_summary(plan)} with fewer GPUs waits until the active plan has met the SLO for "
                f"{format_seconds(span)} (spec.planning.drift.shrinkAfter)"
            )
    if smaller and observed and seen is not None and (held := holds_workers(now.spec.planning, seen)):
        return "ScaleDownStabilized", f"{plan_summary(plan)} with fewer GPUs waits: {held}"
    live = too_small(
        now.record, plan, {"": profile, **profiles}, seen.pressure if seen is not None else WorkerPressure()
    )
    if live and observed:
        return "SessionsDoNotFit", f"{plan_summary(plan)} is too small for the live sessions: {live}"
    return None
