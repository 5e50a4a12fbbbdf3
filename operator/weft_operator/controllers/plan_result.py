"""The plan of a service and its condition Planned: the newest plan, or the last one while there is no newer one."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from weft_operator.api.conditions import ConditionValue
from weft_operator.controllers.plan_request import PlanRequest
from weft_operator.errors import StalledError
from weft_operator.planning.planner_process import Answer, Planned, Refused
from weft_operator.planning.request import Request
from weft_operator.render.inputs import PlanRecord
from weft_operator.render.plan_baseline import PlanBaseline
from weft_operator.render.plan_summary import plan_summary
from weft_operator.replanning.comparison import same_workers
from weft_operator.replanning.decide import ChangePlan, KeepPlan
from weft_operator.replanning.proposals import approve, propose, stale, waits
from weft_operator.replanning.workload import taken_up
from weft_operator.status.reasons.planned import PLANNED
from weft_operator.status.results import PlanResult
from weft_planner.request.service import in_manifest, in_spec

_FIELD = re.compile(r"([a-z]\w*)[\w.\[\]]*: ")


def settled_plan(asked: PlanRequest, record: PlanRecord | None, *, now: datetime) -> PlanResult | None:
    """Return the active plan when it is for this request, None when the planner must be asked."""
    if record is None:
        return None
    baseline, mode = record.baseline, asked.spec.planning.mode
    if record.request_hash == asked.hash:
        if baseline.proposal is not None and baseline.proposal.request_hash != asked.hash:
            record = replace(record, baseline=replace(baseline, proposal=None))  # of a spec that was reverted
        return _active(asked, record, "")
    if mode == "Off":
        return _active(asked, record, "; kept although the spec has changed, because spec.planning.mode is Off")
    if baseline.proposal is not None and baseline.proposal.request_hash == asked.hash and mode != "Auto":
        return _proposed(asked, record, now)
    return None


def request_with_observed_workload(asked: PlanRequest, record: PlanRecord | None) -> Request:
    """Return the request for a changed spec; an unchanged ``spec.workload`` keeps the observed workload.

    Otherwise a change of the SLO alone would plan for traffic that is known to be wrong.
    """
    kept = _observed(asked, record)
    return asked.request if kept is None else {**asked.request, "workload": kept}


def deferred_by_schedule(asked: PlanRequest, record: PlanRecord, why: str) -> PlanResult:
    """Return the active plan while the plan for the active schedule is deferred."""
    hours = f"schedule {asked.schedule.name} is" if asked.schedule is not None else "no schedule is"
    words = f"{plan_summary(record.plan)} stays although {hours} active now: {why}"
    return PlanResult(replace(record, spec=asked.spec), ConditionValue("True", "ScheduleDeferred", words))


def _observed(asked: PlanRequest, record: PlanRecord | None) -> dict[str, Any] | None:
    if record is None or record.baseline.workload is None or record.spec.workload != asked.spec.workload:
        return None
    return taken_up(record.baseline.workload, asked.request["workload"])


def plan_from_answer(
    asked: PlanRequest, answer: Answer | None, record: PlanRecord | None, *, now: datetime, notes: Sequence[str] = ()
) -> PlanResult:
    """Return the plan after the planner's answer; without a new plan the last one stays active.

    ``notes`` say what the planner did not know. In modes Advisory and Manual, other workers are only proposed.
    """
    if answer is None:
        kept = f"; {plan_summary(record.plan)} stays active meanwhile" if record is not None else ""
        return PlanResult(record, ConditionValue("Unknown", "Planning", f"the planner is at work{kept}"))
    if isinstance(answer, Refused):
        return plan_refused(answer.reason, _of_spec(answer.message), record)
    with_reason = replace(answer, plan=replace(answer.plan, notes=(*answer.plan.notes, *notes)))
    person = asked.spec.planning.mode in ("Advisory", "Manual")
    if record is not None and person and not same_workers(record.plan, with_reason.plan):
        workload = _observed(asked, record)
        offered = propose(
            record,
            with_reason,
            request_hash=asked.hash,
            cause="the spec changed" if not asked.spec.profile.measure else "the spec or the measured costs changed",
            now=now,
            workload=workload,
        )
        return _proposed(asked, offered, now)
    return _active(asked, _record(asked, with_reason, record, now), "")


def _of_spec(message: str) -> str:
    """Return a refusal with the spec's field names instead of the planner request's."""
    found = _FIELD.match(message)
    if found is not None and found[1] == "profile":
        return message  # a field of a CostProfile
    return in_manifest(in_spec(message) if found is not None else message)


def _proposed(asked: PlanRequest, record: PlanRecord, now: datetime) -> PlanResult:
    """Return the active plan while the proposal for the spec waits for approval."""
    proposal = record.baseline.proposal
    if proposal is not None and asked.approval == proposal.hash and asked.spec.planning.mode == "Manual":
        return _active(asked, approve(record, asked.spec, now=now), "")
    reason, message = waits(record, asked.spec.planning.mode)
    if asked.spec.planning.mode == "Manual" and asked.approval not in ("", record.baseline.approved):
        reason, message = "ApprovalStale", stale(record, asked.approval)
    return PlanResult(record, ConditionValue("False", reason, message))


def plan_refused(reason: str, message: str, record: PlanRecord | None) -> PlanResult:
    """Return the last plan when there can be no new one, and why."""
    known = reason if reason in PLANNED else "Infeasible"
    text = message if known == reason else f"{reason}: {message}"
    kept = f"; workers of {plan_summary(record.plan)} stay as they are" if record is not None else ""
    return PlanResult(record, ConditionValue("False", known, f"{text}{kept}"))


def plan_not_permitted(result: PlanResult, fault: StalledError) -> PlanResult:
    """Return a result without a plan that also says why the active plan is not permitted."""
    status, reason, message = result.planned.status, result.planned.reason, result.planned.message
    why = f"the active plan: {fault.message}; it is not rolled out, and pods stay as they are"
    if status != "False":
        return replace(result, planned=ConditionValue(status, reason, f"{message}; {why}"))
    return replace(
        result, planned=ConditionValue("False", fault.reason, f"{why}; of the newest spec {reason}: {message}")
    )


def replan_pending(asked: PlanRequest, record: PlanRecord) -> PlanResult:
    """Return the active plan while the planner works on the observed traffic."""
    reason, message = waits(record, asked.spec.planning.mode)
    words = "the planner is at work on the observed traffic; the active plan was made for another"
    return PlanResult(record, ConditionValue("True", reason or "Replanning", message or words))


def with_reason(result: PlanResult, reason: str, message: str) -> PlanResult:
    """Return the result with this reason, unless it has one that is more important."""
    quiet = result.planned.status == "True" and result.planned.reason != "Replanning"
    return replace(result, planned=ConditionValue("True", reason, message)) if reason and quiet else result


def plan_from_decision(asked: PlanRequest, decision: KeepPlan | ChangePlan) -> PlanResult:
    """Return the plan of a replanning decision; the condition stays True."""
    result = _active(asked, decision.record, "")
    if isinstance(decision, ChangePlan) or not decision.reason:
        return result
    return replace(
        result, planned=ConditionValue("True", decision.reason, decision.message), requeue_after=decision.requeue_after
    )


def _record(asked: PlanRequest, answer: Planned, before: PlanRecord | None, now: datetime) -> PlanRecord:
    baseline = before.baseline if before is not None else PlanBaseline()
    stays = before is not None and same_workers(before.plan, answer.plan)
    workload = _observed(asked, before)
    return PlanRecord(
        spec=asked.spec,
        plan=answer.plan,
        profile=answer.profile,
        request_hash=asked.hash,
        profiles=answer.profiles,
        baseline=PlanBaseline(
            workload=None if workload is None else baseline.workload,
            changed_at=baseline.changed_at if stays else now,
            approved=baseline.approved,
            rolled_back=baseline.rolled_back,
            scaled_to_zero_at=baseline.scaled_to_zero_at,
        ),
    )


def _active(asked: PlanRequest, record: PlanRecord, note: str) -> PlanResult:
    plan = record.plan
    current = replace(record, spec=asked.spec)
    why = plan.reason or f"{plan_summary(plan)} on {plan.gpus} GPUs"
    if record.baseline.hold is not None:
        held = (
            f"{plan_summary(plan)} is held, because {record.baseline.hold.cause}, until the spec or the traffic changes"
        )
        return PlanResult(current, ConditionValue("True", "RolledBack", f"{held}{note}"))
    if record.baseline.cause:
        made_for = f"{plan_summary(plan)} was made for the observed traffic, because {record.baseline.cause}; "
        return PlanResult(current, ConditionValue("True", "Replanned", f"{made_for}{why}{note}"))
    return PlanResult(current, ConditionValue("True", "PlanReady", f"{why}{note}"))
