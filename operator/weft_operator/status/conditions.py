"""Compute the status of a service from the result of one pass: the only place that sets conditions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from weft_core.durations import format_seconds
from weft_core.layouts import Role, duties_of, role_letters
from weft_core.plan import Plan
from weft_operator.api.conditions import ConditionValue, Truth
from weft_operator.api.objects import PICKER_COMPONENT, ServiceKey
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.metrics.observation import STARTING, AvailabilityReason
from weft_operator.metrics.status_figures import SloReason, figures, moved, slo_reason
from weft_operator.render.inputs import PlanRecord
from weft_operator.render.plan_baseline import time_text
from weft_operator.render.plan_summary import plan_summary
from weft_operator.status.condition_json import condition_json, stored_value
from weft_operator.status.engine_conditions import NO_HEARTBEATS, engine_checks
from weft_operator.status.kstatus import reconciling, stalled
from weft_operator.status.plan_status import plan_status, proposed_status
from weft_operator.status.predictions import cost_model_fresh, plan_sources, slo_feasible
from weft_operator.status.reasons.catalogue import CONDITIONS, REASONS, ConditionType
from weft_operator.status.results import ServiceResult
from weft_operator.workers.readiness import PickerState, WorkerState

ABOUT_WORKERS: tuple[ConditionType, ...] = ("Ready", "SLOFeasible", "CostModelFresh")
"""Conditions about the running workers and their plan."""


def build_status(result: ServiceResult, before: Mapping[str, Any], *, now: str) -> dict[str, Any]:
    """Return the status after a pass; a condition keeps its transition time while its status stays."""
    seen = _metrics_status(result, before)
    values: dict[ConditionType, ConditionValue] = {
        "Planned": result.plan.planned,
        "Ready": ready(result),
        "Progressing": progressing(result),
        "Drained": drained(result),
        "SLOFeasible": slo_feasible(result.rollout.active or result.plan.record),
        "MetricsAvailable": seen.metrics_available,
        "SLOMet": seen.slo_met,
        "CostModelFresh": _cost_model(result, seen, before),
    }
    was = {item["type"]: item for item in before.get("conditions") or ()}
    if result.profile is not None:
        values["ProfileMeasured"] = result.profile
    if result.tiers is not None:
        values["KVCacheTiers"] = result.tiers
    if result.weights.condition is not None:
        values["ModelReady"] = result.weights.condition
    values |= _of_engines(result, was)
    values |= {"Reconciling": reconciling(values), "Stalled": stalled(values)}
    generations = dict.fromkeys(CONDITIONS, result.generation)
    observed = result.generation
    if _replanning(result) or result.weights.missing == "Coming":
        # These conditions are still about the old plan's workers, not about the new spec.
        observed = min(observed, int(before.get("observedGeneration") or 0))
        for kind in ABOUT_WORKERS:
            generations[kind] = min(observed, int((was.get(kind) or {}).get("observedGeneration") or 0))
    status: dict[str, Any] = {
        "observedGeneration": observed,
        "conditions": [
            _documented(kind, values[kind], was.get(kind), generation=generations[kind], now=now)
            for kind in CONDITIONS
            if kind in values
        ],
    }
    if result.plan.record is not None:
        in_force = result.rollout.active or result.plan.record
        plan = in_force.plan
        status |= {
            "plan": {**plan_status(in_force), "number": result.rollout.number},
            "planSummary": plan_summary(plan),
            "sloSummary": "met" if plan.predicted.slo_met else "missed",
            "ttftSummary": format_seconds(plan.predicted.ttft_p95_s),
            "itlSummary": format_seconds(plan.predicted.itl_p95_s),
            "groups": list(result.workers.groups),
            "workersSummary": workers_summary(plan, result.workers.states),
            "url": url_of(result.key, result.plan.record.spec),
        }
        if result.plan.schedule is not None:
            name, until = result.plan.schedule
            hours = {"name": name, "until": time_text(until)}
            status["schedule"] = {key: value for key, value in hours.items() if value}
        proposed = proposed_status(result.plan.record)
        if proposed is not None:
            status["proposedPlan"] = proposed
        pinned, offered = result.rollout.router
        if pinned:
            status["router"] = {"image": pinned, **({"offered": offered} if offered != pinned else {})}
        if result.rollout.canary is not None:
            status["canary"] = dict(result.rollout.canary)
        if seen.figures is not None:
            status["observed"] = seen.figures
    return status


def workers_summary(plan: Plan, states: Sequence[WorkerState]) -> str:
    """Return the ready workers of all, by role: P2/2 D3/3."""
    counts: dict[str, tuple[int, int]] = {}
    for role, letter in role_letters(plan.layout).items():
        mine = [state for state in states if state.worker.role == role]
        if mine:
            counts[letter] = (sum(state.ready for state in mine), len(mine))
    return " ".join(f"{letter}{ready}/{every}" for letter, (ready, every) in counts.items())


_NO_WORKER: Mapping[Role, str] = {"prefill": "NoPrefillWorker", "decode": "NoDecodeWorker"}


def ready(result: ServiceResult) -> ConditionValue:
    """Return the condition Ready: True only when coordinator, endpoint pickers and every planned worker are ready."""
    if result.plan.record is None:
        return ConditionValue("False", "NotPlanned", f"no plan yet: {result.plan.planned.message}")
    if result.weights.missing and not result.workers.groups:
        return ConditionValue(
            "False", "ModelNotReady", f"no worker starts without its weights: {_model_message(result)}"
        )
    if result.plan.record.baseline.scaled_to_zero_at is not None:
        return _at_zero(result, result.plan.record, result.plan.record.baseline.scaled_to_zero_at)
    missing = [state for state in result.workers.states if not state.ready]
    given_up = result.rollout.step is not None and result.rollout.step.refusal is not None
    shared = result.rollout.step is not None and result.rollout.step.share is not None
    roles = {state.worker.role for state in result.workers.states}
    if not given_up:
        roles |= {group.role for group in result.plan.record.plan.groups}
    planned = {duty for role in roles for duty in duties_of(role)}
    for role, reason in _NO_WORKER.items():
        of_role = [state for state in result.workers.states if role in duties_of(state.worker.role)]
        serves = role in result.rollout.served or any(state.ready or state.waits for state in of_role)
        if role in planned and not serves:
            return ConditionValue("False", reason, f"0 of {len(of_role)} {role} workers are ready{_trouble(of_role)}")
    if not result.workers.coordinator.available:
        return _no_coordinator(result)
    if result.workers.picker is not None and not result.workers.picker.available:
        return _no_picker(result.key, result.plan.record.spec, result.workers.picker)
    summary = "the plan before" if given_up else plan_summary(result.plan.record.plan)
    if shared:
        summary = f"the plan before and of the canary of {summary}"
    if missing:
        count = len(result.workers.states)
        names = ", ".join(state.name for state in missing[:5])
        return ConditionValue(
            "False",
            "Degraded",
            f"{count - len(missing)} of {count} workers of {summary} are ready; missing: {names}{_trouble(missing)}",
        )
    url = url_of(result.key, result.plan.record.spec)
    return ConditionValue("True", "Serving", f"all workers of {summary} are ready; send requests to {url}")


def _at_zero(result: ServiceResult, record: PlanRecord, since: datetime) -> ConditionValue:
    """Return Ready of a service at zero: True, because the coordinator holds requests until workers are ready."""
    if not result.workers.coordinator.available:
        return _no_coordinator(result)
    if result.workers.picker is not None and not result.workers.picker.available:
        return _no_picker(result.key, record.spec, result.workers.picker)
    if result.plan.demand_unknown:
        return ConditionValue(
            "False",
            "DemandUnknown",
            "no worker runs, and Redis, through which coordinators report waiting requests, does not answer; check the "
            "Redis of the chart's redis.url",
        )
    settings = record.spec.planning.scale_to_zero
    held = "" if settings is None else f" for up to {settings.hold}"
    return ConditionValue(
        "True",
        "ScaledToZero",
        f"no worker runs since {since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, because no request came; the next one to "
        f"{url_of(result.key, record.spec)} starts {plan_summary(record.plan)} and waits for it{held}",
    )


def _no_coordinator(result: ServiceResult) -> ConditionValue:
    more = f"; {result.workers.coordinator.trouble}" if result.workers.coordinator.trouble else ""
    return ConditionValue(
        "False", "CoordinatorNotReady", f"no coordinator pod of the newest template is available{more}"
    )


def _no_picker(key: ServiceKey, spec: DisaggInferenceServiceSpec, picker: PickerState) -> ConditionValue:
    more = f"; {picker.trouble}" if picker.trouble else ""
    opens = spec.gateway is not None and spec.gateway.failure_mode == "FailOpen"
    meanwhile = "sends requests to any worker, which passes them on to the coordinator" if opens else "refuses requests"
    return ConditionValue(
        "False",
        "EndpointPickerNotReady",
        f"no pod of Deployment {key.name}-{PICKER_COMPONENT} is available, so the gateway {meanwhile}{more}",
    )


def progressing(result: ServiceResult) -> ConditionValue:
    """Return the condition Progressing: True while objects differ from the desired state."""
    if result.workers.failure is not None and result.plan.planned.reason != "Planning":
        return result.workers.failure
    if result.plan.record is None:
        waiting: Truth = "True" if result.plan.planned.reason == "Planning" else "False"
        return ConditionValue(waiting, "WaitingForPlan", "nothing is deployed before there is a plan")
    if result.weights.missing:
        kept = "; workers of the last plan keep running" if result.workers.groups else ""
        if result.weights.missing == "Coming":
            return ConditionValue("True", "WaitingForModel", f"{_model_message(result)}{kept}")
        return ConditionValue("False", "ModelRefused", f"{_model_message(result)}{kept}")
    if result.rollout.step is not None and result.rollout.step.refusal is not None:
        rolling_back: Truth = "True" if result.rollout.step.outcome == "RollingBack" else "False"
        failed = result.rollout.step.refusal.reason == "CanaryFailed"
        return ConditionValue(rolling_back, "CanaryFailed" if failed else "RolloutAborted", result.rollout.step.message)
    missing = [state for state in result.workers.states if not state.ready]
    stuck = [state for state in missing if state.unschedulable]
    if result.workers.lost:
        return ConditionValue(
            "True", "ReplacingWorkers", f"replacing lost workers: {', '.join(result.workers.lost[:5])}"
        )
    if stuck:
        return ConditionValue("True", "Unschedulable", stuck[0].trouble)
    if result.rollout.step is not None and result.rollout.step.outcome == "Canary":
        return ConditionValue("True", "CanaryRunning", result.rollout.step.message)
    if missing:
        ready_now = len(result.workers.states) - len(missing)
        waits = sum(state.waits for state in missing)
        turn = f"; {waits} still serve with the old template" if waits else ""
        return ConditionValue(
            "True", "RollingOut", f"{ready_now} of {len(result.workers.states)} workers are ready{turn}{_step(result)}"
        )
    if result.workers.leaving:
        return ConditionValue(
            "True", "RollingOut", f"removing workers: {', '.join(result.workers.leaving[:5])}{_step(result)}"
        )
    if not result.workers.coordinator.rolled_out:
        return ConditionValue("True", "RollingOut", "coordinator pods are starting or being replaced")
    if result.workers.picker is not None and not result.workers.picker.rolled_out:
        return ConditionValue("True", "RollingOut", "endpoint picker pods are starting or being replaced")
    if _replanning(result):
        return ConditionValue("True", "WaitingForPlan", "the planner is at work; workers of the last plan keep running")
    return ConditionValue("False", "UpToDate", f"plan {result.plan.record.plan.revision} is rolled out")


def drained(result: ServiceResult) -> ConditionValue:
    """Return the condition Drained: False while workers drain, or where some were lost with their sessions."""
    if result.plan.record is None:
        return ConditionValue("Unknown", "NotPlanned", "there is no plan yet")
    if result.workers.leaving:
        return ConditionValue("False", "Draining", f"workers are draining: {', '.join(result.workers.leaving[:5])}")
    if result.workers.lost:
        return ConditionValue(
            "False", "WorkersLost", f"lost without migrating their sessions: {', '.join(result.workers.lost[:5])}"
        )
    return ConditionValue("True", "NoWorkersDraining", "no worker is draining")


@dataclass(frozen=True, slots=True)
class _MetricsStatus:
    """The parts of a status that follow from metrics."""

    metrics_available: ConditionValue
    slo_met: ConditionValue
    figures: Mapping[str, Any] | None


_TRUTH: Mapping[SloReason, Truth] = {"Met": "True", "Missed": "False", "TooFewRounds": "Unknown", "Unknown": "Unknown"}


def _metrics_status(result: ServiceResult, before: Mapping[str, Any]) -> _MetricsStatus:
    """Return the metrics' part of the status: the old one while it differs by noise only or metrics are to come."""
    shown: Mapping[str, Any] | None = before.get("observed")
    was = {item["type"]: item for item in before.get("conditions") or ()}
    observation = result.metrics.observation
    if result.plan.record is None or (observation is None and shown is None):
        word, message = slo_reason(None)
        nothing = ConditionValue("Unknown", "NotYetObserved", "waiting for the first metrics")
        return _MetricsStatus(nothing, ConditionValue(_TRUTH[word], word, message), None)
    if observation is None:
        return _MetricsStatus(stored_value(was["MetricsAvailable"]), stored_value(was["SLOMet"]), shown)
    availability = observation.availability
    available = ConditionValue(_truth(availability.reason), availability.reason, availability.message)
    word, message = slo_reason(observation.slo)
    new = figures(observation)
    if shown is not None and was["SLOMet"]["reason"] == word and not moved(shown, new):
        return _MetricsStatus(available, stored_value(was["SLOMet"]), shown)
    return _MetricsStatus(available, ConditionValue(_TRUTH[word], word, message), new)


