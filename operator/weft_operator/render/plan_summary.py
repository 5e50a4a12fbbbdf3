"""A plan's summary, and the origin of its workload."""

from collections.abc import Mapping
from typing import Any

from weft_core.parallelism import gpus_of, in_layout
from weft_core.plan import Plan, Role

MAX_MESSAGE = 2000


_LETTER: Mapping[Role, str] = {"prefill": "P", "decode": "D"}


def plan_summary(plan: Plan) -> str:
    """Return a plan's summary: P4x2 D8x1; C8x2 for co-located workers; with several pools, P4x2@h100 D8x1@h20."""
    letters = {**_LETTER, "decode": "C"} if plan.layout == "colocated" else _LETTER
    order = sorted(
        plan.groups, key=lambda group: (group.role == "decode", -gpus_of(group.degree), str(group.degree), group.pool)
    )
    several = len({group.pool for group in order}) > 1
    return " ".join(
        f"{letters[group.role]}{in_layout(group.degree)}x{group.replicas}{f'@{group.pool}' if several else ''}"
        for group in order
    )


def made_from(workload: Mapping[str, Any] | None) -> str:
    """Return the origin of the workload that a plan was made for."""
    return "spec.workload" if workload is None else "observed"
