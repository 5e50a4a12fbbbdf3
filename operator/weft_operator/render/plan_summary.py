"""A plan's summary, and the origin of its workload."""

from collections.abc import Mapping
from typing import Any

from weft_core.parallelism import gpus_of, in_layout
from weft_core.plan import Plan, WorkerRole

MAX_MESSAGE = 2000


_LETTER: Mapping[WorkerRole, str] = {"prefill": "P", "decode": "D", "both": "B"}


def plan_summary(plan: Plan) -> str:
    """Return a plan's summary: P4x2 D8x1; with several pools, P4x2@h100 D8x1@h20.

    C8x2 are co-located workers, B8x2 those of both roles.
    """
    letters = role_letters(plan)
    order = sorted(
        plan.groups,
        key=lambda group: (list(_LETTER).index(group.role), -gpus_of(group.degree), str(group.degree), group.pool),
    )
    several = len({group.pool for group in order}) > 1
    return " ".join(
        f"{letters[group.role]}{in_layout(group.degree)}x{group.replicas}{f'@{group.pool}' if several else ''}"
        for group in order
    )


def role_letters(plan: Plan) -> Mapping[WorkerRole, str]:
    """Return the letter of each role in summaries of a plan."""
    return {**_LETTER, "decode": "C"} if plan.layout == "colocated" else _LETTER


def made_from(workload: Mapping[str, Any] | None) -> str:
    """Return the origin of the workload that a plan was made for."""
    return "spec.workload" if workload is None else "observed"
