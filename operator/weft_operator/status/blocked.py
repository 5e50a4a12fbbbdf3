"""The status of a service whose passes are blocked: only the conditions that say why change."""

from collections.abc import Mapping
from typing import Any

from weft_operator.api.conditions import ConditionValue
from weft_operator.api.objects import ServiceKey
from weft_operator.status.condition_json import condition_json, stored_value
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
    values: dict[ConditionType, ConditionValue] = {kind: stored_value(was[kind]) for kind in CONDITIONS if kind in was}
    values["Progressing"] = why
    new: dict[str, ConditionValue] = {
        "Progressing": why,
        "Reconciling": reconciling(values),
        "Stalled": stalled(values),
    }
    conditions = [
        condition_json(kind, new[kind], was[kind], generation=generation, now=now) if kind in new else was[kind]
        for kind in values
        if kind in was
    ]
    return {**before, "observedGeneration": generation, "conditions": conditions}
