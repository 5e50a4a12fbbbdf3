"""The results of one pass over a service, each part given by its own name."""

from dataclasses import fields, replace
from typing import Any

from weft_operator.status.results import (
    MetricsResult,
    PlanResult,
    RolloutResult,
    ServiceResult,
    WeightsResult,
    WorkersResult,
)

_SECTIONS = {
    "plan": PlanResult,
    "weights": WeightsResult,
    "rollout": RolloutResult,
    "workers": WorkersResult,
    "metrics": MetricsResult,
}
_SECTION_OF = {field.name: name for name, section in _SECTIONS.items() for field in fields(section)}


def with_parts(found: ServiceResult, **parts: Any) -> ServiceResult:
    """Return a result with other values of some parts, whichever sub-reconciler they are of."""
    for name, value in parts.items():
        section = _SECTION_OF.get(name)
        changed = {name: value} if section is None else {section: replace(getattr(found, section), **{name: value})}
        found = replace(found, **changed)
    return found
