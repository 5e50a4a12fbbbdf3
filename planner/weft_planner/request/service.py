"""Put the spec of a DisaggInferenceService into the planner's words: seconds, bytes, and nothing of Kubernetes.

The one mapping: ``weft plan`` calls it with the spec as a manifest has it, the operator with the spec as the API
server stores it. So that both ask the same, what the API server fills in stands here where the planner's own default
differs. Nothing here loads the planner: the operator's own process imports it.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import cast

from weft_core.durations import parse_duration
from weft_core.gpus import CORES_OF_A_CHIP, NEURON_CHIPS
from weft_core.layouts import ROLES
from weft_core.policies.registry import DEFAULT_CAP
from weft_core.quantities import bytes_of
from weft_core.strategies import powers_of_two
from weft_planner.request.error import RequestError
from weft_planner.silicon.all_to_all import all_to_all_of
from weft_planner.workload.file import WorkloadFileError, request_form

Json = Mapping[str, object]
Body = dict[str, object]

GAP = "5s"
MEMORY_FRACTION = 0.9
ENGINE = "vllm"
DTYPE = "bfloat16"
FP8 = "fp8"
STEP_LIMITS = ("maxNumSeqs", "maxNumBatchedTokens")
POLICY = "weft"
AMPD_SLACK = {"alpha": 0.9, "beta": 0.85}
"""What the API server fills in where a manifest is silent and the planner's own default differs or is told."""

GIGA = 1e9

_IN_SPEC = {
    "analytic": "profile.analytic",
    "bounds": "planning",
    "budgetPerHour": "planning.budgetPerHour",
    "engine.bidirectional": "engine.kvTransfer.bidirectional",
    "engine.contextBuckets": "engine.neuron.contextBuckets",
    "engine.kvTiers": "kvCache",
    "engine.layouts": "planning.layouts",
    "engine.mixedDegrees": "planning.mixedDegrees",
    "engine.pairs": "planning.degreePairs",
    "headroom": "planning.headroom",
    "minImprovement": "planning.minImprovement",
    "objective": "planning.objective",
    "routing.predictionError": "planning.predictionError",
    "seed": "planning.seed",
    "silicon": "profile.silicon",
}
"""Where a service's spec has what a request has elsewhere."""


def in_spec(fault: str) -> str:
    """Return a fault of a request with the field's name in the manifest."""
    fault = fault.removeprefix("request: ")
    for field, name in _IN_SPEC.items():
        if re.match(rf"{re.escape(field)}[.:]", fault):
            return f"spec.{name}{fault.removeprefix(field)}"
    return f"spec.{fault}"


_NAMED = re.compile(
    r"(?<![\w./])(?:(?:model|engine|slo|workload|capacity|bounds|analytic|silicon|profile)\.[A-Za-z][\w.]*\w|budgetPerHour)\b"
)
_PLACE = re.compile(r"\.(\d+)(?=\.|$)")


def in_manifest(words: str) -> str:
    """Return words of the planner with each field's name as in the manifest."""
    return _NAMED.sub(lambda found: field(found.group()), words)


def field(path: str) -> str:
    """Return a request's field as the manifest names it, such as spec.capacity.pools[0].degrees."""
    return _PLACE.sub(r"[\1]", in_spec(f"{path}:").removesuffix(":"))


