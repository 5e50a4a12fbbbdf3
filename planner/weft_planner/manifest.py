"""Turn a DisaggInferenceService manifest into a planning request, as the operator does with the applied object."""

from collections.abc import Mapping, Sequence
from typing import cast

import yaml

from weft_core.durations import parse_duration
from weft_planner.workload import Request, RequestError, request_of

KIND = "DisaggInferenceService"
PROFILE_KIND = "CostProfile"

GAP = "5s"
MEMORY_FRACTION = 0.9
DTYPE = "bfloat16"
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


def request_from_service(service: Json, profiles: Sequence[Json] = ()) -> Request:
    """Build the planning request of a service; a referenced CostProfile is looked for among ``profiles``.

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
        "engine": _some(transfer, "bidirectional"),
        "slo": {key: _seconds(slo, key, "spec.slo") for key in ("ttft", "itl") if key in slo}
        | _some(slo, "percentile", "attainment"),
        "workload": {key: _mean(value, key) for key, value in {"gap": GAP, **workload}.items()},
        "capacity": _some(capacity, "gpus")
        | {"pools": [_pool(pool, i) for i, pool in enumerate(_list(capacity, "pools", "spec.capacity"))]},
        "objective": planning.get("objective", "latency"),
        "bounds": _some(planning, "prefill", "decode"),
        "seed": planning.get("seed", 0),
        "profile": _referenced(profile, profiles),
    }
    if body["profile"] is None:
        analytic = _object(profile, "analytic", "spec.profile", optional=True)
        body["analytic"] = {"memoryFraction": engine.get("memoryFraction", MEMORY_FRACTION), **analytic}
    try:
        return request_of(body)
    except RequestError as error:
        raise RequestError("; ".join(f"spec.{fault}" for fault in str(error).split("; "))) from error


def _model(model: Json) -> dict[str, object]:
    kv = model.get("kvCacheDtype", "auto")
    eight_bit = isinstance(kv, str) and kv.startswith("fp8")  # both 8-bit formats take the same memory
    return {"dtype": DTYPE, **_some(model, "name", "maxModelLen", "dtype"), "kvCacheDtype": "fp8" if eight_bit else kv}


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


def _mean(value: object, key: str) -> object:
    """Return a workload figure: a plain number, or an object with its mean; gaps are durations."""
    given = value.get("mean") if isinstance(value, Mapping) else value
    if key != "gap":
        return given
    try:
        return parse_duration(given)
    except ValueError as error:
        raise RequestError(f"spec.workload.gap: {error}") from error


def _pool(pool: object, index: int) -> dict[str, object]:
    if not isinstance(pool, Mapping):
        raise RequestError(f"spec.capacity.pools[{index}]: must be an object")
    return _some(cast(Json, pool), "name", "gpuType", "gpusPerNode", "degrees", "roles", "gpus")


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
