"""Plans, records and renderings that tests begin with."""

from dataclasses import replace
from typing import Any

from weft_core.layouts import kind_of
from weft_core.parallelism import Degree
from weft_core.plan import Plan, PlannedGroup, PlannedPolicy, Prediction, plan_revision
from weft_operator.api import CostProfileSpec, DisaggInferenceServiceSpec
from weft_operator.api.objects import Manifest, ServiceKey
from weft_operator.planning.planner_process import Planned
from weft_operator.planning.request import planner_request, request_hash
from weft_operator.render.companions import companion_objects
from weft_operator.render.config_maps import front_config, live_config, router_config
from weft_operator.render.inputs import PlanRecord, Rendering
from weft_operator.render.objects import desired_objects
from weft_operator.render.statefulsets import statefulset
from weft_operator.settings import Settings
from weft_operator.workers.fleet import first_workers
from weft_operator.workers.groups import parse_group
from weft_operator_tests.valid import PROFILE, changed, pools_service, service, spec
from weft_router.config import RouterConfig
from weft_router.config.live import combined

PROFILE_JSON = CostProfileSpec.model_validate(PROFILE["spec"]).model_dump(mode="json", by_alias=True, exclude_none=True)
KEY = ServiceKey("default", "demo")
UID = "11111111-2222-3333-4444-555555555555"
TOKEN = b"0123456789abcdef0123456789abcdef"
SETTINGS = Settings(
    router_image="registry.example.com/weft-router:1",
    mock_image="registry.example.com/weft-mock-engine:1",
    redis_url="redis://weft-redis.weft-system:6379/0",
)


def group(role: Any, degree: Degree, replicas: int, pool: str = "h20") -> PlannedGroup:
    """Return a planned group."""
    return PlannedGroup(role=role, degree=degree, replicas=replicas, pool=pool)


def plan(*groups: PlannedGroup) -> Plan:
    """Return a plan; P4x2 D8x1 without groups given."""
    chosen = groups or (group("decode", 8, 1), group("prefill", 4, 2))
    return Plan(
        groups=chosen,
        predicted=Prediction(
            ttft_p95_s=0.9438731,
            itl_p95_s=0.0251374,
            ttft_mean_s=0.45,
            itl_mean_s=0.024,
            gpus=sum(item.gpus for item in chosen),
            slo_met=True,
        ),
        objective="latency",
        inputs_hash="0123456789abcdef",
        revision=plan_revision(chosen, profile=PROFILE_JSON, engine_inputs={}),
        reason="it is the best",
        slo_reading="per session",
    )


def planned(*groups: PlannedGroup) -> Planned:
    """Return a planner's answer."""
    return Planned(plan=plan(*groups), profile=PROFILE_JSON)


def record(body: Manifest | None = None, *groups: PlannedGroup) -> PlanRecord:
    """Return the record of a planned service."""
    parsed: DisaggInferenceServiceSpec = spec(body)
    answer = planned(*groups)
    hashed = request_hash(planner_request(parsed))
    return PlanRecord(spec=parsed, plan=answer.plan, profile=answer.profile, request_hash=hashed)


def rendering(body: Manifest | None = None, *groups: PlannedGroup) -> Rendering:
    """Return a service to render."""
    return Rendering(key=KEY, uid=UID, record=record(body or service(), *groups), settings=SETTINGS)


def with_spec(base: Rendering, **parts: Any) -> Rendering:
    """Return a rendering with parts of its spec replaced."""
    return replace(base, record=replace(base.record, spec=base.spec.model_copy(update=parts)))


def colocated(body: Manifest | None = None, *groups: PlannedGroup) -> Rendering:
    """Return a co-located service: decode workers that prefill for their own sessions, two of 8 GPUs unless given."""
    base = rendering(body, *(groups or (group("decode", 8, 2),)))
    policy = PlannedPolicy("colocated", order="moore-hodgson")
    return replace(base, record=replace(base.record, plan=replace(base.record.plan, layout="colocated", policy=policy)))


def with_both_roles(body: Manifest | None, *groups: PlannedGroup) -> Rendering:
    """Return a symmetric or a hybrid service."""
    base = rendering(body, *groups)
    return replace(base, record=replace(base.record, plan=plan_with_both_roles(*groups)))


def plan_with_both_roles(*groups: PlannedGroup) -> Plan:
    """Return a symmetric or a hybrid plan, under policy weft."""
    return replace(plan(*groups), layout=kind_of(groups), policy=PlannedPolicy("weft", "imd", order="moore-hodgson"))


def two_pools(body: Manifest | None = None) -> Rendering:
    """Return a service over two GPU types: prefill on the faster one, decode on both at degrees that differ."""
    base = rendering(body or pools_service(), *TWO_POOLS)
    return replace(base, record=replace(base.record, profiles=POOL_PROFILES))


def on_nodes(body: Manifest | None = None) -> Rendering:
    """Return a service on nodes of 4 GPUs: a decode worker over two of them, and prefill workers on one each."""
    return rendering(changed(body or service(), "spec.capacity.pools.0.gpusPerNode", 4))


SYMMETRIC = (group("both", 4, 3),)
HYBRID = (group("prefill", 4, 1), group("decode", 4, 1), group("both", 4, 1))
TWO_POOLS = (group("prefill", 4, 1, "h100"), group("decode", 8, 1), group("decode", 4, 1, "h100"))
POOL_PROFILES = {"h20": PROFILE_JSON, "h100": {**PROFILE_JSON, "gpu": "nvidia-h100"}}


def told(base: Rendering, *, front: bool = False) -> RouterConfig:
    """Return the configuration that sidecars, or coordinators, read."""
    config = (front_config(base) if front else None) or router_config(base)
    live = live_config(base)["data"]["live.json"]
    return combined(config["data"]["router.json"].encode(), live.encode(), source="live.json")


def rendered(base: Rendering, token: bytes = TOKEN) -> tuple[Manifest, ...]:
    """Return all objects of a planned service, and those that the group controller makes for workers of its groups."""
    objects = desired_objects(base, token=token)
    workers = first_workers(base.record.plan.groups, fixed_roles=base.fixed_roles)
    sets: list[Manifest] = []
    for item in objects:
        if item["kind"] == "WorkerGroup":
            uid = f"uid of {item['metadata']['name']}"
            of = parse_group({**item, "metadata": {**item["metadata"], "uid": uid}})
            for worker in (one for one in workers if one == of.worker(one.index, one.role if not of.fixed else None)):
                sets += [*companion_objects(of, worker), statefulset(of, worker)]
    return (*objects, *sets)