def request_body(spec: Json, *, profiles: Sequence[Json] = (), trace: Mapping[str, str] | None = None) -> Body:
    """Return the planning request of a service's spec, for ``weft_planner.request.reading.request_of``.

    ``profiles`` are the cost profiles that ``spec.profile`` refers to, none when it is of silicon tables or analytic;
    ``trace`` is the data of ``spec.workload.traceConfigMap``.

    Raises:
        RequestError: a field is missing or of the wrong form; the message names it as in the manifest.
    """
    model = _object(spec, "model", "spec")
    slo = _object(spec, "slo", "spec")
    workload = _object(spec, "workload", "spec")
    capacity = _object(spec, "capacity", "spec")
    planning = _object(spec, "planning", "spec", optional=True)
    engine = _object(spec, "engine", "spec", optional=True)
    pools = [_pool(pool, i) for i, pool in enumerate(_list(capacity, "pools", "spec.capacity"))]
    body: Body = {
        "model": _model(model, engine),
        "engine": {
            **_engine(engine, planning, pools),
            **({"fixedRoles": True} if _fixed_roles(engine, spec.get("podTemplates")) else {}),
            **_kv_tiers(engine, _object(spec, "kvCache", "spec", optional=True)),
        },
        "slo": {key: _seconds(slo, key, "spec.slo") for key in ("ttft", "itl") if key in slo}
        | _some(slo, "percentile", "attainment", "unit", "itlStatistic"),
        "workload": _workload(workload, slo, trace),
        "capacity": {**_some(capacity, "gpus"), "pools": pools},
        "objective": planning.get("objective", "latency"),
        "bounds": _some(planning, "prefill", "decode", "ratio"),
        **_some(planning, "budgetPerHour", "headroom", "minImprovement"),
        "seed": planning.get("seed", 0),
        "routing": {
            **_routing(_object(spec, "routing", "spec", optional=True)),
            **_some(planning, "predictionError"),
        },
        "profile": profiles[0] if profiles else None,
    }
    if len(profiles) > 1:
        body["profiles"] = list(profiles[1:])
    if not profiles:
        profile = _object(spec, "profile", "spec", optional=True)
        analytic = _object(profile, "analytic", "spec.profile", optional=True)
        body["analytic"] = {"memoryFraction": _memory_fraction(engine), **analytic}
        if profile.get("analytic") is None:
            body["silicon"] = dict(_object(profile, "silicon", "spec.profile", optional=True))
    return body


def _engine(engine: Json, planning: Json, pools: Sequence[object]) -> Body:
    """Return what the engine can do and what may be deployed; several pools may be mixed unless told otherwise."""
    transfer = _object(engine, "kvTransfer", "spec.engine", optional=True)
    form: Body = {
        "type": ENGINE,
        **_some(engine, "type", "speculative"),
        **_some(transfer, "bidirectional"),
        **_some(planning, "layouts"),
        "mixedDegrees": len(pools) > 1 if planning.get("mixedDegrees") is None else planning["mixedDegrees"],
    }
    for place, role in enumerate(ROLES):
        limits = _some({name: _of_roles(engine, name, None)[place] for name in STEP_LIMITS}, *STEP_LIMITS)
        arguments = [*_arguments(engine), *_arguments(_object(engine, role, "spec.engine", optional=True))]
        if way := all_to_all_of(str(form["type"]), arguments):
            limits["allToAll"] = way
        if limits:
            form[role] = limits
    neuron = _object(engine, "neuron", "spec.engine", optional=True)
    form |= _some(neuron, "contextBuckets")
    if planning.get("degreePairs") is not None:
        pairs = _list(planning, "degreePairs", "spec.planning")
        form["pairs"] = [_pair(pair, f"spec.planning.degreePairs[{i}]") for i, pair in enumerate(pairs)]
    return form


def _kv_tiers(engine: Json, cache: Json) -> Body:
    """Return the tiers that decode workers read their sessions' KV from; SGLang's keep no cache of prefixes.

    The size of a store that workers share is not known here.
    """
    if engine.get("type", ENGINE) == "sglang":
        return {}
    tiers = {name: _object(cache, name, "spec.kvCache", optional=True) for name in ("cpu", "disk")}
    found = [{"name": name, "size": bytes_of(tier.get("size"))} for name, tier in tiers.items() if tier]
    return {"kvTiers": found} if found else {}


