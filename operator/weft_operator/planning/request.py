"""The planner's request for a spec, with nodes and running workers."""

from collections.abc import Mapping, Sequence
from typing import Any

from weft_core.parallelism import Degree, degree_to_json
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

    ``profiles`` are the referenced ones, if any; ``trace`` holds the data of the workload's
    ConfigMap.
    """
    return request_body(spec.model_dump(mode="json", by_alias=True, exclude_none=True), profiles=profiles, trace=trace)


def with_nodes_and_plan(request: Request, nodes: NodeCapacity | None, record: PlanRecord | None) -> Request:
    """Return a request with the free GPUs of nodes, and the running workers.

    Neither is part of the request's hash: they change without a reason for another plan. Only the largest nodes are
    included, as many as the budget has GPUs, and at most that many GPUs of each, so that services with the same
    request in a large cluster share one run of the planner.
    """
    capacity = request["capacity"]
    budget = capacity["gpus"]
    free = nodes.free if nodes is not None else {}
    racks = nodes.racks if nodes is not None else {}
    pools = [
        {
            **pool,
            **({"nodes": [min(gpus, budget) for gpus in free[name][:budget]]} if name in free else {}),
            **({"racks": [min(count, budget) for count in racks[name][:budget]]} if name in racks else {}),
        }
        for pool in capacity["pools"]
        for name in [pool["name"]]
    ]
    running: dict[tuple[str, Degree, str], int] = {}
    for group in record.plan.groups if record is not None else ():
        place = (group.role, group.degree, group.pool)
        running[place] = running.get(place, 0) + group.replicas
    return {**request, "capacity": {**capacity, "pools": pools}, "current": _groups(running)}


def _groups(running: Mapping[tuple[str, Degree, str], int]) -> list[dict[str, Any]]:
    return [
        {"role": role, "degree": degree_to_json(degree), "replicas": replicas, "pool": pool}
        for (role, degree, pool), replicas in running.items()
    ]


def notes_on(nodes: NodeCapacity | None) -> tuple[str, ...]:
    """Return what is not known about the nodes."""
    if nodes is None:
        return ("free GPUs of nodes are not known, so the plan is for spec.capacity alone",)
    return nodes.notes


def request_hash(request: Request) -> str:
    """Return the hash of a request, whose change leads to a new plan."""
    return content_hash(request, HASH_DIGITS)
