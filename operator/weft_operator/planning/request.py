"""Put a spec into the planner's words: seconds and tokens, no Kubernetes."""

from collections.abc import Mapping, Sequence
from typing import Any

from weft_core.durations import parse_duration
from weft_core.plan import content_hash
from weft_core.policies.catalogue import DEFAULT_CAP
from weft_operator.api.capacity import Pool
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.api.serving import Bounds, Routing
from weft_operator.api.workload import SloClass, Workload
from weft_operator.desired.rendering import PlanRecord
from weft_operator.planning.nodes import Capacity
from weft_planner.workload_file import request_form

Request = dict[str, Any]

HASH_DIGITS = 16
DEFAULT_GAP = "5s"
GIGA = 1e9


def planner_request(
    spec: DisaggInferenceServiceSpec, *, profile: Mapping[str, Any] | None, trace: Mapping[str, str] | None = None
) -> Request:
    """Return the request for a spec.

    ``profile`` is the referenced one, None for an analytic one; ``trace`` holds the data of the workload's ConfigMap.
    """
    ratio = spec.planning.ratio
    analytic = None
    if profile is None and spec.profile.analytic is not None:
        given = spec.profile.analytic.model_dump(mode="json", by_alias=True, exclude_none=True)
        analytic = {"memoryFraction": spec.engine.memory_fraction, **given}
    return {
        "model": {
            "name": spec.model.name,
            "maxModelLen": spec.model.max_model_len,
            "dtype": spec.model.dtype,
            "kvCacheDtype": "fp8" if spec.model.kv_cache_dtype.startswith("fp8") else spec.model.kv_cache_dtype,
            "config": spec.model.config,
        },
        "engine": {"type": spec.engine.type, "bidirectional": spec.engine.kv_transfer.bidirectional},
        "slo": {
            "ttft": parse_duration(spec.slo.ttft),
            "itl": parse_duration(spec.slo.itl),
            "percentile": spec.slo.percentile,
            "attainment": spec.slo.attainment,
        },
        "workload": _workload(spec.workload, spec.slo.classes or (), trace),
        "capacity": {"gpus": spec.capacity.gpus, "pools": [_pool(pool) for pool in spec.capacity.pools]},
        "profile": profile,
        "analytic": analytic,
        "bounds": {
            "prefill": _bounds(spec.planning.prefill),
            "decode": _bounds(spec.planning.decode),
            "ratio": {} if ratio is None else ratio.model_dump(by_alias=True, exclude_none=True),
        },
        "objective": spec.planning.objective,
        "budgetPerHour": spec.planning.budget_per_hour,
        "headroom": spec.planning.headroom,
        "minImprovement": spec.planning.min_improvement,
        "seed": spec.planning.seed,
        "routing": _routing(spec.routing),
    }


def in_its_place(request: Request, there: Capacity | None, record: PlanRecord | None) -> Request:
    """Return a request with what is free on real nodes, and what runs now.

    Neither is part of the question: GPUs that come and go, and the plan's own groups, must not ask for another plan.
    """
    capacity = request["capacity"]
    free = there.free if there is not None else {}
    pools = [
        {**pool, "nodes": list(free[pool["name"]])} if pool["name"] in free else pool for pool in capacity["pools"]
    ]
    groups = record.plan.groups if record is not None else ()
    running = [{"role": g.role, "degree": g.degree, "replicas": g.replicas, "pool": g.pool} for g in groups]
    return {**request, "capacity": {**capacity, "pools": pools}, "current": running}


def notes_on(there: Capacity | None) -> tuple[str, ...]:
    """Say what could not be told of the nodes."""
    if there is None:
        return ("the nodes were not looked at, so the plan is for spec.capacity alone",)
    return there.notes


def request_hash(request: Request) -> str:
    """Return the hash of a request: the plan is made anew only when it changes."""
    return content_hash(request, HASH_DIGITS)


def _workload(load: Workload, limits: Sequence[SloClass], trace: Mapping[str, str] | None) -> Request:
    """Return the workload in seconds; classes get the thresholds that the SLO has for them."""
    body = load.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"trace_config_map"})
    if "gap" not in body and load.preset is None and load.trace_config_map is None:
        body["gap"] = {"mean": DEFAULT_GAP}
    form: Request = request_form(body, where="spec.workload")
    if trace is not None:
        form["trace"] = dict(trace)
    found = {item.name: item for item in limits}
    for item in form.get("classes", ()):
        limit = found.get(item["name"])
        if limit is not None:
            item |= {key: parse_duration(value) for key, value in (("ttft", limit.ttft), ("itl", limit.itl)) if value}
    return form


def _pool(pool: Pool) -> Request:
    row: Request = {
        "name": pool.name,
        "gpuType": pool.gpu_type,
        "gpusPerNode": pool.gpus_per_node,
        "degrees": sorted(pool.degrees),
        "roles": sorted(pool.roles),
    }
    if pool.gpus is not None:
        row["gpus"] = pool.gpus
    if pool.price_per_gpu_hour is not None:
        row["pricePerGpuHour"] = pool.price_per_gpu_hour
    if pool.interconnect is not None:
        given = {"inNode": pool.interconnect.in_node, "acrossNodes": pool.interconnect.across_nodes}
        row["interconnect"] = {name: rate * GIGA for name, rate in given.items() if rate is not None}
    return row


def _routing(routing: Routing) -> Request:
    """Return the rules that will run: a plan is simulated with them."""
    form: Request = {
        "policy": routing.policy,
        "binding": routing.binding,
        "window": routing.window,
        "statsWindow": parse_duration(routing.stats_window),
        "params": dict(routing.params),
    }
    if routing.mode is not None:
        form["mode"] = routing.mode  # else the planner chooses among those that this version's router has
    if routing.order is not None:
        form["order"] = routing.order
    if routing.policy == "ampd":
        form["params"] = {"alpha": routing.alpha, "beta": routing.beta}
    if routing.ageing_cap != DEFAULT_CAP:
        form["ageingCap"] = routing.ageing_cap
    return form


def _bounds(bounds: Bounds) -> Request:
    return {"min": bounds.min} if bounds.max is None else {"min": bounds.min, "max": bounds.max}