def _fixed_roles(engine: Json, templates: object) -> bool:
    """Return whether prefill and decode workers are given different engines or pods: then no worker has both roles."""
    transfer = _object(engine, "kvTransfer", "spec.engine", optional=True)
    blocks = _object(transfer, "blockTokens", "spec.engine.kvTransfer", optional=True)
    changes = templates if isinstance(templates, list) else []
    return (
        _own_settings(engine, "prefill") != _own_settings(engine, "decode")
        or blocks.get("prefill") != blocks.get("decode")
        or any(isinstance(change, Mapping) and change.get("component") in ROLES for change in changes)
    )


def _own_settings(engine: Json, role: str) -> Body:
    """Return the settings of one role's engines that differ from those of both."""
    shared = {"memoryFraction": MEMORY_FRACTION, **_some(engine, *engine)}
    own = _object(engine, role, "spec.engine", optional=True)
    return {name: value for name, value in own.items() if value not in (None, []) and value != shared.get(name)}


def _arguments(of: Json) -> list[str]:
    """Return the arguments of an engine or of one of its roles that are text; the API server refuses others."""
    given = of.get("args")
    return [one for one in given if isinstance(one, str)] if isinstance(given, list) else []


def _pair(pair: object, where: str) -> list[object]:
    if not isinstance(pair, Mapping) or not {"prefill", "decode"} <= pair.keys():
        raise RequestError(f"{where}: must be an object with prefill and decode, got {pair!r}")
    return [pair["prefill"], pair["decode"]]


def _routing(routing: Json) -> Body:
    """Return the rules that will run: a plan is simulated with them."""
    policy = routing.get("policy", POLICY)
    form: Body = {
        "policy": policy,
        **_some(routing, "binding", "order", "window", "mode", "prefillConcurrency", "minCacheHitRatio"),
    }
    params = _object(routing, "params", "spec.routing", optional=True)
    form["params"] = {**AMPD_SLACK, **_some(routing, "alpha", "beta")} if policy == "ampd" else dict(params)
    if routing.get("ageingCap", DEFAULT_CAP) != DEFAULT_CAP:
        form["ageingCap"] = routing["ageingCap"]
    if _object(routing, "slices", "spec.routing", optional=True).get("mode") == "Off":
        form["slices"] = False
    if "statsWindow" in routing:
        form["statsWindow"] = _seconds(routing, "statsWindow", "spec.routing")
    return form


def _memory_fraction(engine: Json) -> object:
    """Return the share of GPU memory of the role that has less: there is one KV capacity for both."""
    least = math.inf
    for value in _of_roles(engine, "memoryFraction", MEMORY_FRACTION):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value  # refused where the request is read
        least = min(least, value)
    return least


def _of_roles(engine: Json, setting: str, otherwise: object) -> list[object]:
    """Return an engine's setting for prefill and for decode: the role's own, else that of both."""
    shared = engine.get(setting, otherwise)
    roles = (_object(engine, role, "spec.engine", optional=True) for role in ROLES)
    return [shared if role.get(setting) is None else role[setting] for role in roles]


def _model(model: Json, engine: Json) -> Body:
    """Return the model; its weights have 8 bits where the engines of both roles quantise them to fp8."""
    kv = model.get("kvCacheDtype", "auto")
    eight_bit = isinstance(kv, str) and kv.startswith("fp8")  # both 8-bit formats take the same memory
    given = _some(model, "name", "maxModelLen", "dtype", "config")
    if _of_roles(engine, "quantization", None) == [FP8, FP8]:
        given["dtype"] = FP8
    return {"dtype": DTYPE, **given, "kvCacheDtype": FP8 if eight_bit else kv}


def _workload(workload: Json, slo: Json, trace: Mapping[str, str] | None) -> Body:
    """Return the workload in a request's form, with the data of its trace and the SLOs of its classes."""
    given = {key: value for key, value in workload.items() if value is not None}
    if given.pop("traceConfigMap", None) is None and "preset" not in given:
        given = {"gap": GAP, **given}
    try:
        body = request_form(given, where="spec.workload")
    except WorkloadFileError as error:
        raise RequestError(str(error)) from error
    if trace is not None:
        body["trace"] = dict(trace)
    limits = slo.get("classes")
    if isinstance(limits, list):
        body["classes"] = _with_limits(body.get("classes"), limits)
    return body