def _truth(reason: AvailabilityReason) -> Truth:
    """Return the status of MetricsAvailable: Unknown while metrics are still to come."""
    if reason in STARTING:
        return "Unknown"
    return "True" if reason == "Fresh" else "False"


def _cost_model(result: ServiceResult, seen: _MetricsStatus, before: Mapping[str, Any]) -> ConditionValue:
    """Return the condition CostModelFresh; its message stays while the figures of the status and the source do."""
    alone = (
        result.rollout.active is None
        and not result.workers.leaving
        and all(state.ready for state in result.workers.states)
    )
    found = cost_model_fresh(
        result.plan.record, in_force=alone, observation=result.metrics.observation, drifts=result.metrics.drifts
    )
    was = next((item for item in before.get("conditions") or () if item["type"] == "CostModelFresh"), None)
    if was is None or result.plan.record is None:
        return found
    same = (was["status"], was["reason"]) == (found.status, found.reason) and before.get("observed") == seen.figures
    same = same and was["message"].endswith(plan_sources(result.plan.record))
    unobserved = result.metrics.observation is None and seen.figures is not None
    return stored_value(was) if same or unobserved else found


def _of_engines(result: ServiceResult, was: Mapping[str, Mapping[str, Any]]) -> dict[ConditionType, ConditionValue]:
    """Return the conditions of the engines, from heartbeats; the old ones while there is no heartbeat."""
    if result.plan.record is None or result.workers.heartbeats is None:
        return {}
    values: dict[ConditionType, ConditionValue] = {}
    for kind, check in engine_checks(result.plan.record.spec, paired=result.plan.record.paired).items():
        value = check(result.workers.ready, result.workers.heartbeats)
        old = stored_value(was[kind]) if kind in was else NO_HEARTBEATS[kind]
        values[kind] = value or old
    return values


