"""A plan's summary, and the origin of its workload."""

from collections.abc import Mapping
from typing import Any

from weft_core.layouts import layout_name
from weft_core.plan import Plan

MAX_MESSAGE = 2000


def plan_summary(plan: Plan) -> str:
    """Return a plan's layout: P4x2 D8x1."""
    return layout_name(plan.groups, plan.layout)


def made_from(workload: Mapping[str, Any] | None) -> str:
    """Return the origin of the workload that a plan was made for."""
    return "spec.workload" if workload is None else "observed"
