"""Turn a DisaggInferenceService manifest into a planning request, as the operator does with the applied object."""

from collections.abc import Mapping, Sequence
from typing import cast

import yaml

from weft_core.durations import parse_duration
from weft_core.policies.catalogue import DEFAULT_CAP
from weft_planner.workload import Request, RequestError, request_of
from weft_planner.workload_file import WorkloadFileError, request_form

KIND = "DisaggInferenceService"
PROFILE_KIND = "CostProfile"
CONFIG_MAP_KIND = "ConfigMap"

GAP = "5s"
MEMORY_FRACTION = 0.9
ENGINE = "vllm"
DTYPE = "bfloat16"
POLICY = "ampd"
AMPD_SLACK = {"alpha": 0.9, "beta": 0.85}
"""What the API server fills in where a manifest is silent and the planner's own default differs or is told."""

Json = Mapping[str, object]


def read_documents(text: str) -> list[Json]:
    """Return the objects of a YAML stream.

    Raises:
        RequestError: not YAML, or a document that is no object.
    """
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        raise RequestError("not YAML: " + " ".join(str(error).split())) from error
    for i, document in enumerate(documents):
        if not isinstance(document, Mapping):
            raise RequestError(f"document {i + 1}: must be an object, not {type(document).__name__}")
    return cast(list[Json], documents)


def choose_service(documents: Sequence[Json], name: str | None) -> Json:
    """Return the one service of a manifest, or the named one.

    Raises:
        RequestError: there is none, or several and no name was given.
    """
    services = [document for document in documents if document.get("kind") == KIND]
    if name is not None:
        services = [service for service in services if name_of(service) == name]
    if not services:
        raise RequestError(f"no {KIND}{f' named {name}' if name else ''} in the file")
    if len(services) > 1:
        names = ", ".join(sorted(name_of(service) for service in services))
        raise RequestError(f"{len(services)} services in the file ({names}); choose one with --name")
    return services[0]


def name_of(document: Json) -> str:
    """Return metadata.name, empty when there is none."""
    metadata = document.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""


def profile_name(service: Json) -> str | None:
    """Return the name of the CostProfile that a service refers to, None when its profile is analytic."""
    at: object = service
    for key in ("spec", "profile", "ref", "name"):
        at = at.get(key) if isinstance(at, Mapping) else None
    return None if at is None else str(at)


def request_from_service(service: Json, documents: Sequence[Json] = ()) -> Request:
    """Build the planning request of a service; CostProfile and ConfigMap that it refers to are sought in ``documents``.

    Raises:
        RequestError: a field is missing or of the wrong form; the message names it as in the manifest.
    """
    spec = _object(service, "spec", "")
    model = _object(spec, "model", "spec")
    slo = _object(spec, "slo", "spec")
    workload = _object(spec, "workload", "spec")
    capacity = _object(spec, "capacity", "spec")
    planning = _object(spec, "planning", "spec", optional=True)
    profile = _object(spec, "profile", "spec", optional=True)
    engine = _object(spec, "engine", "spec", optional=True)
    transfer = _object(engine, "kvTransfer", "spec.engine", optional=True)
    body: dict[str, object] = {
        "model": _model(model),
        "engine": {"type": ENGINE, **_some(engine, "type"), **_some(transfer, "bidirectional")},
        "slo": {key: _seconds(slo, key, "spec.slo") for key in ("ttft", "itl") if key in slo}
        | _some(slo, "percentile", "attainment"),
        "workload": _workload(workload, slo, documents),
        "capacity": _some(capacity, "gpus")
        | {"pools": [_pool(pool, i) for i, pool in enumerate(_list(capacity, "pools", "spec.capacity"))]},
        "objective": planning.get("objective", "latency"),
        "bounds": _some(planning, "prefill", "decode", "ratio"),
        **_some(planning, "budgetPerHour", "headroom", "minImprovement"),
        "seed": planning.get("seed", 0),
        "routing": _routing(_object(spec, "routing", "spec", optional=True)),
        "profile": _referenced(profile, documents),
    }
    if body["profile"] is None:
        analytic = _object(profile, "analytic", "spec.profile", optional=True)
        body["analytic"] = {"memoryFraction": engine.get("memoryFraction", MEMORY_FRACTION), **analytic}
    try:
        return request_of(body)
    except RequestError as error:
        raise RequestError("; ".join(f"spec.{fault}" for fault in str(error).split("; "))) from error