def _with_limits(classes: object, limits: Sequence[object]) -> object:
    """Return the workload's classes with the SLOs that spec.slo.classes has for them, by name."""
    listed = classes if isinstance(classes, list) else []
    names = [item.get("name") for item in listed if isinstance(item, Mapping)]
    found: dict[object, dict[str, object]] = {}
    for k, item in enumerate(limits):
        where = f"spec.slo.classes[{k}]"
        if not isinstance(item, Mapping):
            raise RequestError(f"{where}: must be an object")
        if item.get("name") not in names:
            raise RequestError(
                f"{where}.name: spec.workload.classes has no class {item.get('name')!r}; add it there or remove it here"
            )
        found[item.get("name")] = {key: _seconds(item, key, where) for key in ("ttft", "itl") if item.get(key)}
    return [{**item, **found.get(item.get("name"), {})} if isinstance(item, Mapping) else item for item in listed]


def _pool(pool: object, index: int) -> Body:
    where = f"spec.capacity.pools[{index}]"
    if not isinstance(pool, Mapping):
        raise RequestError(f"{where}: must be an object")
    given = cast(Json, pool)
    row = _some(
        given,
        "name",
        "gpuType",
        "gpusPerNode",
        "gpusPerRack",
        "degrees",
        "parallelism",
        "roles",
        "gpus",
        "pricePerGpuHour",
    )
    if "degrees" not in row and "parallelism" not in row and (limited := _degrees_of_devices(given)):
        row["degrees"] = limited
    rates = _some(_object(given, "interconnect", where, optional=True), "inNode", "acrossNodes")
    if rates:
        row["interconnect"] = {name: _giga(rate, f"{where}.interconnect.{name}") for name, rate in rates.items()}
    return row


def _degrees_of_devices(pool: Json) -> list[int]:
    """Return the degrees that a pool's devices leave, where it names none; empty: they set no limit.

    MIG slices have no links, a device that is a Trainium chip counts as four GPUs, and claims that bring the GPUs are
    made for workers of certain sizes.
    """
    resource, gpu = str(pool.get("resource", "")), str(pool.get("gpuType", ""))
    if "/mig-" in resource or "-mig-" in gpu:
        return [1]
    claims = [claim for claim in pool.get("resourceClaims") or () if isinstance(claim, Mapping)]  # type: ignore[attr-defined]
    if pool.get("gpusFromClaims") and claims and all(claim.get("degrees") for claim in claims):
        return sorted({degree for claim in claims for degree in claim["degrees"]})
    if resource in NEURON_CHIPS:
        node = pool.get("gpusPerNode", 8)
        return [n for n in powers_of_two(node) if n % CORES_OF_A_CHIP == 0] if isinstance(node, int) else []
    return []


def _giga(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{where}: a number of gigabytes per second is needed, got {value!r}")
    return value * GIGA


def _some(source: Json, *keys: str) -> Body:
    return {key: source[key] for key in keys if source.get(key) is not None}


def _object(source: Json, key: str, where: str, *, optional: bool = False) -> Json:
    value = source.get(key)
    if value is None and optional:
        return {}
    if not isinstance(value, Mapping):
        raise RequestError(
            f"{where}.{key}: an object is needed" + (", it is missing" if value is None else f", got {value!r}")
        )
    return cast(Json, value)


def _list(source: Json, key: str, where: str) -> list[object]:
    value = source.get(key)
    if not isinstance(value, list):
        raise RequestError(f"{where}.{key}: a list is needed, got {value!r}")
    return value


def _seconds(source: Json, key: str, where: str) -> float:
    try:
        return parse_duration(source[key])
    except ValueError as error:
        raise RequestError(f"{where}.{key}: {error}") from error
