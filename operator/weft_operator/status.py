"""Compute the whole status of a service from the result of one pass: the one place that sets conditions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from weft_core.durations import format_seconds
from weft_core.plan import Plan, Role, plan_to_json
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.desired.rendering import PlanRecord
from weft_operator.manifest import ServiceKey
from weft_operator.readiness import CoordinatorState, WorkerState
from weft_operator.reasons import CONDITIONS, REASONS, ConditionType

Truth = Literal["True", "False", "Unknown"]

MAX_MESSAGE = 2000
MAX_NOTES = 16
_DIGITS = 6
_LETTER: Mapping[Role, str] = {"prefill": "P", "decode": "D"}


NO_COORDINATOR = CoordinatorState(available=False, rolled_out=False)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The value of one condition."""

    status: Truth
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Result:
    """What one pass found and did."""

    key: ServiceKey
    generation: int
    planned: Verdict
    record: PlanRecord | None = None
    workers: tuple[WorkerState, ...] = ()
    coordinator: CoordinatorState = NO_COORDINATOR
    lost: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()
    """Workers that are on their way out."""
    failure: Verdict | None = None
    """Why an object could not be applied."""


def build_status(result: Result, before: Mapping[str, Any], *, now: str) -> dict[str, Any]:
    """Return the status after a pass; a condition keeps its transition time while its status stays."""
    verdicts: dict[ConditionType, Verdict] = {
        "Planned": result.planned,
        "Ready": ready(result),
        "Progressing": progressing(result),
    }
    was = {item["type"]: item for item in before.get("conditions") or ()}
    generations = dict.fromkeys(CONDITIONS, result.generation)
    observed = result.generation
    if _replanning(result):
        # Ready is still about the workers of the plan before, so nobody may read it as an answer to the new spec.
        observed = min(observed, int(before.get("observedGeneration") or 0))
        generations["Ready"] = min(observed, int((was.get("Ready") or {}).get("observedGeneration") or 0))
    status: dict[str, Any] = {
        "observedGeneration": observed,
        "conditions": [_condition(kind, verdicts[kind], was.get(kind), generations[kind], now) for kind in CONDITIONS],
    }
    if result.record is not None:
        plan = result.record.plan
        status |= {
            "plan": plan_status(plan),
            "planSummary": plan_summary(plan),
            "sloSummary": "met" if plan.predicted.slo_met else "missed",
            "ttftSummary": format_seconds(plan.predicted.ttft_p95_s),
            "itlSummary": format_seconds(plan.predicted.itl_p95_s),
            "groups": _groups(plan, result.workers),
            "url": url_of(result.key, result.record.spec),
        }
    return status


def ready(result: Result) -> Verdict:
    """Return the condition Ready: True only when the coordinator and every planned worker are ready."""
    if result.record is None:
        return Verdict("False", "NotPlanned", f"no plan yet: {result.planned.message}")
    missing = [state for state in result.workers if not state.ready]
    planned = {group.role for group in result.record.plan.groups}
    for role, reason in (("prefill", "NoPrefillWorker"), ("decode", "NoDecodeWorker")):
        of_role = [state for state in result.workers if state.worker.role == role]
        if role in planned and not any(state.ready or state.waits for state in of_role):
            return Verdict("False", reason, f"0 of {len(of_role)} {role} workers are ready{_trouble(of_role)}")
    if not result.coordinator.available:
        more = f"; {result.coordinator.trouble}" if result.coordinator.trouble else ""
        return Verdict("False", "CoordinatorNotReady", f"no coordinator pod of the newest template is available{more}")
    summary = plan_summary(result.record.plan)
    if missing:
        count = len(result.workers)
        names = ", ".join(state.name for state in missing[:5])
        return Verdict(
            "False",
            "Degraded",
            f"{count - len(missing)} of {count} workers of {summary} are ready; missing: {names}{_trouble(missing)}",
        )
    url = url_of(result.key, result.record.spec)
    return Verdict("True", "Serving", f"all workers of {summary} are ready; send requests to {url}")