def _routing(routing: Json) -> dict[str, object]:
    """Return the rules that will run: a plan is simulated with them."""
    policy = routing.get("policy", POLICY)
    form: dict[str, object] = {"policy": policy, **_some(routing, "binding", "order", "window", "mode")}
    params = _object(routing, "params", "spec.routing", optional=True)
    form["params"] = {**AMPD_SLACK, **_some(routing, "alpha", "beta")} if policy == "ampd" else dict(params)
    if routing.get("ageingCap", DEFAULT_CAP) != DEFAULT_CAP:
        form["ageingCap"] = routing["ageingCap"]
    if "statsWindow" in routing:
        form["statsWindow"] = _seconds(routing, "statsWindow", "spec.routing")
    return form


def _model(model: Json) -> dict[str, object]:
    kv = model.get("kvCacheDtype", "auto")
    eight_bit = isinstance(kv, str) and kv.startswith("fp8")  # both 8-bit formats take the same memory
    given = _some(model, "name", "maxModelLen", "dtype", "config")
    return {"dtype": DTYPE, **given, "kvCacheDtype": "fp8" if eight_bit else kv}


def _some(source: Json, *keys: str) -> dict[str, object]:
    return {key: source[key] for key in keys if source.get(key) is not None}


def _object(source: Json, key: str, where: str, *, optional: bool = False) -> Json:
    value = source.get(key)
    path = f"{where}.{key}" if where else key
    if value is None and optional:
        return {}
    if not isinstance(value, Mapping):
        raise RequestError(
            f"{path}: an object is needed" + (", it is missing" if value is None else f", got {value!r}")
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


def _workload(workload: Json, slo: Json, documents: Sequence[Json]) -> dict[str, object]:
    """Return the workload in a request's form, with the data of its trace and the SLOs of its classes."""
    given = {key: value for key, value in workload.items() if value is not None}
    reference = given.pop("traceConfigMap", None)
    if reference is None and "preset" not in given:
        given = {"gap": GAP, **given}
    try:
        body = request_form(given, where="spec.workload")
    except WorkloadFileError as error:
        raise RequestError(str(error)) from error
    if reference is not None:
        body["trace"] = _trace(reference, documents)
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


def _trace(reference: object, documents: Sequence[Json]) -> dict[str, object]:
    """Return the data of spec.workload.traceConfigMap from the ConfigMap among the documents."""
    where = "spec.workload.traceConfigMap"
    name = reference.get("name") if isinstance(reference, Mapping) else None
    key = reference.get("key") if isinstance(reference, Mapping) else None
    found = [d for d in documents if d.get("kind") == CONFIG_MAP_KIND and name_of(d) == name]
    if not found:
        raise RequestError(f"{where}.name: no ConfigMap named {name!r} is in the file; add it, or give --trace FILE")
    for field, encoding in (("data", "text"), ("binaryData", "base64")):
        held = found[0].get(field)
        if isinstance(held, Mapping) and isinstance(held.get(key), str):
            return {"name": f"ConfigMap {name}, {key}", "data": held[key], "encoding": encoding}
    raise RequestError(f"{where}.key: ConfigMap {name} has no key {key!r}; correct it")


def _pool(pool: object, index: int) -> dict[str, object]:
    if not isinstance(pool, Mapping):
        raise RequestError(f"spec.capacity.pools[{index}]: must be an object")
    given = cast(Json, pool)
    row = _some(given, "name", "gpuType", "gpusPerNode", "degrees", "roles", "gpus", "pricePerGpuHour")
    where = f"spec.capacity.pools[{index}]"
    rates = _some(_object(given, "interconnect", where, optional=True), "inNode", "acrossNodes")
    if rates:
        row["interconnect"] = {name: _giga(rate, f"{where}.interconnect.{name}") for name, rate in rates.items()}
    return row


def _giga(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{where}: a number of gigabytes per second is needed, got {value!r}")
    return value * 1e9


def _referenced(profile: Json, profiles: Sequence[Json]) -> object:
    reference = profile.get("ref")
    if reference is None:
        return None
    name = reference.get("name") if isinstance(reference, Mapping) else None
    found = [p for p in profiles if p.get("kind") == PROFILE_KIND and name_of(p) == name]
    if not found:
        raise RequestError(f"spec.profile.ref.name: no {PROFILE_KIND} named {name!r} was given; add --profile FILE")
    if len(found) > 1:
        raise RequestError(f"spec.profile.ref.name: {len(found)} {PROFILE_KIND}s named {name!r} were given; keep one")
    return found[0].get("spec")
