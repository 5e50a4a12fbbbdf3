"""The status of a service whose passes are blocked: it stays as it was, but for the conditions that say why."""

from collections.abc import Mapping
from typing import Any

from weft_operator.api.conditions import ConditionValue
from weft_operator.api.objects import ServiceKey
from weft_operator.render.plan_summary import MAX_MESSAGE
from weft_operator.status.conditions import build_status
from weft_operator.status.kstatus import reconciling, stalled
from weft_operator.status.reasons.catalogue import CONDITIONS, ConditionType
from weft_operator.status.results import PlanResult, ServiceResult

UNPLANNED = PlanResult(
    None, ConditionValue("Unknown", "Planning", "nothing is planned yet; see the condition Progressing")
)


def blocked_status(key: ServiceKey, service: Mapping[str, Any], why: ConditionValue, *, now: str) -> dict[str, Any]:
    """Return the status of a service whose passes are blocked; ``why`` is the condition Progressing.

    Only Progressing and the two conditions for deployment tools are about the newest spec; the others keep the
    generation and message of the last pass.
    """
    generation = int(service["metadata"].get("generation", 0))
    before = service.get("status") or build_status(ServiceResult(key, generation, UNPLANNED), {}, now=now)
    was = {item["type"]: item for item in before["conditions"]}
    said: dict[ConditionType, ConditionValue] = {
        kind: ConditionValue(was[kind]["status"], was[kind]["reason"], was[kind]["message"])
        for kind in CONDITIONS
        if kind in was
    }
    said["Progressing"] = why
    new: dict[str, ConditionValue] = {
        "Progressing": said["Progressing"],
        "Reconciling": reconciling(said),
        "Stalled": stalled(said),
    }
    conditions = [
        _condition(was[kind], new[kind], generation, now) if kind in new else was[kind] for kind in said if kind in was
    ]
    return {**before, "observedGeneration": generation, "conditions": conditions}


def _condition(was: Mapping[str, Any], verdict: ConditionValue, generation: int, now: str) -> dict[str, Any]:
    same = was["status"] == verdict.status
    return {
        "type": was["type"],
        "status": verdict.status,
        "reason": verdict.reason,
        "message": verdict.message[:MAX_MESSAGE],
        "observedGeneration": generation,
        "lastTransitionTime": was["lastTransitionTime"] if same else now,
    }