def _step(result: ServiceResult) -> str:
    """Return the message of the rollout's step."""
    return (
        f"; {result.rollout.step.message}"
        if result.rollout.step is not None and result.rollout.step.outcome == "Progressing"
        else ""
    )


def _replanning(result: ServiceResult) -> bool:
    """Return whether the workers are those of an old plan while the planner works on the spec."""
    return result.plan.record is not None and result.plan.planned.reason == "Planning"


def _model_message(result: ServiceResult) -> str:
    return "" if result.weights.condition is None else result.weights.condition.message


def _trouble(states: Sequence[WorkerState]) -> str:
    return next((f"; {state.trouble}" for state in states if not state.ready and state.trouble), "")


def url_of(key: ServiceKey, spec: DisaggInferenceServiceSpec) -> str:
    """Return where a service's requests go inside the cluster."""
    scheme = "http" if spec.coordinator.tls is None else "https"
    return f"{scheme}://{key.name}.{key.namespace}.svc"


def _documented(
    kind: ConditionType, value: ConditionValue, before: Mapping[str, Any] | None, *, generation: int, now: str
) -> dict[str, Any]:
    if value.reason not in REASONS[kind]:
        raise LookupError(f"{kind}: reason {value.reason} is not in weft_operator.status.reasons; document it there")
    return condition_json(kind, value, before, generation=generation, now=now)
