"""The planner's request for a spec, and what nodes and running workers add to it."""

from collections.abc import Mapping, Sequence
from typing import Any

from weft_core.plan import content_hash
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.render.inputs import PlanRecord
from weft_operator.workers.node_capacity import NodeCapacity
from weft_planner.request.service import request_body

Request = dict[str, Any]

HASH_DIGITS = 16


def planner_request(
    spec: DisaggInferenceServiceSpec,
    *,
    profiles: Sequence[Mapping[str, Any]] = (),
    trace: Mapping[str, str] | None = None,
) -> Request:
    """Return the request for a spec, by the mapping that ``weft plan`` uses too.

    ``profiles`` are the referenced ones, none for an analytic one; ``trace`` holds the data of the workload's
    ConfigMap.
    """
    return request_body(spec.model_dump(mode="json", by_alias=True, exclude_none=True), profiles=profiles, trace=trace)


def with_nodes_and_plan(request: Request, there: NodeCapacity | None, record: PlanRecord | None) -> Request:
    """Return a request with what is free on real nodes, and what runs now.

    Neither is part of the question: GPUs that come and go, and the plan's own groups, must not ask for another plan.
    No more nodes are given than a budget of so many GPUs can use: as many nodes, the largest, each with as many
    GPUs free at most. So services that ask for the same in a large cluster ask the very same.
    """
    capacity = request["capacity"]
    budget = capacity["gpus"]
    free = there.free if there is not None else {}
    pools = [
        {**pool, "nodes": [min(gpus, budget) for gpus in free[pool["name"]][:budget]]} if pool["name"] in free else pool
        for pool in capacity["pools"]
    ]
    groups = record.plan.groups if record is not None else ()
    running = [{"role": g.role, "degree": g.degree, "replicas": g.replicas, "pool": g.pool} for g in groups]
    return {**request, "capacity": {**capacity, "pools": pools}, "current": running}


def notes_on(there: NodeCapacity | None) -> tuple[str, ...]:
    """Say what could not be told of the nodes."""
    if there is None:
        return ("the nodes were not looked at, so the plan is for spec.capacity alone",)
    return there.notes


def request_hash(request: Request) -> str:
    """Return the hash of a request: a new plan is made only when it changes."""
    return content_hash(request, HASH_DIGITS)
