"""Turn a DisaggInferenceService manifest into a planning request, as the operator does with the applied object."""

from collections.abc import Mapping, Sequence
from typing import cast

import yaml

from weft_core.policies.policy import PolicyError
from weft_core.policies.ppd_file import table_from_json
from weft_planner.request.error import RequestError
from weft_planner.request.reading import Request, request_of
from weft_planner.request.service import in_spec, request_body

KIND = "DisaggInferenceService"
PROFILE_KIND = "CostProfile"
CONFIG_MAP_KIND = "ConfigMap"

Json = Mapping[str, object]

PIECES = {"prefill": ("perToken", "perPair", "perContextToken"), "decode": ("perSequence", "perContextToken")}
"""Figures of a profile's pieces that the API server sets to 0 where a manifest is silent."""


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


def profile_names(service: Json) -> list[str]:
    """Return the names of the CostProfiles that a service refers to, if any."""
    return [name for _, name in _references(_at(service, "spec", "profile"))]


def request_from_service(service: Json, documents: Sequence[Json] = (), *, routing_table: bool = True) -> Request:
    """Build the planning request of a service; what it refers to is sought in ``documents``.

    These are CostProfiles and ConfigMaps. ``routing_table``: False leaves that of spec.routing.tableConfigMapRef out.

    Raises:
        RequestError: a field is missing or of the wrong form; the message names it as in the manifest.
    """
    spec = service.get("spec")
    if not isinstance(spec, Mapping):
        raise RequestError("spec: an object is needed" + (", it is missing" if spec is None else f", got {spec!r}"))
    profiles = [_profile(where, name, documents) for where, name in _references(spec.get("profile"))]
    if routing_table:
        spec = _with_table(spec, documents)
    body = request_body(spec, profiles=profiles, trace=_trace(_at(spec, "workload", "traceConfigMap"), documents))
    try:
        return request_of(body)
    except RequestError as error:
        raise RequestError(*(in_spec(fault) for fault in error.faults)) from error


def _at(source: object, *keys: str) -> object:
    for key in keys:
        source = source.get(key) if isinstance(source, Mapping) else None
    return source


def _references(profile: object) -> list[tuple[str, str]]:
    """Return (field, name) of each CostProfile that spec.profile names."""
    one, several = _at(profile, "ref", "name"), _at(profile, "refs")
    found = [("spec.profile.ref.name", str(one))] if one is not None else []
    listed = several if isinstance(several, list) else []
    return found + [(f"spec.profile.refs[{k}].name", str(_at(item, "name"))) for k, item in enumerate(listed)]


def _profile(where: str, name: str, documents: Sequence[Json]) -> Json:
    found = [p for p in documents if p.get("kind") == PROFILE_KIND and name_of(p) == name]
    if not found:
        raise RequestError(f"{where}: no {PROFILE_KIND} named {name!r} was given; add --profile FILE")
    if len(found) > 1:
        raise RequestError(f"{where}: {len(found)} {PROFILE_KIND}s named {name!r} were given; keep one")
    spec = found[0].get("spec")
    if not isinstance(spec, Mapping):
        raise RequestError(f"{PROFILE_KIND} {name}: spec: an object is needed, got {spec!r}")
    return _filled_in(spec)


def _filled_in(profile: Json) -> Json:
    """Return a CostProfile's spec with what the API server fills in; what has another form is left as it is."""
    degrees = profile.get("degrees")
    if not isinstance(degrees, list):
        return profile
    return {
        "provenance": {},
        **profile,
        "degrees": [{**row, **_pieces(row)} if isinstance(row, Mapping) else row for row in degrees],
    }


def _pieces(row: Json) -> dict[str, object]:
    return {
        key: [{**dict.fromkeys(figures, 0.0), **piece} if isinstance(piece, Mapping) else piece for piece in pieces]
        for key, figures in PIECES.items()
        if isinstance(pieces := row.get(key), list)
    }


def _trace(reference: object, documents: Sequence[Json]) -> Mapping[str, str] | None:
    """Return the data of spec.workload.traceConfigMap from the ConfigMap among the documents."""
    if reference is None:
        return None
    where = "spec.workload.traceConfigMap"
    name, key = _at(reference, "name"), _at(reference, "key")
    found = _config_map(documents, name)
    if found is None:
        raise RequestError(f"{where}.name: no ConfigMap named {name!r} is in the file; add it, or give --trace FILE")
    for field, encoding in (("data", "text"), ("binaryData", "base64")):
        data = _at(found, field, str(key))
        if isinstance(data, str):
            return {"name": f"ConfigMap {name}, {key}", "data": data, "encoding": encoding}
    raise RequestError(f"{where}.key: ConfigMap {name} has no key {key!r}; correct it")


def _with_table(spec: Json, documents: Sequence[Json]) -> Json:
    """Return the spec with the figures of the table that spec.routing.tableConfigMapRef names among its params."""
    routing = spec.get("routing")
    reference = _at(routing, "tableConfigMapRef")
    if not isinstance(routing, Mapping) or reference is None:
        return spec
    where = "spec.routing.tableConfigMapRef"
    name, key = _at(reference, "name"), _at(reference, "key")
    found = _config_map(documents, name)
    if found is None:
        raise RequestError(
            f"{where}.name: no ConfigMap named {name!r} is in the file; add it (weft ppd learn writes it)"
        )
    text = _at(found, "data", str(key))
    if not isinstance(text, str):
        raise RequestError(f"{where}.key: ConfigMap {name} has no key {key!r}; correct it")
    try:
        table = table_from_json(text)
    except PolicyError as error:
        raise RequestError(f"{where}: ConfigMap {name}, {key}: {error}") from error
    given = routing.get("params")
    return {**spec, "routing": {**routing, "params": {**table, **(given if isinstance(given, Mapping) else {})}}}


def _config_map(documents: Sequence[Json], name: object) -> Json | None:
    return next((d for d in documents if d.get("kind") == CONFIG_MAP_KIND and name_of(d) == name), None)