def progressing(result: Result) -> Verdict:
    """Return the condition Progressing: True while objects are not yet as they should be."""
    if result.failure is not None and result.planned.reason != "Planning":
        return result.failure
    if result.record is None:
        waiting: Truth = "True" if result.planned.reason == "Planning" else "False"
        return Verdict(waiting, "WaitingForPlan", "nothing is deployed before there is a plan")
    missing = [state for state in result.workers if not state.ready]
    stuck = [state for state in missing if state.unschedulable]
    if result.lost:
        return Verdict("True", "ReplacingWorkers", f"replacing lost workers: {', '.join(result.lost[:5])}")
    if stuck:
        return Verdict("True", "Unschedulable", stuck[0].trouble)
    if missing:
        ready_now = len(result.workers) - len(missing)
        waits = sum(state.waits for state in missing)
        turn = f"; {waits} serve with the template before until it is their turn" if waits else ""
        return Verdict("True", "RollingOut", f"{ready_now} of {len(result.workers)} workers are ready{turn}")
    if result.leaving:
        return Verdict("True", "RollingOut", f"removing workers: {', '.join(result.leaving[:5])}")
    if not result.coordinator.rolled_out:
        return Verdict("True", "RollingOut", "coordinator pods are starting or being replaced")
    if _replanning(result):
        return Verdict("True", "WaitingForPlan", "the planner is at work; workers of the last plan keep running")
    return Verdict("False", "UpToDate", f"plan {result.record.plan.revision} is carried out")


def _replanning(result: Result) -> bool:
    """Tell whether the workers are those of a plan before while the planner is at work on the spec."""
    return result.record is not None and result.planned.reason == "Planning"


def _trouble(states: Sequence[WorkerState]) -> str:
    return next((f"; {state.trouble}" for state in states if not state.ready and state.trouble), "")


def plan_summary(plan: Plan) -> str:
    """Return a plan in short: P4x2 D8x1; C8x2 for co-located workers; with pools, P4x2@h100 D8x1@h20, where several."""
    letters = {**_LETTER, "decode": "C"} if plan.layout == "colocated" else _LETTER
    order = sorted(plan.groups, key=lambda group: (group.role == "decode", -group.degree, group.pool))
    several = len({group.pool for group in order}) > 1
    return " ".join(
        f"{letters[group.role]}{group.degree}x{group.replicas}{f'@{group.pool}' if several else ''}" for group in order
    )


def plan_status(plan: Plan) -> dict[str, Any]:
    """Return the plan as the status shows it: without alternatives, and without what is empty or has no bound."""
    body = plan_to_json(plan)
    del body["alternatives"]
    shown: dict[str, Any] = _shown(body)
    for text in ("reason", "sloReading"):
        shown[text] = str(body[text])[:MAX_MESSAGE]
    if plan.notes:
        shown["notes"] = [note[:MAX_MESSAGE] for note in plan.notes[:MAX_NOTES]]
    return shown


def _shown(value: Any) -> Any:
    """Return a value with figures rounded and empty parts left out: absent is how the status says "not known"."""
    if isinstance(value, dict):
        kept = {key: _shown(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item is not None and item not in ("", [], {})}
    if isinstance(value, list):
        return [_shown(item) for item in value]
    return round(value, _DIGITS) if isinstance(value, float) else value


def url_of(key: ServiceKey, spec: DisaggInferenceServiceSpec) -> str:
    """Return where a service's requests go inside the cluster."""
    scheme = "http" if spec.coordinator.tls is None else "https"
    return f"{scheme}://{key.name}.{key.namespace}.svc"


def _condition(
    kind: ConditionType, verdict: Verdict, was: Mapping[str, Any] | None, generation: int, now: str
) -> dict[str, Any]:
    if verdict.reason not in REASONS[kind]:
        raise LookupError(f"{kind}: reason {verdict.reason} is not in weft_operator.reasons; document it there")
    kept = was is not None and was.get("status") == verdict.status
    return {
        "type": kind,
        "status": verdict.status,
        "reason": verdict.reason,
        "message": verdict.message[:MAX_MESSAGE],
        "observedGeneration": generation,
        "lastTransitionTime": was["lastTransitionTime"] if was is not None and kept else now,
    }


def _groups(plan: Plan, workers: Sequence[WorkerState]) -> list[dict[str, Any]]:
    rows = []
    for group in plan.groups:
        mine = [
            state
            for state in workers
            if (state.worker.role, state.worker.degree, state.worker.pool) == (group.role, group.degree, group.pool)
        ]
        rows.append(
            {
                "role": group.role,
                "degree": group.degree,
                "pool": group.pool,
                "desired": group.replicas,
                "ready": sum(state.ready for state in mine),
            }
        )
    return rows
