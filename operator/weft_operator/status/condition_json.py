"""Convert a condition to and from its form in a status."""

from collections.abc import Mapping
from typing import Any

from weft_operator.api.conditions import ConditionValue
from weft_operator.render.plan_summary import MAX_MESSAGE


def condition_json(
    kind: str, value: ConditionValue, before: Mapping[str, Any] | None, *, generation: int, now: str
) -> dict[str, Any]:
    """Return a condition; its ``lastTransitionTime`` stays while its status is that of ``before``."""
    unchanged = before is not None and before.get("status") == value.status
    return {
        "type": kind,
        "status": value.status,
        "reason": value.reason,
        "message": value.message[:MAX_MESSAGE],
        "observedGeneration": generation,
        "lastTransitionTime": before["lastTransitionTime"] if before is not None and unchanged else now,
    }


def stored_value(condition: Mapping[str, Any]) -> ConditionValue:
    """Return the value of a stored condition."""
    return ConditionValue(condition["status"], condition["reason"], condition["message"])
