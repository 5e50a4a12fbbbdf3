"""Validate manifests as the API server would, before they are applied; used by ``weft plan``.

There are two passes. The structural schema finds unknown fields and drops nulls as the server does. Then the API types
check every value, with defaults filled in and the CRD's CEL rules.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from weft_operator.api.base import ApiModel, rule_at
from weft_operator.api.cost_profile import CostProfileSpec
from weft_operator.api.crd import cost_profile_crd, service_crd
from weft_operator.api.fields import DEGREE_PATTERN, DURATION_PATTERN, QUANTITY_PATTERN
from weft_operator.api.gateway import HOSTNAME_PATTERN
from weft_operator.api.kv_cache import PEER_TO_PEER, kv_disk_fault
from weft_operator.api.model_cache import node_path_fault
from weft_operator.api.objects import Manifest
from weft_operator.api.pod_template_permissions import permitted_in
from weft_operator.api.quantities import resources_fault, tier_fault
from weft_operator.api.service import GROUP, NAME_MESSAGE, VERSION, DisaggInferenceService, name_fits
from weft_operator.api.spec_size import size_fault
from weft_operator.render.pod_templates.overrides import pod_template_fault
from weft_operator.settings import permissions_from_env

Json = Mapping[str, object]

EXACT = 2**53
"""Beyond, a number with a fraction or an exponent is no whole number to the API server."""

_TYPE_MESSAGES = {
    "missing": "is missing; add it",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text; put it in quotes",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
}

PATTERN_MESSAGES = {
    DURATION_PATTERN: "must be a duration such as 50ms, 5s or 1m30s",
    DEGREE_PATTERN: "must be a number of GPUs, or how the model is split otherwise, such as tp4pp2 or dp16ep",
    QUANTITY_PATTERN: "must be an amount such as 500m, 2 or 16Gi",
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$": "must be a name of a-z, 0-9 and -, with a letter or digit at both ends",
    r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$": "must be a name of a-z, 0-9, - and ., with a letter or digit at both ends",
    r"^[-._a-zA-Z0-9]+$": "must be a key of letters, digits, -, _ and .",
    r"^[0-9][0-9A-Za-z.+-]*$": "must be a version such as 0.24.0 or 1.3.0rc17",
    r"^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$": "must be a name such as meta-llama/Llama-3.1-8B-Instruct",
    r"^[A-Za-z0-9._/-]+$": "must be of letters, digits, -, _, . and /",
    r"^[a-z0-9]+/[-a-z0-9]+$": "must be a name such as ampd/toolbench",
    r"^\S+$": "must hold no spaces",
    r"^[!-~]+$": "must be of printable ASCII characters without spaces",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "must be the name of a variable: letters, digits and _, no digit first",
    r"^[A-Za-z][A-Za-z0-9-]*$": "must be the name of a header: letters, digits and -, a letter first",
    r"^[!-~]([ -~]*[!-~])?$": "must be of printable ASCII characters without a space at either end",
    r"^[a-zA-Z_][a-zA-Z0-9_]*$": "must be a label of Prometheus: letters, digits and _, no digit first",
    r"^[A-Za-z0-9_]*$": "must be of letters, digits and _",
    r"^[a-zA-Z][a-zA-Z0-9_]*(\.[a-zA-Z][a-zA-Z0-9_]*)?$": (
        "must be a field of requests such as chat_template or chat_template_kwargs.thinking"
    ),
    r"^(\*\.)?([a-z0-9]([-a-z0-9]*[a-z0-9])?\.)+[a-z]([-a-z0-9]*[a-z0-9])?(:[0-9]{1,5})?$": (
        "must be a host such as media.example.com, media.example.com:8443 or *.example.com"
    ),
    HOSTNAME_PATTERN: "must be a host such as llm.example.com or *.example.com, in lower case and without a port",
    r"^[a-z0-9.-]+/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$": "must be a resource such as nvidia.com/gpu",
    r"^https?://[^\s?#]+$": "must be a URL such as http://prometheus.monitoring:9090, without ? and #",
    r"^https?://[^\s@]+$": "must be a URL such as http://collector.monitoring:4318, without user and password",
    r"^https?://[^\s/?#@]+(/[^\s?#@]*)?$": "must be a URL such as https://hub.example.com, without user, ? and #",
    r"^https?://[^\s/?#@]+$": "must be a URL such as http://embeddings.models.svc:8000, without a path",
    r"^(\*|https?://[a-z0-9.\[\]:-]+)$": "must be an origin such as https://chat.example.com, without a path, or *",
    r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$": "must be a repository of the hub such as acme/law-lora",
    r"^[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?$": "must be a name such as llama-70b or llama:latest",
    r"^/[A-Za-z0-9._/-]+$": "must be a path from the root, such as /var/lib/weft/models",
    r"^[a-z0-9][a-z0-9.-]*[a-z0-9]$": "must be the name of a bucket: a-z, 0-9, - and .",
    r"^[a-z0-9]+([_-][a-z0-9]+)*$": "must be a method of the engine such as fp8 or awq_marlin",
    r"^[a-z0-9-]+$": "must be of a-z, 0-9 and -",
    r"^https://\S+$": "must be a URL that begins with https://",
    r"^([01][0-9]|2[0-3]):[0-5][0-9]$": "must be a time of day such as 08:30, in quotes",
    r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$": "must be a time zone such as Europe/Berlin or UTC",
    r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$": (
        "must be the key of a label such as topology.kubernetes.io/rack"
    ),
    r"^[a-z][a-z0-9+.-]*://[^\s/?#@]+:[0-9]{1,5}(/[^\s?#@]*)?$": (
        "must be a URL with a port such as lm://lmcache.models.svc:65432, without user and password"
    ),
    r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?:[0-9]{1,5}$": (
        "must be a host and a port such as mooncake-master.models.svc:50051"
    ),
    rf"^({PEER_TO_PEER}|https?://[^\s?#@]+)$": (
        f"must be {PEER_TO_PEER}, or a URL such as http://mooncake-master.models.svc:8080/metadata"
    ),
    r"^[0-9a-fA-F.:]+/[0-9]{1,3}$": "must be a range of addresses such as 10.0.0.0/8 or fd00::/8",
}
"""The error message for each pattern of the CRDs."""


def service_messages(manifest: Json) -> list[str]:
    """Return the errors of a DisaggInferenceService, each with the field and the fix."""
    found = _messages(manifest, _schema(service_crd), DisaggInferenceService, part=None)
    metadata = manifest.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    # The types check rules of an object only when all its fields are valid; the name is checked in any case.
    if isinstance(name, str) and not name_fits(name) and NAME_MESSAGE not in found:
        found.append(NAME_MESSAGE)
    if not found:
        # Patches are plain JSON to the schema, so they have a check of their own.
        body = _drop_unknown_fields(_body(manifest), _schema(service_crd), "", [])
        service = DisaggInferenceService.model_validate(body)
        spec = service.spec
        permitted = permitted_in(permissions_from_env(os.environ), service.metadata.namespace)
        # A schema does not compare quantities either.
        faults = (
            pod_template_fault(spec, permitted),
            node_path_fault(spec.model, permitted),
            kv_disk_fault(spec.kv_cache, permitted),
            resources_fault(spec),
            tier_fault(spec),
        )
        found += [fault for fault in faults if fault is not None]
    given = manifest.get("spec")
    large = size_fault(given) if isinstance(given, Mapping) else None
    return [*found, large] if large is not None else found


def profile_messages(manifest: Json) -> list[str]:
    """Return the errors of a CostProfile, each with the field and the fix."""
    return _messages(manifest, _schema(cost_profile_crd), CostProfileSpec, part="spec")


@cache
def _schema(crd: Callable[[], Manifest]) -> Mapping[str, Any]:
    """Return the structural schema of a CRD; building one takes a tenth of a second."""
    found: Mapping[str, Any] = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def _messages(manifest: Json, schema: Mapping[str, Any], model: type[ApiModel], *, part: str | None) -> list[str]:
    """Validate a manifest with the model of the whole object, or of its field ``part``."""
    version = f"{GROUP}/{VERSION}"
    found = [] if manifest.get("apiVersion") == version else [f"apiVersion: must be {version}"]
    checked = _drop_unknown_fields(_body(manifest), schema, "", found)
    value = checked if part is None else checked.get(part)
    if part is not None and value is None:
        return [*found, f"{part}: is missing; add it"]
    try:
        # As JSON, where strict types behave as in the API server: no "16" for 16, no true for 1.
        model.model_validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        inner = schema if part is None else schema["properties"][part]
        found += dict.fromkeys(_error_message(fault, value, part or "", inner) for fault in faults)
    return found


def _body(manifest: Json) -> dict[str, object]:
    """Return the checked fields: not the status, which the server ignores, and only the name of the metadata."""
    body = {key: value for key, value in manifest.items() if key != "status"}
    if isinstance(metadata := body.get("metadata"), Mapping):
        body["metadata"] = {"name": metadata["name"]} if metadata.get("name") is not None else {}
    return body


def _drop_unknown_fields(value: Any, schema: Mapping[str, Any], at: str, found: list[str]) -> Any:
    """Return a value without nulls and unknown fields; errors are added to ``found``."""
    properties = schema.get("properties")
    if isinstance(value, Mapping) and properties:
        known = {}
        for key, inner in value.items():
            where = f"{at}.{key}" if at else str(key)
            if key not in properties:
                near = get_close_matches(str(key), properties, n=1)
                found.append(f"{where}: unknown field; " + (f"did you mean {near[0]}?" if near else "remove it"))
            elif inner is not None:
                known[key] = _drop_unknown_fields(inner, properties[key], where, found)
        return known
    if isinstance(value, list) and "items" in schema:
        if schema.get("x-kubernetes-list-type") == "set":
            found += [f"{at}: {item!r} is given twice; remove one" for item in _repeated(value)]
        return [_drop_unknown_fields(item, schema["items"], f"{at}[{i}]", found) for i, item in enumerate(value)]
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT:
        return int(value)  # 8.0 in YAML reaches the API server as 8
    return value


def _repeated(values: list[object]) -> Iterator[object]:
    for i, value in enumerate(values):
        if values.index(value) < i and values[:i].count(value) == 1:
            yield value


def _error_message(fault: ErrorDetails, body: Any, at: str, schema: Mapping[str, Any]) -> str:
    for step in fault["loc"]:
        if not isinstance(body, Mapping | list):
            return f"{at}: write a whole number or text, such as 2, 500m or 16Gi (got {body!r})"  # the one union
        at += f"[{step}]" if isinstance(step, int) else f".{step}" if at else step
        body = body.get(step) if isinstance(body, Mapping) else body[step] if isinstance(step, int) else None
        schema = schema.get("items", {}) if isinstance(step, int) else _property(schema, step)
    if fault["type"] == "rule":
        return rule_at(fault["msg"], at)
    if fault["type"] == "string_type" and isinstance(body, Mapping) and set(body) == {"name"}:
        return f"{at}: must be the name alone, not an object as in a pod; write {body['name']}"
    given = f" (got {body!r})" if isinstance(body, str | int | float | bool) else ""
    unit = " of bytes, such as 1073741824" if fault["type"] == "int_type" and "Bytes" in at.rpartition(".")[2] else ""
    return f"{at or 'manifest'}: {_requirement(fault, schema)}{unit}{given}{_description_of(fault, schema)}"


def _property(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = schema.get("properties", {}).get(name) or schema.get("additionalProperties") or {}
    return found


def _requirement(fault: ErrorDetails, schema: Mapping[str, Any]) -> str:
    if fault["type"] in ("string_type", "string_pattern_mismatch") and schema.get("pattern") in PATTERN_MESSAGES:
        return PATTERN_MESSAGES[schema["pattern"]]
    if fault["type"] in ("too_short", "too_long"):
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        return f"must have {least} to {most} entries" if most is not None else f"must have at least {least} entries"
    return _TYPE_MESSAGES.get(fault["type"]) or fault["msg"].removeprefix("Value error, ").replace(
        "Input should", "must", 1
    )


def _description_of(fault: ErrorDetails, schema: Mapping[str, Any]) -> str:
    """Return the description of a number, with its unit, for a value of another type."""
    description = schema.get("description")
    return f"; {str(description).rstrip('.')}" if fault["type"] in ("float_type", "int_type") and description else ""
